"""What comes from one peer: frames are read from the connection, checked, and put into the memory they belong to."""

import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from siafu.comm.frames import (
    HEADER_BYTES,
    BadFrame,
    FrameKind,
    Header,
    check_payload,
    extra_bytes,
    unpack,
    unpack_extra,
)
from siafu.comm.inbox import Inbox
from siafu.comm.memory import bytes_of
from siafu.comm.transport import Arrival, Envelope, Kind

_BUFFER_BYTES = 1 << 14
_MAX_CONTROL_BYTES = 1 << 16


class Reader:
    """Reads from a connection; small reads come from a buffer, large ones go straight to where they belong.

    ``heard`` is called whenever something came, with the bytes of a large read or 0.
    """

    def __init__(self, sock: socket.socket, heard: Callable[[int], None]) -> None:
        self._sock = sock
        self._heard = heard
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._begin = self._end = 0

    def fill(self, target: memoryview) -> None:
        """Read as many bytes as ``target`` holds; raises EOFError, with the number of bytes that were missing."""
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
        count = self._sock.recv_into(target)
        if count == 0:
            raise EOFError(missing)
        return count


class ControlHandler(Protocol):
    """Told of each frame that is no message."""

    def __call__(self, header: Header, label: str, payload: bytes) -> None:
        """Take it in."""


class _Partial(NamedTuple):
    """A message of which some frames are here."""

    envelope: Envelope
    arrival: Arrival
    view: memoryview
    received: int


class Incoming:
    """Takes in the frames of one peer.

    ``moved`` is called whenever something came, with the bytes of data in it; a chunk may be told twice.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: int,
        inbox: Inbox,
        *,
        control: ControlHandler,
        moved: Callable[[int], None],
    ) -> None:
        self._reader = Reader(sock, moved)
        self._moved = moved
        self._peer = peer
        self._inbox = inbox
        self._control = control
        self._sequence = 0
        self._partial: dict[int, _Partial] = {}

    def run(self) -> None:
        """Take in frames until the connection ends, which raises EOFError; raises BadFrame for what is no frame."""
        while True:
            header, extra = self._read_header()
            if header.kind in (FrameKind.COLLECTIVE, FrameKind.DIRECT, FrameKind.POST):
                self._read_chunk(header, extra)
                self._moved(header.length)
            else:
                self._read_control(header, extra)

    def _read_header(self) -> tuple[Header, bytes]:
        fields = self._reader.take(HEADER_BYTES)
        extra = self._reader.take(extra_bytes(fields))
        header = unpack(fields, extra, self._sequence)
        self._sequence += 1
        return header, extra

    def _read_chunk(self, header: Header, extra: bytes) -> None:
        partial = self._begin(header, extra) if header.offset == 0 else self._continue(header)
        end = partial.received + header.length
        if end > len(partial.view):
            raise BadFrame(f"a message of {len(partial.view)} bytes goes on to byte {end}")
        payload = partial.view[partial.received : end]
        self._reader.fill(payload)
        check_payload(header, payload)
        if end < len(partial.view):
            self._partial[header.channel] = partial._replace(received=end)
        else:
            self._inbox.arrived(partial.arrival, partial.envelope)

    def _begin(self, header: Header, extra: bytes) -> _Partial:
        shape, label = unpack_extra(header, extra)
        envelope = Envelope(Kind(header.kind), header.channel, header.number, label)
        arrival = self._inbox.arriving(self._peer, envelope, shape, header.dtype)
        assert isinstance(arrival.values, Tensor)
        return _Partial(envelope, arrival, bytes_of(arrival.values), 0)

    def _continue(self, header: Header) -> _Partial:
        partial = self._partial.pop(header.channel, None)
        if partial is None or (partial.received, partial.envelope.number) != (header.offset, header.number):
            raise BadFrame(f"byte {header.offset} of message {header.number} came out of its order")
        return partial

    def _read_control(self, header: Header, extra: bytes) -> None:
        if header.length > _MAX_CONTROL_BYTES or header.length != header.total:
            raise BadFrame(f"a frame of kind {header.kind.name} with {header.length} bytes")
        payload = self._reader.take(header.length)
        check_payload(header, payload)
        _, label = unpack_extra(header, extra)
        self._control(header, label, payload)
