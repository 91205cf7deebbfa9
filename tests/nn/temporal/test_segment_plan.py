"""Plans of checkpoint segments: memory estimates, and the plan that fits a budget."""

from itertools import combinations, pairwise

import pytest
from test_temporal_layers_model import EVERY, model_of

from siafu.nn.temporal import MemoryEstimate, estimate_memory, plan_segments


def every_plan(num_steps: int) -> list[list[int]]:
    """All ways to cut so many steps into segments."""
    plans = []
    for count in range(num_steps):
        for ends in combinations(range(1, num_steps), count):
            bounds = [0, *ends, num_steps]
            plans.append([end - begin for begin, end in pairwise(bounds)])
    return plans


@pytest.mark.parametrize(
    "memory",
    [MemoryEstimate(900, 200, 400), MemoryEstimate(128, 640, 1280), MemoryEstimate(640, 1, 2)],
    ids=["steps", "states", "free"],
)
def test_no_plan_takes_less_memory_than_the_chosen_one(memory: MemoryEstimate) -> None:
    chosen = plan_segments(9, memory)
    assert sum(chosen) == 9
    least = min(memory.peak(lengths) for lengths in every_plan(9))
    assert memory.peak(chosen) <= least + memory.step // 64 + 1


@pytest.mark.parametrize("budget", [3000, 4000, 5000, 8100])
def test_no_plan_within_the_budget_has_fewer_segments(budget: int) -> None:
    memory = MemoryEstimate(900, 200, 400)
    chosen = plan_segments(9, memory, budget=budget)
    assert memory.peak(chosen) <= budget
    fitting = [lengths for lengths in every_plan(9) if memory.peak(lengths) <= budget]
    assert len(chosen) == min(len(lengths) for lengths in fitting)
    assert chosen[-1] == max(lengths[-1] for lengths in fitting if len(lengths) == len(chosen))


def test_if_nothing_fits_the_plan_of_least_memory_is_chosen() -> None:
    memory = MemoryEstimate(900, 200, 400)
    assert plan_segments(9, memory, budget=1000) == plan_segments(9, memory)


def test_segments_of_falling_length_take_less_memory_than_equal_ones() -> None:
    memory = MemoryEstimate(9, 2, 4)
    equal = min(memory.peak([50 // n + (k < 50 % n) for k in range(n)]) for n in range(1, 51))
    assert memory.peak(plan_segments(50, memory)) < 0.9 * equal


@EVERY
def test_every_model_has_a_memory_estimate(kind: str) -> None:
    memory = estimate_memory(model_of(kind), 1000)
    assert memory.step > 1000 * 4 * 7  # both outputs at least
    assert memory.state >= 1
    assert sum(plan_segments(20, memory)) == 20
