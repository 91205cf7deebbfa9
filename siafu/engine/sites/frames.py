"""A tensor as messages of the schema, and back: sizes, order and checksums are held to before anything is kept."""

from typing import Any, NamedTuple

from torch import Tensor
from xxhash import xxh3_64_intdigest

from siafu.comm.frames import MAX_LABEL_BYTES
from siafu.comm.inbox import Inbox
from siafu.comm.memory import DTYPES, MAX_DIMS, bytes_of
from siafu.comm.transport import Arrival, Envelope, Kind
from siafu.engine.sites.schema import CHUNK_BYTES, BadMessage, make, pack, unpack

FAILED, BYE = 5, 6  # kinds of a frame that is no part of a message
_KINDS = {Kind.COLLECTIVE.value, Kind.DIRECT.value}  # sites send no posts
_RECORD = 1 << 14  # of TLS, and of a data frame of HTTP/2
_RECORD_BYTES, _PREFIX_BYTES = 22 + 9, 5


class Outgoing:
    """Makes the frames of one connection, numbered as they are made."""

    def __init__(self) -> None:
        self._sequence = 0

    def message(self, envelope: Envelope, values: Tensor) -> list[bytes]:
        """The frames of a message; its bytes are copied."""
        view, frames = bytes_of(values), []
        for offset in range(0, len(view) or 1, CHUNK_BYTES):
            chunk = bytes(view[offset : offset + CHUNK_BYTES])
            frame = make(
                "Frame",
                sequence=self._next(),
                kind=envelope.kind.value,
                channel=envelope.channel,
                number=envelope.number,
                label="" if offset else envelope.label,
                dtype=DTYPES.index(values.dtype),
                shape=[] if offset else list(values.shape),
                offset=offset,
                payload=chunk,
            )
            frame.frame_sum = _sum_of(frame)
            frames.append(pack(frame))
        return frames

    def control(self, kind: int) -> bytes:
        """A frame that says that this side failed, or ends in good order."""
        frame = make("Frame", sequence=self._next(), kind=kind)
        frame.frame_sum = _sum_of(frame)
        return pack(frame)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1


class _Partial(NamedTuple):
    envelope: Envelope
    arrival: Arrival
    view: memoryview
    received: int


class Incoming:
    """Takes in the frames of one connection."""

    def __init__(self, peer: int, inbox: Inbox) -> None:
        self._peer, self._inbox = peer, inbox
        self._over = False
        self._sequence = 0
        self._partial: dict[int, _Partial] = {}

    def take(self, data: bytes) -> int | None:
        """Take a frame in; returns its kind where it is no part of a message. Raises BadMessage."""
        frame = unpack("Frame", data)
        if frame.frame_sum != _sum_of(frame):
            raise BadMessage("a frame whose checksum is wrong")
        if frame.sequence != self._sequence:
            raise BadMessage(f"frame {frame.sequence} came where frame {self._sequence} was expected")
        self._sequence += 1
        if self._over:
            raise BadMessage("a frame after the one that said farewell")
        if frame.kind in (FAILED, BYE):
            self._over = True
            return int(frame.kind)
        if frame.kind not in _KINDS:
            raise BadMessage(f"a frame of kind {frame.kind}, which nobody sends")
        self._take_chunk(frame)
        return None

    def _take_chunk(self, frame: Any) -> None:
        payload: bytes = frame.payload
        if len(payload) > CHUNK_BYTES:
            raise BadMessage(f"a frame of {len(payload)} bytes; expected at most {CHUNK_BYTES}")
        partial = self._continue(frame) if frame.offset else self._begin(frame)
        end = partial.received + len(payload)
        if end > len(partial.view) or (not payload and len(partial.view)):
            raise BadMessage(f"a message of {len(partial.view)} bytes goes on to byte {end}")
        partial.view[partial.received : end] = payload
        if end < len(partial.view):
            self._partial[partial.envelope.channel] = partial._replace(received=end)
        else:
            self._inbox.arrived(partial.arrival, partial.envelope)

    def _begin(self, frame: Any) -> _Partial:
        shape = tuple(frame.shape)
        label, dtype = frame.label, frame.dtype
        if dtype >= len(DTYPES) or len(shape) > MAX_DIMS or len(label.encode()) > MAX_LABEL_BYTES:
            raise BadMessage(f"a message of type {dtype} and {len(shape)} dimensions")
        if frame.channel in self._partial:
            raise BadMessage("a message began before the one before it ended")
        envelope = Envelope(Kind(frame.kind), frame.channel, frame.number, label)
        arrival = self._inbox.arriving(self._peer, envelope, shape, DTYPES[dtype])
        assert isinstance(arrival.values, Tensor)
        return _Partial(envelope, arrival, bytes_of(arrival.values), 0)

    def _continue(self, frame: Any) -> _Partial:
        partial = self._partial.pop(frame.channel, None)
        found = (frame.offset, frame.number, frame.kind)
        if partial is None or (partial.received, partial.envelope.number, partial.envelope.kind) != found:
            raise BadMessage("a piece of a message came out of its order")
        return partial


def _sum_of(frame: Any) -> int:
    """The checksum of all that a frame says."""
    said = (frame.sequence, frame.kind, frame.channel, frame.number, frame.dtype, *frame.shape, frame.offset)
    return xxh3_64_intdigest(frame.payload, seed=xxh3_64_intdigest(f"{said}{frame.label}".encode()))


def wire_bytes(message: bytes) -> int:
    """The bytes that a message takes above TCP: itself, its prefix, and the headers of HTTP/2 and TLS around it."""
    whole = len(message) + _PREFIX_BYTES
    return whole + -(-whole // _RECORD) * _RECORD_BYTES
