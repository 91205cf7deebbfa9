"""Frames: unpacking inverts packing, and invalid frames are refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.wire.frames import (
    HEADER_BYTES,
    MAX_HEAD_BYTES,
    PROTOCOL,
    FrameError,
    Header,
    check_head,
    check_payload,
    pack,
    unpack_header,
)


def unpack(
    data: bytes, *, sequence: int = 0, max_head: int = 100, max_payload: int = 1000
) -> tuple[Header, bytes, bytes]:
    """A whole frame in memory, checked as a reader does it."""
    header = unpack_header(data[:HEADER_BYTES], max_head=100, max_payload=1000)
    begin = HEADER_BYTES + header.head_bytes
    head, payload = data[HEADER_BYTES:begin], data[begin:]
    check_head(data[:HEADER_BYTES], head, sequence=sequence)
    if len(payload) != header.payload_bytes:
        raise FrameError("cut off")
    check_payload(header, (payload,))
    return header, head, payload


@given(
    kind=st.integers(0, 255),
    sequence=st.integers(0, 2**40),
    head=st.binary(max_size=100),
    pieces=st.lists(st.binary(max_size=300), max_size=3),
)
def test_a_frame_comes_back_as_it_was_packed(
    kind: int, sequence: int, head: bytes, pieces: list[bytes]
) -> None:
    data = pack(kind, sequence, head, pieces) + b"".join(pieces)
    header, found, payload = unpack(data, sequence=sequence)
    assert (header.kind, found, payload) == (kind, head, b"".join(pieces))


def test_each_flipped_bit_is_noticed() -> None:
    payload = bytes(range(40))
    data = pack(3, 7, b"about", (payload,)) + payload
    unpack(data, sequence=7)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            unpack(bytes(damaged), sequence=7)


@pytest.mark.parametrize(("head", "payload"), [(11, 0), (0, 21), (MAX_HEAD_BYTES, 2**32 - 1)])
def test_lengths_are_held_to_their_limits_by_the_header_alone(head: int, payload: int) -> None:
    fields = struct.pack(
        "<2sBBIIIQI", b"SF", PROTOCOL, 1, 0, head, payload, 0, 0
    )  # before a byte of them is read
    with pytest.raises(FrameError, match=r"expected at most 10 \+ 20"):
        unpack_header(fields, max_head=10, max_payload=20)


def test_a_head_that_is_too_long_is_not_packed() -> None:
    with pytest.raises(FrameError, match="the head of a frame has"):
        pack(1, 0, bytes(MAX_HEAD_BYTES + 1))


@pytest.mark.parametrize("found", [0, 4, 6, 2**32 - 1])
def test_a_frame_that_is_lost_or_repeated_is_noticed(found: int) -> None:
    with pytest.raises(FrameError, match=f"frame {found} came where frame 5 was expected"):
        unpack(pack(1, found, b""), sequence=5)


def test_numbers_of_frames_begin_again_after_the_last() -> None:
    unpack(pack(1, 2**32, b""), sequence=2**32)
    unpack(pack(1, 0, b""), sequence=2**32)


@pytest.mark.parametrize("begins", [b"GET / HT", b"\x16\x03\x01\x02", b"SIAF\x01\x00"])
def test_another_protocol_is_named(begins: bytes) -> None:
    with pytest.raises(FrameError, match="another protocol"):
        unpack_header(begins.ljust(HEADER_BYTES, b"\0"), max_payload=10)


def test_another_version_is_told_to_install_the_same() -> None:
    data = bytearray(pack(1, 0, b""))
    data[2] = PROTOCOL + 1
    with pytest.raises(
        FrameError, match=f"a frame of protocol {PROTOCOL + 1}, expected {PROTOCOL}: install the same"
    ):
        unpack_header(data, max_payload=10)
