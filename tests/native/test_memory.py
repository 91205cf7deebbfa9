"""Large arrays are reused after their tensors die, and never while they live."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu import native

ROWS, WIDTH = 1 << 14, 128  # 8 MB of float32
LEAST = 1 << 20  # 4 MB, from which on arrays are of this kind


@pytest.fixture(autouse=True)
def _reuse() -> Iterator[None]:
    if not native.compiled():
        pytest.skip("the compiled core is not there")
    with native.arrays_reused():
        yield


def test_two_living_arrays_share_no_memory() -> None:
    first, second = (native.empty_rows(ROWS, WIDTH, torch.float32) for _ in range(2))
    first.fill_(1)
    second.fill_(2)
    assert bool((first == 1).all())


def test_an_array_whose_tensor_died_is_used_again() -> None:
    first = native.empty_rows(ROWS, WIDTH, torch.float32)
    place = first.data_ptr()
    del first
    assert native.empty_rows(ROWS, WIDTH, torch.float32).data_ptr() == place


def test_an_array_lives_as_long_as_any_view_of_it() -> None:
    row = native.empty_rows(ROWS, WIDTH, torch.float32)[7]
    row.fill_(3)
    other = native.empty_rows(ROWS, WIDTH, torch.float32)
    other.fill_(4)
    assert bool((row == 3).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16])
def test_every_type_has_its_shape_and_may_be_written(dtype: torch.dtype) -> None:
    rows = native.empty_rows(2 * ROWS, WIDTH, dtype)
    assert rows.dtype == dtype
    assert rows.shape == (2 * ROWS, WIDTH)
    assert rows.is_contiguous()
    rows.fill_(5)
    assert bool((rows == 5).all())


def test_an_array_outlives_the_time_of_reuse() -> None:
    with native.arrays_reused():
        rows = native.empty_rows(ROWS, WIDTH, torch.float32)
        rows.fill_(6)
    native.empty_rows(ROWS, WIDTH, torch.float32).fill_(7)
    assert bool((rows == 6).all())


def test_reuse_goes_on_until_the_last_who_asked_for_it_ends() -> None:
    with native.arrays_reused():
        pass
    first = native.empty_rows(ROWS, WIDTH, torch.float32)
    place = first.data_ptr()
    del first
    assert native.empty_rows(ROWS, WIDTH, torch.float32).data_ptr() == place


def test_hardly_more_is_there_than_was_in_use_at_once() -> None:
    before = resident()
    for rows in (8 * ROWS, 6 * ROWS, 4 * ROWS, 7 * ROWS, 5 * ROWS, 8 * ROWS):
        native.empty_rows(rows, WIDTH, torch.float32).fill_(1)
    assert resident() - before < 9 * ROWS * WIDTH * 4  # of which 8 were in use at once; all together are 38


def test_gaps_that_are_too_small_make_room_for_a_larger_array() -> None:
    before = resident()
    some = [native.empty_rows(ROWS, WIDTH, torch.float32).fill_(1) for _ in range(16)]
    del some[::2]  # so that no two gaps lie side by side
    large = native.empty_rows(8 * ROWS, WIDTH, torch.float32).fill_(2)
    assert (
        resident() - before < 19 * ROWS * WIDTH * 4
    )  # of which 16 are in use; with the gaps there would be 24
    assert all(bool((each == 1).all()) for each in some)
    assert bool((large == 2).all())


def test_an_array_takes_the_first_gap_that_it_fits_into() -> None:
    sizes = ROWS, 2 * ROWS, 8 * ROWS, ROWS
    small, between, large, after = (native.empty_rows(rows, WIDTH, torch.float32) for rows in sizes)
    places = large.data_ptr(), small.data_ptr()
    del large, small
    large, small = (native.empty_rows(rows, WIDTH, torch.float32) for rows in (8 * ROWS, ROWS))
    assert (large.data_ptr(), small.data_ptr()) == places
    del between, after


def test_a_gap_is_cut_for_smaller_arrays_which_leave_one_gap_again() -> None:
    large, after = (native.empty_rows(rows, WIDTH, torch.float32) for rows in (8 * ROWS, ROWS))
    place = large.data_ptr()
    del large
    some = [native.empty_rows(rows, WIDTH, torch.float32) for rows in (3 * ROWS, 4 * ROWS, ROWS)]
    assert [each.data_ptr() - place for each in some] == [4 * WIDTH * ROWS * k for k in (0, 3, 7)]
    del some[1], some[1], some[0]
    assert native.empty_rows(8 * ROWS, WIDTH, torch.float32).data_ptr() == place
    del after


def test_memory_goes_back_when_the_last_who_wanted_it_kept_ends() -> None:
    code = """
import torch
from siafu import native

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("RssAnon"))

with native.arrays_reused():
    kept = native.empty_rows(1 << 14, 128, torch.float32).fill_(1)  # 8 MB
    native.empty_rows(1 << 18, 128, torch.float32).fill_(2)         # 128 MB
    same, before = bool((kept == 1).all()), anonymous()
print(before - anonymous(), same and bool((kept == 1).all()))
del kept
print(before - anonymous())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    gone, same, all_gone = done.stdout.split()
    assert int(gone) >= 120
    assert same == "True"
    assert int(all_gone) >= int(gone) + 6


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=30))
def test_no_array_lies_in_another(wanted: list[tuple[int, int]]) -> None:
    """So many rows are made, and the array of that number among those there dies before."""
    there: list[torch.Tensor] = []
    with native.arrays_reused():
        for rows, dies in wanted:
            if dies < len(there):
                del there[dies]
            there.append(native.empty_rows(rows, LEAST, torch.float32))
            there[-1][0, 0] = there[-1][-1, -1] = 1  # it is mapped
            places = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in there)
            assert all(end <= begin for (_, end), (begin, _) in pairwise(places))


def resident() -> int:
    """Bytes of this process that are in memory."""
    return psutil.Process().memory_info().rss
