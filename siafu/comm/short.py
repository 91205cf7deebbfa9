"""Short frames: the form of messages between devices, where most have a few bytes to say.

A frame is a head of 16 bytes, then the payload: the number of the exchange, by which both sides know what it is, how
wide and of which type; the length; a checksum of all of it. Packing and checking, no socket.
"""

import struct

from xxhash import xxh3_64_intdigest

from siafu.comm.frames import BadFrame

_FIELDS = struct.Struct("<II")
_SUM = struct.Struct("<Q")
HEAD_BYTES = _FIELDS.size + _SUM.size
MOST_BYTES = 2**32 - 1  # of a payload; what is longer goes in several frames


def pack_short(number: int, payload: bytes) -> bytes:
    """The frame of a payload in some exchange."""
    fields = _FIELDS.pack(number, len(payload))
    return fields + _SUM.pack(xxh3_64_intdigest(fields + payload)) + payload


def unpack_short(frame: bytes | memoryview, number: int) -> bytes:
    """The payload of a frame that is expected in some exchange; raises BadFrame."""
    if len(frame) < HEAD_BYTES:
        raise BadFrame(f"a frame of {len(frame)} bytes, expected at least the {HEAD_BYTES} of its head")
    found, length = _FIELDS.unpack_from(frame)
    (given,) = _SUM.unpack_from(frame, _FIELDS.size)
    payload = bytes(frame[HEAD_BYTES:])
    if given != xxh3_64_intdigest(bytes(frame[: _FIELDS.size]) + payload):
        raise BadFrame(
            f"the checksum of a frame of {len(payload)} bytes is wrong: it was damaged on its way or cut"
        )
    if found != number or length != len(payload):
        raise BadFrame(
            f"a frame of exchange {found} with {length} bytes, expected exchange {number} with {len(payload)}"
        )
    return payload


def short_bytes(num_bytes: int) -> int:
    """The bytes that a message takes, heads included."""
    return num_bytes + HEAD_BYTES * max(1, -(-num_bytes // MOST_BYTES))
