"""Cutting time into blocks by what they take."""

from itertools import combinations, pairwise

import pytest
from test_models import EVERY, model_of

from siafu.nn.temporal import Need, estimate_memory


def every_cut(num_steps: int) -> list[list[int]]:
    """All ways to cut so many steps into blocks."""
    cuts = []
    for count in range(num_steps):
        for ends in combinations(range(1, num_steps), count):
            bounds = [0, *ends, num_steps]
            cuts.append([end - begin for begin, end in pairwise(bounds)])
    return cuts


@pytest.mark.parametrize(
    "need", [Need(900, 200, 400), Need(128, 640, 1280), Need(640, 1, 2)], ids=["steps", "states", "free"]
)
def test_no_cut_takes_less_than_the_one_that_is_chosen(need: Need) -> None:
    chosen = cut_time(9, need)
    assert sum(chosen) == 9
    least = min(need.peak(lengths) for lengths in every_cut(9))
    assert need.peak(chosen) <= least + need.step // 64 + 1


@pytest.mark.parametrize("budget", [3000, 4000, 5000, 8100])
def test_no_cut_that_fits_a_budget_has_fewer_blocks(budget: int) -> None:
    need = Need(900, 200, 400)
    chosen = cut_time(9, need, budget=budget)
    assert need.peak(chosen) <= budget
    fitting = [lengths for lengths in every_cut(9) if need.peak(lengths) <= budget]
    assert len(chosen) == min(len(lengths) for lengths in fitting)
    assert chosen[-1] == max(lengths[-1] for lengths in fitting if len(lengths) == len(chosen))


def test_where_nothing_fits_the_least_is_given() -> None:
    need = Need(900, 200, 400)
    assert cut_time(9, need, budget=1000) == cut_time(9, need)


def test_blocks_of_falling_length_take_less_than_equal_ones() -> None:
    need = Need(9, 2, 4)
    equal = min(need.peak([50 // n + (k < 50 % n) for k in range(n)]) for n in range(1, 51))
    assert need.peak(cut_time(50, need)) < 0.9 * equal


@EVERY
def test_a_model_says_what_it_needs(kind: str) -> None:
    need = estimate_memory(model_of(kind), 1000)
    assert need.step > 1000 * 4 * 7  # both outputs at least
    assert need.state >= 1
    assert sum(cut_time(20, need)) == 20
