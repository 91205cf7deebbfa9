"""Split messages into frames, and assemble messages from frames. It knows no connection.

Ranks send frames over a socket, sites as gRPC messages: both use this module.
"""

from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from siafu.comm.message_frames import (
    CHUNK_BYTES,
    ChunkHead,
    FrameKind,
    MessageInfo,
    pack_chunk_head,
    unpack_chunk_head,
)
from siafu.comm.receive_queue import ReceiveQueue
from siafu.comm.tensor_bytes import byte_view
from siafu.comm.transport import Envelope, IncomingMessage, MessageKind
from siafu.wire.frames import FrameError, Header, check_payload, pack


class MessageSplitter:
    """Makes the frames of one message, one after another."""

    def __init__(self, envelope: Envelope, values: Tensor) -> None:
        self.envelope = envelope
        self._values = values  # keeps the memory of the view alive
        self.view = byte_view(values)
        self._offset = 0
        self._begun = False

    @property
    def is_at_end(self) -> bool:
        """True once the last frame was made."""
        return self._begun and self._offset >= len(self.view)

    def next_frame(self, sequence: int) -> tuple[bytes, memoryview]:
        """Return header and head of the next frame, and its payload as a view of the message."""
        chunk = self.view[self._offset : self._offset + CHUNK_BYTES]
        head = pack_chunk_head(
            ChunkHead(self.envelope.channel, self.envelope.number, self._offset, self._info())
        )
        self._offset += len(chunk)
        self._begun = True
        return pack(self.envelope.kind, sequence, head, (chunk,)), chunk

    def _info(self) -> MessageInfo | None:
        if self._offset:
            return None
        shape = tuple(self._values.shape)
        return MessageInfo(len(self.view), self._values.dtype, shape, self.envelope.label)


class _Partial(NamedTuple):
    """A message of which ``received`` bytes have arrived."""

    envelope: Envelope
    arrival: IncomingMessage
    view: memoryview
    received: int


class MessageAssembler:
    """Assembles the messages of one peer from their frames.

    For each frame call :meth:`place`, fill the memory that it returns with the payload, then call :meth:`commit`.
    """

    def __init__(
        self,
        peer: int,
        receive_queue: ReceiveQueue,
        *,
        kinds: Collection[int] = (FrameKind.COLLECTIVE, FrameKind.DIRECT, FrameKind.POST),
    ) -> None:
        self._peer, self._receive_queue, self._kinds = peer, receive_queue, kinds
        self._partial: dict[int, _Partial] = {}
        self._placed: tuple[_Partial, Header] | None = None

    def place(self, header: Header, head: bytes) -> memoryview:
        """Return the memory for the payload of a frame; raises FrameError if the frame fits no message."""
        if header.kind not in self._kinds:
            raise FrameError(f"a message of kind {header.kind}, which is not sent here")
        chunk = unpack_chunk_head(head)
        partial = (
            self._resume(header.kind, chunk) if chunk.message is None else self._begin(header.kind, chunk)
        )
        end = partial.received + header.payload_bytes
        if end > len(partial.view) or (not header.payload_bytes and len(partial.view)):
            raise FrameError(f"a message of {len(partial.view)} bytes goes on to byte {end}")
        self._placed = partial, header
        return partial.view[partial.received : end]

    def take(self, header: Header, head: bytes, payload: bytes | memoryview) -> None:
        """Take a frame that is already in memory; raises FrameError."""
        if len(payload) != header.payload_bytes:
            raise FrameError(
                f"a frame with a payload of {len(payload)} bytes; expected {header.payload_bytes}"
            )
        self.place(header, head)[:] = payload
        self.commit()

    def commit(self) -> None:
        """Check the payload that was filled in, and deliver the message if it is complete. Raises FrameError."""
        assert self._placed is not None
        (partial, header), self._placed = self._placed, None
        end = partial.received + header.payload_bytes
        check_payload(header, (partial.view[partial.received : end],))
        if end < len(partial.view):
            self._partial[partial.envelope.channel] = partial._replace(received=end)
        else:
            self._receive_queue.finish_message(partial.arrival, partial.envelope)

    def _begin(self, kind: int, chunk: ChunkHead) -> _Partial:
        info = chunk.message
        assert info is not None
        if chunk.channel in self._partial:
            raise FrameError(f'message "{info.label}" began before the one before it on its channel ended')
        envelope = Envelope(MessageKind(kind), chunk.channel, chunk.number, info.label)
        try:
            arrival = self._receive_queue.begin_message(self._peer, envelope, info.shape, info.dtype)
        except ValueError as error:
            raise FrameError(str(error)) from None
        assert isinstance(arrival.values, Tensor)
        return _Partial(envelope, arrival, byte_view(arrival.values), 0)

    def _resume(self, kind: int, chunk: ChunkHead) -> _Partial:
        partial = self._partial.pop(chunk.channel, None)
        found = (chunk.offset, chunk.number, kind)
        if partial is None or (partial.received, partial.envelope.number, partial.envelope.kind) != found:
            raise FrameError(f"byte {chunk.offset} of message {chunk.number} came out of its order")
        return partial
