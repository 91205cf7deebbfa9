"""The heads of frames between ranks, after the header of ``wire.frames``. Packing and checking, no socket.

A message travels as chunks of at most 1 MiB, one frame each, so that channels can take turns. The head of a chunk gives
the message's number and the chunk's offset in it. The first chunk also has the message's size, dtype, shape and label.
Control frames (heartbeat, abort, close, its acknowledgement) have a number and a label.
"""

import struct
from enum import IntEnum
from math import prod
from typing import NamedTuple

import torch

from siafu.comm.tensor_bytes import DTYPES, MAX_DIMS
from siafu.wire.frames import HEADER_BYTES, FrameError

MAX_BYTES = 2**40  # of a message
CHUNK_BYTES = 1 << 20  # of a frame's payload: small enough to be hashed and copied while it is in the cache
MAX_LABEL_BYTES = 200
_CHUNK = struct.Struct("<QqQ")  # channel, number, offset
_MESSAGE = struct.Struct("<QBB")  # total bytes, dtype, dims; then the shape and the label
_CONTROL = struct.Struct("<q")  # number; then the label
MAX_HEAD_BYTES = _CHUNK.size + _MESSAGE.size + 8 * MAX_DIMS + MAX_LABEL_BYTES


class FrameKind(IntEnum):
    """The kind of a frame; the first three carry messages, the others are control frames."""

    COLLECTIVE = 1
    DIRECT = 2
    POST = 3
    HEARTBEAT = 4
    ABORT = 5
    CLOSE = 6
    CLOSE_ACK = 7


class MessageInfo(NamedTuple):
    """The description of a message, in the head of its first chunk."""

    total: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    label: str


class ChunkHead(NamedTuple):
    """The head of a chunk.

    Attributes:
        channel: the number of the channel.
        number: the message's number on its channel, or a post's tag.
        offset: where in the message this chunk begins.
        message: the description of the message, only in its first chunk.
    """

    channel: int
    number: int
    offset: int
    message: MessageInfo | None


def pack_chunk_head(head: ChunkHead) -> bytes:
    """Pack a chunk's head."""
    packed = _CHUNK.pack(head.channel, head.number, head.offset)
    if head.message is None:
        return packed
    total, dtype, shape, label = head.message
    packed += _MESSAGE.pack(total, DTYPES.index(dtype), len(shape))
    return packed + struct.pack(f"<{len(shape)}Q", *shape) + label.encode()


def unpack_chunk_head(data: bytes) -> ChunkHead:
    """Unpack and check the head of a chunk; raises FrameError."""
    if len(data) < _CHUNK.size:
        raise FrameError(f"a chunk with a head of {len(data)} bytes; expected at least {_CHUNK.size}")
    channel, number, offset = _CHUNK.unpack_from(data)
    rest = data[_CHUNK.size :]
    if offset and rest:
        raise FrameError(f"a chunk at byte {offset} of message {number} begins a message")
    return ChunkHead(channel, number, offset, None if offset else _unpack_message(rest))


def _unpack_message(data: bytes) -> MessageInfo:
    if len(data) < _MESSAGE.size:
        raise FrameError(f"a message described in {len(data)} bytes; expected at least {_MESSAGE.size}")
    total, dtype, dims = _MESSAGE.unpack_from(data)
    shape_end = _MESSAGE.size + 8 * dims
    if dtype >= len(DTYPES) or dims > MAX_DIMS or shape_end > len(data):
        raise FrameError(f"a message of type {dtype} and {dims} dimensions described in {len(data)} bytes")
    shape = struct.unpack_from(f"<{dims}Q", data, _MESSAGE.size)
    label = data[shape_end:]
    if total > MAX_BYTES or prod(shape) * DTYPES[dtype].itemsize != total or len(label) > MAX_LABEL_BYTES:
        raise FrameError(
            f"a message of shape {shape} and {DTYPES[dtype]} in {total} bytes with a label of {len(label)}; "
            f"expected at most {MAX_BYTES} and {MAX_LABEL_BYTES}, and a size that fits the shape"
        )
    return MessageInfo(total, DTYPES[dtype], shape, label.decode(errors="replace"))


def pack_control_head(number: int, label: str) -> bytes:
    """Pack the head of a control frame."""
    return _CONTROL.pack(number) + label.encode()[:MAX_LABEL_BYTES]


def unpack_control_head(data: bytes) -> tuple[int, str]:
    """Unpack number and label of a control frame; raises FrameError."""
    if len(data) < _CONTROL.size:
        raise FrameError(f"a frame with a head of {len(data)} bytes; expected at least {_CONTROL.size}")
    return _CONTROL.unpack_from(data)[0], data[_CONTROL.size :].decode(errors="replace")


def wire_bytes(num_bytes: int, dims: int, label: str) -> int:
    """Return the bytes that a message takes on a connection, headers included."""
    num_frames = max(1, -(-num_bytes // CHUNK_BYTES))
    heads = num_frames * (HEADER_BYTES + _CHUNK.size) + _MESSAGE.size
    return num_bytes + heads + 8 * dims + len(label.encode())


def is_message(kind: int) -> bool:
    """Return whether frames of a kind carry messages; raises FrameError for an unknown kind."""
    if kind not in FrameKind._value2member_map_:
        raise FrameError(
            f"a frame of kind {kind}; expected one of {', '.join(one.name for one in FrameKind)}"
        )
    return kind <= FrameKind.POST
