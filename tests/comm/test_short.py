"""Short frames: what was packed comes back, and what was damaged does not."""

import pytest

from siafu.comm.frames import BadFrame
from siafu.comm.short import HEAD_BYTES, MOST_BYTES, pack_short, short_bytes, unpack_short


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 9])
def test_a_frame_gives_its_payload_back_and_is_as_long_as_is_counted(payload: bytes) -> None:
    frame = pack_short(7, payload)
    assert unpack_short(frame, 7) == payload
    assert len(frame) == short_bytes(len(payload)) == 16 + len(payload)


def test_a_frame_of_which_a_byte_is_wrong_or_missing_is_refused() -> None:
    frame = pack_short(7, b"some rows")
    for place in range(len(frame)):
        with pytest.raises(BadFrame, match="checksum of a frame of 9 bytes is wrong"):
            unpack_short(frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :], 7)
    with pytest.raises(BadFrame, match="damaged on its way or cut"):
        unpack_short(frame[:-1], 7)
    with pytest.raises(BadFrame, match="a frame of 3 bytes, expected at least the 16"):
        unpack_short(frame[:3], 7)


def test_a_frame_of_another_exchange_is_refused() -> None:
    with pytest.raises(BadFrame, match="a frame of exchange 6 with 2 bytes, expected exchange 7"):
        unpack_short(pack_short(6, b"ab"), 7)


def test_what_is_longer_than_a_frame_goes_in_several() -> None:
    assert short_bytes(MOST_BYTES) == MOST_BYTES + HEAD_BYTES
    assert short_bytes(MOST_BYTES + 1) == MOST_BYTES + 1 + 2 * HEAD_BYTES
