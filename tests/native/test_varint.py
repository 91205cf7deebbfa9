"""Varint coding of ascending numbers and pairs: it round-trips, and damaged bytes are refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu import native
from siafu.native import varint

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")
numbers = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**62 - 1)), max_size=30).map(sorted)
node = st.integers(0, 2**31 - 2)
pair_lists = st.lists(st.tuples(st.one_of(st.integers(0, 3), node), node), max_size=30).map(sorted)


@settings(max_examples=60, deadline=None)
@given(values=numbers)
def test_ascending_numbers_come_back(values: list[int]) -> None:
    given = torch.tensor(values, dtype=torch.int64)
    data = native.pack_ascending(given)
    assert data.dtype == torch.uint8
    assert torch.equal(native.unpack_ascending(data, len(values), limit=2**62), given)
    assert torch.equal(data, varint._packed(given))
    assert torch.equal(varint._unpacked(data, len(values), 2**62), given)


@settings(max_examples=60, deadline=None)
@given(ends=pair_lists)
def test_pairs_come_back(ends: list[tuple[int, int]]) -> None:
    row, col = torch.tensor(ends, dtype=torch.int32).reshape(-1, 2).T
    size = 2**31 - 1
    data = native.pack_pairs(row, col, num_cols=size)
    found = native.unpack_pairs(data, len(ends), num_rows=size, num_cols=size)
    assert torch.equal(torch.stack(found), torch.stack([row, col]))
    assert torch.equal(data, varint._packed(row.long() * size + col))


def test_a_near_neighbour_takes_one_byte() -> None:
    assert native.pack_ascending(torch.arange(0, 12700, 127)).numel() == 100


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=12), count=st.integers(0, 6))
def test_any_bytes_are_refused_or_are_pairs_within_bounds(data: bytes, count: int) -> None:
    given = torch.tensor(list(data), dtype=torch.uint8)
    try:
        row, col = native.unpack_pairs(given, count, num_rows=5, num_cols=7)
    except ValueError:
        return
    assert row.numel() == count
    assert not count or (
        int(row.min()) >= 0 and int(row.max()) < 5 and int(col.min()) >= 0 and int(col.max()) < 7
    )
    assert torch.equal(varint._unpacked(given, count, 35), row.long() * 7 + col)
