"""Frames: the form in which messages travel over a connection. Packing and checking, no socket.

A frame is a header of 72 bytes, then shape and label (in the first frame of a message alone), then at most 1 MiB of
payload. Two checksums cover all of it. Larger messages are several frames, between which other channels get their turn.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from math import prod
from typing import NamedTuple

import torch
from xxhash import xxh3_64_intdigest

from siafu.comm.memory import DTYPES, MAX_DIMS

PROTOCOL = 1
MAX_BYTES = 2**40  # of a message
CHUNK_BYTES = 1 << 20  # of a frame's payload: small enough to be hashed and copied while it is in the cache
MAX_LABEL_BYTES = 200
_MAGIC = b"SIAF"
# magic, protocol, kind, dtype; channel, sequence, number; total, offset; length, extra, dims; payload sum | header sum
_FIELDS = struct.Struct("<4sHBBQQqQQIHBxQ")
_SUM = struct.Struct("<Q")
HEADER_BYTES = _FIELDS.size + _SUM.size


class FrameKind(IntEnum):
    """What a frame carries; the first three are the kinds of a message."""

    COLLECTIVE = 1
    DIRECT = 2
    POST = 3
    BEAT = 4
    ABORT = 5
    BYE = 6
    SEEN = 7


class Header(NamedTuple):
    """What a frame says of itself.

    Attributes:
        kind: what it carries.
        dtype: of the message.
        channel: the number of the channel.
        sequence: how many frames went before it on this connection.
        number: the message's number on its channel, or a post's tag.
        total: bytes of the whole message.
        offset: where in the message this frame's payload begins.
        length: bytes of this frame's payload.
        extra: bytes of shape and label.
        dims: dimensions of the message.
        payload_sum: xxh3 of the payload.
    """

    kind: FrameKind
    dtype: torch.dtype
    channel: int
    sequence: int
    number: int
    total: int
    offset: int
    length: int
    extra: int
    dims: int
    payload_sum: int


class BadFrame(ValueError):
    """Bytes that are no frame, or a damaged one."""


def pack(header: Header, extra: bytes = b"") -> bytes:
    """A header and what follows it, with their checksum."""
    fields = _FIELDS.pack(
        _MAGIC, PROTOCOL, header.kind, DTYPES.index(header.dtype), header.channel, header.sequence, header.number,
        header.total, header.offset, header.length, header.extra, header.dims, header.payload_sum,
    )  # fmt: skip
    return fields + _SUM.pack(xxh3_64_intdigest(fields + extra)) + extra


def extra_bytes(fields: bytes | bytearray | memoryview) -> int:
    """How many bytes of shape and label follow a header; raises BadFrame for what is no header at all."""
    magic, protocol, *_, extra, _, _ = _FIELDS.unpack_from(fields)
    if magic != _MAGIC:
        raise BadFrame(
            f"a frame begins with {bytes(magic)!r}, expected {_MAGIC!r}: another protocol, or bytes were lost"
        )
    if protocol != PROTOCOL:
        raise BadFrame(f"a frame of protocol {protocol}, expected {PROTOCOL}")
    return int(extra)


def unpack(fields: bytes | bytearray | memoryview, extra: bytes | memoryview, sequence: int) -> Header:
    """A header that was received whole, checked; raises BadFrame."""
    (given,) = _SUM.unpack_from(fields, _FIELDS.size)
    found = xxh3_64_intdigest(bytes(fields[: _FIELDS.size]) + bytes(extra))
    if given != found:
        raise BadFrame(
            f"the checksum of a frame's header is {found:016x}, expected {given:016x}: it was damaged on its way"
        )
    _, _, kind, dtype, *rest = _FIELDS.unpack_from(fields)
    if kind not in FrameKind._value2member_map_ or dtype >= len(DTYPES):
        raise BadFrame(f"a frame of kind {kind} and type {dtype}, which nobody sends")
    header = Header(FrameKind(kind), DTYPES[dtype], *rest)
    if header.sequence != sequence:
        raise BadFrame(
            f"frame {header.sequence} came where frame {sequence} was expected: frames were lost or repeated"
        )
    if header.total > MAX_BYTES or header.length > CHUNK_BYTES:
        raise BadFrame(
            f"a message of {header.total} bytes in a frame of {header.length}; "
            f"expected at most {MAX_BYTES} in frames of at most {CHUNK_BYTES}"
        )
    return header


def check_payload(header: Header, payload: bytes | memoryview) -> None:
    """Raises BadFrame where a payload is not what its header says."""
    found = xxh3_64_intdigest(payload)
    if found != header.payload_sum:
        raise BadFrame(
            f"the checksum of a frame's payload is {found:016x}, expected {header.payload_sum:016x}: "
            "damaged on its way"
        )


def pack_extra(shape: Sequence[int], label: str) -> bytes:
    """Shape and label, as they follow the first header of a message."""
    return struct.pack(f"<{len(shape)}Q", *shape) + label.encode()


def unpack_extra(header: Header, extra: bytes | memoryview) -> tuple[tuple[int, ...], str]:
    """Shape and label; raises BadFrame where they disagree with the header."""
    if header.dims > MAX_DIMS or header.dims * 8 > len(extra):
        raise BadFrame(f"a frame of {header.dims} dimensions with {len(extra)} bytes for them")
    shape = struct.unpack_from(f"<{header.dims}Q", extra)
    if prod(shape) * header.dtype.itemsize != header.total:
        raise BadFrame(f"a message of shape {shape} and {header.dtype} in {header.total} bytes")
    return shape, bytes(extra[header.dims * 8 :]).decode(errors="replace")


def wire_bytes(num_bytes: int, dims: int, label: str) -> int:
    """The bytes that a message takes on a connection, headers included."""
    num_frames = max(1, -(-num_bytes // CHUNK_BYTES))
    return num_bytes + num_frames * HEADER_BYTES + 8 * dims + len(label.encode())
