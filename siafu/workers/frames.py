"""Frames: the form in which tasks travel between a graph server and a worker. Packing and checking, no socket.

A frame is a header of 28 bytes, a head of JSON, and the bytes of the arrays that the head names, one after the other.
Two checksums cover all of it. Nothing is allocated for a frame before its lengths were found to be allowed.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np

from siafu.workers.task import Arrays

PROTOCOL = 2
MAX_FRAME_BYTES = 1 << 30
MAX_HEAD_BYTES = 1 << 20
MAX_DIMS = 8
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAGIC = b"SIAW"
_FIELDS = struct.Struct("<4sHBBIQII")  # magic, protocol, kind, flags; head, arrays; body sum | header sum
_BEFORE_SUM = _FIELDS.size - 4
HEADER_BYTES = _FIELDS.size
_ARRAYS = "arrays"


class Kind(IntEnum):
    """What a frame says."""

    CHALLENGE = 1  # server: prove that you hold the token
    ANSWER = 2  # worker: the proof, and the same question
    WELCOME = 3  # server: its proof
    REFUSED = 4  # server: why not
    SETUP = 5  # server: the model's tensor work
    READY = 6  # worker: what it took to get here
    OFFER = 7  # server: a task
    ACCEPT = 8  # worker: send its arrays; the weights, and rows that never change, if it says so
    DECLINE = 9  # worker: no more
    TASK = 10  # server: the arrays
    RESULT = 11  # worker: what came of it
    FAILED = 12  # worker: nothing came of it
    BEAT = 13  # worker: it lives
    STOP = 14  # server: end when you are done
    BYE = 15  # worker: it ends


_KINDS = frozenset(map(int, Kind))


class FrameError(ValueError):
    """Bytes that are no frame, or a damaged one, or one that is not allowed."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame that was received whole.

    Attributes:
        kind: what it says.
        head: its particulars.
        arrays: by name; they are the receiver's own.
    """

    kind: Kind
    head: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Header:
    """The lengths and checksum of a frame that is to be read."""

    kind: Kind
    head_bytes: int
    array_bytes: int
    checksum: int


def pack(kind: Kind, head: Mapping[str, Any], arrays: Arrays) -> list[memoryview]:
    """The bytes of a frame, in pieces: those of the arrays are not copied."""
    whole = {name: _plain(name, array) for name, array in arrays.items()}
    shapes = [[name, _NAMES[array.dtype], array.shape] for name, array in whole.items()]
    text = json.dumps({**head, _ARRAYS: shapes} if shapes else dict(head), separators=(",", ":")).encode()
    if len(text) > MAX_HEAD_BYTES:
        raise FrameError(
            f"the head of a {kind.name} frame has {len(text)} bytes, expected at most {MAX_HEAD_BYTES}"
        )
    pieces = [raw(array) for array in whole.values() if array.size]
    checksum = zlib.crc32(text)
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    length = sum(piece.nbytes for piece in pieces)
    fields = _FIELDS.pack(_MAGIC, PROTOCOL, kind, 0, len(text), length, checksum, 0)[:_BEFORE_SUM]
    return [memoryview(fields + struct.pack("<I", zlib.crc32(fields)) + text), *pieces]


def unpack_header(fields: bytes | bytearray | memoryview, limit_bytes: int) -> Header:
    """A frame's header, checked; raises FrameError."""
    magic, protocol, kind, flags, head, arrays, checksum, own_sum = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        raise FrameError(f"a frame begins with {magic!r}, expected {_MAGIC!r}: it speaks another protocol")
    if own_sum != zlib.crc32(fields[:_BEFORE_SUM]):
        raise FrameError("a frame's header has a bad checksum: it was damaged on its way")
    if protocol != PROTOCOL:
        raise FrameError(
            f"a frame of protocol {protocol}, expected {PROTOCOL}: install the same siafu on both sides"
        )
    if kind not in _KINDS or flags:
        raise FrameError(f"a frame of kind {kind} with flags {flags}, which protocol {PROTOCOL} has not")
    if head > MAX_HEAD_BYTES:
        raise FrameError(f"a frame's head has {head} bytes, expected at most {MAX_HEAD_BYTES}")
    if HEADER_BYTES + head + arrays > limit_bytes:
        raise FrameError(
            f"a {Kind(kind).name} frame has {HEADER_BYTES + head + arrays} bytes, expected at most {limit_bytes}"
        )
    return Header(Kind(kind), head, arrays, checksum)


def unpack_head(header: Header, text: bytes | bytearray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A frame's particulars, and memory for its arrays; raises FrameError before any is allocated."""
    try:
        head = json.loads(bytes(text))
    except (ValueError, RecursionError):
        raise FrameError(f"the head of a {header.kind.name} frame is no JSON: it was damaged") from None
    if not isinstance(head, dict):
        raise FrameError(
            f"the head of a {header.kind.name} frame is a {type(head).__name__}, expected an object"
        )
    shapes = head.pop(_ARRAYS, [])
    if not isinstance(shapes, list):
        raise FrameError(f"a frame's arrays are {str(shapes)[:40]}, expected a list")
    found = [_shape_of(entry) for entry in shapes]
    total = sum(DTYPES[dtype].itemsize * prod(shape) for _, dtype, shape in found)
    if total != header.array_bytes:
        raise FrameError(f"a frame names arrays of {total} bytes, but carries {header.array_bytes}")
    if len({name for name, _, _ in found}) != len(found):
        raise FrameError("a frame names an array twice")
    return head, {name: np.empty(shape, DTYPES[dtype]) for name, dtype, shape in found}


def raw(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array that has some."""
    return array.reshape(-1).view(np.uint8).data


def check(header: Header, text: bytes | bytearray, arrays: Arrays) -> None:
    """Raise FrameError unless head and arrays are what was sent."""
    checksum = zlib.crc32(text)
    for array in arrays.values():
        if array.size:
            checksum = zlib.crc32(raw(array), checksum)
    if checksum != header.checksum:
        raise FrameError(f"a {header.kind.name} frame has a bad checksum: it was damaged on its way")


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    """An array as it travels: contiguous, little-endian, of a known type."""
    little = array.dtype.newbyteorder("<")
    if little not in _NAMES:
        raise FrameError(f"array {name!r} is of {array.dtype}, expected one of {', '.join(DTYPES)}")
    if array.dtype == little and array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array, little).reshape(array.shape)  # it makes a row of a number


def _shape_of(entry: object) -> tuple[str, str, tuple[int, ...]]:
    match entry:
        case [str(name), str(dtype), list(shape)] if len(name) <= 200 and len(shape) <= MAX_DIMS:
            pass
        case _:
            raise FrameError(f"an array is given as {str(entry)[:60]}, expected [name, dtype, shape]")
    if dtype not in DTYPES:
        raise FrameError(f"array {name!r} is of {dtype[:40]!r}, expected one of {', '.join(DTYPES)}")
    for size in shape:
        if type(size) is not int or not 0 <= size < 1 << 48:
            raise FrameError(f"array {name!r} has shape {str(shape)[:60]}, expected whole numbers from 0 on")
    return name, dtype, tuple(shape)
