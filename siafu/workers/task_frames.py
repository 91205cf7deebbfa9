"""Frames between a graph server and a worker: a JSON head and arrays. Packs and checks them; knows no socket.

They are sent as frames of :mod:`siafu.wire.frames`. The head lists the arrays with dtype and shape; the payload is
their bytes, one array after the other. Nothing is allocated for a frame before its lengths were checked.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Any

import numpy as np

from siafu.wire import frames as wire
from siafu.wire.frames import HEADER_BYTES, MAX_HEAD_BYTES, FrameError, Header
from siafu.workers.task import Arrays

MAX_FRAME_BYTES = 1 << 30
MAX_DIMS = 8
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ARRAYS = "arrays"


class FrameKind(IntEnum):
    """The kinds of frames, with their sender."""

    SETUP = 1  # server: the model's tensor work
    READY = 2  # worker: it can compute tasks
    OFFER = 3  # server: a task, without its arrays
    ACCEPT = 4  # worker: asks for the arrays; says whether it lacks the weights and the static rows
    DECLINE = 5  # worker: refuses a task, and accepts no more
    TASK = 6  # server: the arrays of a task
    RESULT = 7  # worker: the arrays and gradients of a task
    FAILED = 8  # worker: the task raised an error
    HEARTBEAT = 9  # worker: it still computes
    STOP = 10  # server: end after the tasks you hold; with a reason, end at once
    CLOSE = 11  # worker: it ends; ``failed`` if the server is at fault


_KINDS = frozenset(map(int, FrameKind))


@dataclass(frozen=True, eq=False)
class Frame:
    """A received frame.

    Attributes:
        kind: one of the protocol's kinds.
        head: its JSON fields.
        arrays: by name; the receiver owns their memory.
    """

    kind: FrameKind
    head: dict[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def pack(kind: FrameKind, sequence: int, head: Mapping[str, Any], arrays: Arrays) -> list[memoryview]:
    """Pack a frame into pieces; the bytes of the arrays are not copied."""
    whole = {name: _plain(name, array) for name, array in arrays.items()}
    shapes = [[name, _NAMES[array.dtype], array.shape] for name, array in whole.items()]
    text = json.dumps({**head, _ARRAYS: shapes} if shapes else dict(head), separators=(",", ":")).encode()
    pieces = [raw(array) for array in whole.values() if array.size]
    size = sum(piece.nbytes for piece in pieces)
    if size > MAX_FRAME_BYTES:
        raise FrameError(
            f"a {kind.name} frame has {size} bytes of arrays; expected at most {MAX_FRAME_BYTES}"
        )
    return [memoryview(wire.pack(kind, sequence, text, pieces)), *pieces]


def unpack_header(fields: wire.Buffer, limit_bytes: int) -> Header:
    """Unpack a frame's header and check its lengths; raises FrameError."""
    header = wire.unpack_header(fields, max_head=min(MAX_HEAD_BYTES, limit_bytes), max_payload=limit_bytes)
    if header.kind not in _KINDS:
        raise FrameError(f"a frame of kind {header.kind}, which protocol {wire.PROTOCOL} of workers has not")
    size = HEADER_BYTES + header.head_bytes + header.payload_bytes
    if size > limit_bytes:
        raise FrameError(
            f"a {FrameKind(header.kind).name} frame has {size} bytes; expected at most {limit_bytes}"
        )
    return header


def unpack_head(header: Header, text: wire.Buffer) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Unpack a frame's fields and allocate its arrays; raises FrameError before anything is allocated."""
    kind = FrameKind(header.kind).name
    try:
        head = json.loads(bytes(text))
    except (ValueError, RecursionError):
        raise FrameError(f"the head of a {kind} frame is no JSON: it was damaged") from None
    if not isinstance(head, dict):
        raise FrameError(f"the head of a {kind} frame is a {type(head).__name__}, expected an object")
    shapes = head.pop(_ARRAYS, [])
    if not isinstance(shapes, list):
        raise FrameError(f"a frame's arrays are {str(shapes)[:40]}, expected a list")
    found = [_shape_of(entry) for entry in shapes]
    total = sum(DTYPES[dtype].itemsize * prod(shape) for _, dtype, shape in found)
    if total != header.payload_bytes:
        raise FrameError(f"a frame names arrays of {total} bytes, but carries {header.payload_bytes}")
    if len({name for name, _, _ in found}) != len(found):
        raise FrameError("a frame names an array twice")
    return head, {name: np.empty(shape, DTYPES[dtype]) for name, dtype, shape in found}


def raw(array: np.ndarray) -> memoryview:
    """Return the bytes of a contiguous array that is not empty."""
    return array.reshape(-1).view(np.uint8).data


def check(header: Header, arrays: Arrays) -> None:
    """Raise FrameError if the checksum of the arrays is wrong."""
    wire.check_payload(header, [raw(array) for array in arrays.values() if array.size])


def _plain(name: str, array: np.ndarray) -> np.ndarray:
    """Return an array in the form in which it is sent: contiguous, little-endian, of a known dtype."""
    little = array.dtype.newbyteorder("<")
    if little not in _NAMES:
        raise FrameError(f"array {name!r} is of {array.dtype}, expected one of {', '.join(DTYPES)}")
    if array.dtype == little and array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array, little).reshape(array.shape)  # which makes a scalar 1-d


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
