"""The plan of a race: which candidates are able, how long its rounds are, and who survives them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.config import build
from siafu.recipes.plan import (
    FREE_WORK,
    LARGE,
    SHARE,
    SHARE_LARGE,
    Candidate,
    num_rounds,
    plan_race,
    select,
    standard_error,
    survivors_of,
)

HEAVY = 1e10  # the work of an epoch that makes whole runs expensive


def candidates(*works: float, epochs: int = 200) -> list[Candidate]:
    return [
        Candidate(str(place), build({"seed": place, "train": {"epochs": epochs}}), work)
        for place, work in enumerate(works)
    ]


def added_epochs(count: int, rounds: tuple[int, ...]) -> int:
    """The epochs that all but the last survivor train."""
    trained = 0
    for begin, end in pairwise((0, *rounds)):
        trained, count = trained + count * (end - begin), survivors_of(count)
    return trained - rounds[-1]


@pytest.mark.parametrize(("num_nodes", "share"), [(LARGE - 1, SHARE), (LARGE, SHARE_LARGE)])
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_a_race_adds_at_most_its_share_of_the_work_of_the_run(
    num_nodes: int, share: float, count: int
) -> None:
    race = plan_race(candidates(*[HEAVY] * count, epochs=1000), num_nodes=num_nodes, steps_per_epoch=1)
    assert race is not None
    assert len(race.rounds) == num_rounds(len(race.candidates))
    assert 0 < added_epochs(len(race.candidates), race.rounds) <= share * 1000


def test_candidates_that_are_much_heavier_than_the_first_do_not_race() -> None:
    race = plan_race(candidates(HEAVY, 1.2 * HEAVY, 2 * HEAVY, HEAVY / 2), num_nodes=1000, steps_per_epoch=1)
    assert race is not None
    assert [each.name for each in race.candidates] == ["0", "1", "3"]
    large = plan_race(candidates(HEAVY, 1.2 * HEAVY, HEAVY / 2), num_nodes=LARGE, steps_per_epoch=1)
    assert large is not None
    assert [each.name for each in large.candidates] == ["0", "2"]


def test_in_a_run_of_little_work_heavier_candidates_may_race() -> None:
    light = FREE_WORK / 200 / 5
    race = plan_race(candidates(light, 4 * light), num_nodes=1000, steps_per_epoch=1)
    assert race is not None
    assert len(race.candidates) == 2


def test_a_run_of_few_epochs_or_with_one_candidate_has_no_race() -> None:
    assert plan_race(candidates(HEAVY, HEAVY, epochs=10), num_nodes=1000, steps_per_epoch=1) is None
    assert plan_race(candidates(HEAVY), num_nodes=1000, steps_per_epoch=1) is None


def test_an_epoch_of_many_steps_may_be_a_round() -> None:
    race = plan_race(candidates(HEAVY, HEAVY, epochs=10), num_nodes=1000, steps_per_epoch=50)
    assert race is not None
    assert race.rounds[0] >= 1


def test_a_very_long_run_has_a_short_race() -> None:
    race = plan_race(candidates(HEAVY, HEAVY, epochs=1_000_000), num_nodes=1000, steps_per_epoch=1)
    assert race is not None
    assert race.rounds == (100,)


def test_of_candidates_within_a_standard_error_the_first_is_taken() -> None:
    assert select([0.80, 0.81, 0.90], [0.02] * 3, count=1) == [2]
    assert select([0.80, 0.81, 0.815], [0.02] * 3, count=1) == [0]
    assert select([0.70, 0.81, 0.815], [0.02] * 3, count=2) == [1, 2]
    assert select([-0.9, -0.5, -0.49], [0.02] * 3, count=1) == [1], "negated errors: the lower error wins"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_survivors_are_the_best_where_errors_are_zero(scores: list[float]) -> None:
    count = survivors_of(len(scores))
    chosen = select(scores, [0.0] * len(scores), count=count)
    assert chosen == sorted(set(chosen))
    assert min(scores[place] for place in chosen) >= sorted(scores)[-count]


def test_the_standard_error_of_a_share_is_that_of_a_mean_of_zeros_and_ones() -> None:
    assert standard_error(0.5, 100, is_share=True) == pytest.approx(0.05)
    assert standard_error(0.9, 0, is_share=True) == pytest.approx(0.3)
    assert standard_error(-4.0, 100, is_share=False) == pytest.approx(0.4)
