"""Frames, the unit of every message on the wire. Packing and checking, no socket.

A frame is a header of 28 bytes, a head (a few bytes of metadata, defined by the protocol above) and a payload. One
checksum covers header and head, another one the payload. A reader checks both lengths against its limits before it
allocates memory.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

PROTOCOL = 3
MAX_HEAD_BYTES = 1 << 20
_MAGIC = b"SF"
# magic, protocol, kind; sequence, head bytes, payload bytes; payload checksum | checksum of header and head
_FIELDS = struct.Struct("<2sBBIIIQ")
_SUM = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _SUM.size
_SEQUENCES = 1 << 32
Buffer = bytes | bytearray | memoryview


class FrameError(ValueError):
    """Bytes that are not a frame, or a frame that is damaged or not allowed."""


class Header(NamedTuple):
    """The lengths and checksums of a frame.

    Attributes:
        kind: the kind of frame, numbered by the protocol above.
        head_bytes: length of the head.
        payload_bytes: length of the payload.
        payload_sum: xxh3 of the payload.
    """

    kind: int
    head_bytes: int
    payload_bytes: int
    payload_sum: int


def pack(kind: int, sequence: int, head: bytes, payload: Sequence[Buffer] = ()) -> bytes:
    """Pack header and head of a frame, after which its payload is sent.

    ``sequence`` is the number of frames sent before on this connection.
    """
    if len(head) > MAX_HEAD_BYTES:
        raise FrameError(f"the head of a frame has {len(head)} bytes; expected at most {MAX_HEAD_BYTES}")
    num_bytes = sum(memoryview(piece).nbytes for piece in payload)
    fields = _FIELDS.pack(
        _MAGIC, PROTOCOL, kind, sequence % _SEQUENCES, len(head), num_bytes, _payload_sum(payload)
    )
    return fields + _SUM.pack(_header_sum(fields, head)) + head


def unpack_header(data: Buffer, *, max_head: int = MAX_HEAD_BYTES, max_payload: int) -> Header:
    """Unpack a header before the rest of its frame is read; raises FrameError for lengths above the limits."""
    magic, protocol, kind, _, head_bytes, payload_bytes, payload_sum = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        raise FrameError(
            f"a frame begins with {bytes(data[:4])!r}, expected {_MAGIC!r}: another protocol, or bytes were lost"
        )
    if protocol != PROTOCOL:
        raise FrameError(
            f"a frame of protocol {protocol}, expected {PROTOCOL}: install the same siafu on both sides"
        )
    if head_bytes > max_head or payload_bytes > max_payload:
        raise FrameError(
            f"a frame of {head_bytes} + {payload_bytes} bytes; expected at most {max_head} + {max_payload}"
        )
    return Header(kind, head_bytes, payload_bytes, payload_sum)


def check_head(data: Buffer, head: Buffer, *, sequence: int) -> None:
    """Raise FrameError unless header and head are undamaged and the sequence number is the expected one."""
    (given,) = _SUM.unpack_from(data, _FIELDS.size)
    if given != _header_sum(data[: _FIELDS.size], head):
        raise FrameError("the checksum of a frame's header is wrong: it was damaged on its way")
    found = _FIELDS.unpack_from(data)[3]
    if found != sequence % _SEQUENCES:
        raise FrameError(
            f"frame {found} came where frame {sequence % _SEQUENCES} was expected: frames were lost or repeated"
        )


def check_payload(header: Header, payload: Sequence[Buffer]) -> None:
    """Raise FrameError unless the payload is undamaged."""
    if _payload_sum(payload) != header.payload_sum:
        raise FrameError("the checksum of a frame's payload is wrong: it was damaged on its way")


def _header_sum(fields: Buffer, head: Buffer) -> int:
    return xxh3_64_intdigest(bytes(fields) + bytes(head)) & 0xFFFFFFFF


def _payload_sum(payload: Sequence[Buffer]) -> int:
    if len(payload) == 1:
        return xxh3_64_intdigest(payload[0])
    checksum = xxh3_64()
    for piece in payload:
        checksum.update(piece)
    return checksum.intdigest()
