"""Read and check the frames of one peer; payloads are received directly into the memory of their messages."""

from collections.abc import Callable
from typing import Protocol

from siafu.comm.chunks import MessageAssembler
from siafu.comm.message_frames import CHUNK_BYTES, MAX_HEAD_BYTES, FrameKind, is_message, unpack_control_head
from siafu.comm.receive_queue import ReceiveQueue
from siafu.wire.frames import HEADER_BYTES, FrameError, Header, check_head, check_payload, unpack_header
from siafu.wire.socket_stream import SocketStream

_BUFFER_BYTES = 1 << 14
_MAX_CONTROL_BYTES = 1 << 16


class BufferedReader:
    """Reads from a connection: small reads come from a buffer, large ones go directly to their target.

    ``heard`` is called whenever data arrives, with the bytes of a large read, or 0 for a buffered one.
    """

    def __init__(self, stream: SocketStream, heard: Callable[[int], None]) -> None:
        self._stream = stream
        self._heard = heard
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0

    def fill(self, target: memoryview) -> None:
        """Fill ``target``; raises EOFError with the number of missing bytes."""
        filled = 0
        while filled < len(target):
            if self._begin == self._end and len(target) - filled < _BUFFER_BYTES:
                self._begin, self._end = 0, self._receive(self._buffer, len(target) - filled)
                self._heard(0)
            if self._begin < self._end:
                count = min(self._end - self._begin, len(target) - filled)
                target[filled : filled + count] = self._buffer[self._begin : self._begin + count]
                self._begin += count
                filled += count
            else:
                count = self._receive(target[filled:], len(target) - filled)
                self._heard(count)
                filled += count

    def take(self, count: int) -> bytes:
        """Read a few bytes."""
        taken = bytearray(count)
        self.fill(memoryview(taken))
        return bytes(taken)

    def _receive(self, target: memoryview, missing: int) -> int:
        count = self._stream.recv_into(target)
        if count == 0:
            raise EOFError(missing)
        return count


class ControlHandler(Protocol):
    """Called with each control frame."""

    def __call__(self, kind: FrameKind, number: int, label: str, payload: bytes) -> None:
        """Handle a control frame."""


class FrameReader:
    """Reads the frames of one peer.

    ``moved`` is called whenever data arrives, with its bytes of payload; a chunk may be counted twice.
    """

    def __init__(
        self,
        stream: SocketStream,
        peer: int,
        receive_queue: ReceiveQueue,
        *,
        control: ControlHandler,
        moved: Callable[[int], None],
    ) -> None:
        self._reader = BufferedReader(stream, moved)
        self._moved = moved
        self._assembler = MessageAssembler(peer, receive_queue)
        self._control = control
        self._sequence = 0

    def run(self) -> None:
        """Read frames until the connection ends, which raises EOFError; raises FrameError for an invalid frame."""
        while True:
            header, head = self._read_head()
            if is_message(header.kind):
                self._reader.fill(self._assembler.place(header, head))
                self._assembler.commit()
                self._moved(header.payload_bytes)
            else:
                self._read_control(header, head)

    def _read_head(self) -> tuple[Header, bytes]:
        fields = self._reader.take(HEADER_BYTES)
        header = unpack_header(fields, max_head=MAX_HEAD_BYTES, max_payload=CHUNK_BYTES)
        head = self._reader.take(header.head_bytes)
        check_head(fields, head, sequence=self._sequence)
        self._sequence += 1
        return header, head

    def _read_control(self, header: Header, head: bytes) -> None:
        kind = FrameKind(header.kind)
        if header.payload_bytes > _MAX_CONTROL_BYTES:
            raise FrameError(f"a frame of kind {kind.name} with {header.payload_bytes} bytes")
        payload = self._reader.take(header.payload_bytes)
        check_payload(header, (payload,))
        self._control(kind, *unpack_control_head(head), payload)
