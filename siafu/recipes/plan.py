"""``RacePlan``: the candidates of a race, how long its rounds are and who survives them.

Work is counted, and time is not read, so that every machine and every number of ranks plans the same race.
"""

from collections.abc import Sequence
from math import ceil, sqrt
from typing import NamedTuple

from siafu.config import Config

LARGE = 100_000  # nodes; from here on a race may cost less
SHARE, SHARE_LARGE = 0.5, 0.25  # of the work of the run that a race may add
HEAVIER, HEAVIER_LARGE = 1.3, 1.1  # the work of a candidate, in that of the first
FREE_WORK = 5e10  # multiplications: a run of less than that may get a candidate of more
_FEWEST_STEPS = 10  # of the optimiser, before candidates are compared
_MOST_EPOCHS = 100  # of a round


class Candidate(NamedTuple):
    """A candidate of a race.

    Attributes:
        name: of its recipe.
        config: the resolved config.
        work: of one epoch, in multiplications with an addition.
    """

    name: str
    config: Config
    work: float


class RacePlan(NamedTuple):
    """The plan of a race.

    Attributes:
        candidates: the first is the default.
        rounds: the epochs after which candidates are compared; after the last one, one is left.
    """

    candidates: tuple[Candidate, ...]
    rounds: tuple[int, ...]


def plan_race(candidates: Sequence[Candidate], *, num_nodes: int, steps_per_epoch: int) -> RacePlan | None:
    """Plan the rounds; None where no race is worth its work."""
    large = num_nodes >= LARGE
    first = candidates[0]
    whole = first.work * first.config.train.epochs
    most = max(FREE_WORK, (HEAVIER_LARGE if large else HEAVIER) * whole) / first.config.train.epochs
    able = tuple(each for each in candidates if each is first or each.work <= most)
    while len(able) > 1:
        rounds = num_rounds(len(able))
        epochs = int((SHARE_LARGE if large else SHARE) * max(whole, FREE_WORK) / _added_work(able))
        epochs = min(epochs, first.config.train.epochs // (2 * rounds), _MOST_EPOCHS)
        if epochs * steps_per_epoch >= _FEWEST_STEPS:
            return RacePlan(able, tuple(epochs * (number + 1) for number in range(rounds)))
        able = able[:-1]
    return None


def num_rounds(candidates: int) -> int:
    """The number of rounds until one of so many candidates is left."""
    rounds = 0
    while candidates > 1:
        candidates, rounds = survivors_of(candidates), rounds + 1
    return rounds


def survivors_of(candidates: int) -> int:
    """The number of candidates that survive a round."""
    return ceil(candidates / 2)


def select(scores: Sequence[float], errors: Sequence[float], *, count: int) -> list[int]:
    """Choose so many candidates by their scores, higher being better; returns their places in order.

    Of those within a standard error of the best, the first is taken, again and again.
    """
    left, chosen = list(range(len(scores))), list[int]()
    while len(chosen) < count:
        best = max(left, key=lambda place: scores[place])
        taken = next(place for place in left if scores[place] >= scores[best] - errors[best])
        left.remove(taken)
        chosen.append(taken)
    return sorted(chosen)


def standard_error(score: float, count: int, *, is_share: bool) -> float:
    """The standard error of a score over ``count`` validation nodes.

    That of a share is that of a mean of zeros and ones. A mean absolute error spreads about as much as it is large.
    """
    if not is_share:
        return abs(score) / sqrt(max(1, count))
    share = min(1.0, max(0.0, score))
    return sqrt(share * (1 - share) / max(1, count))


def _added_work(candidates: Sequence[Candidate]) -> float:
    """The most work that a round's length of one epoch adds to the run: that of candidates which do not go on."""
    work = sorted((each.work for each in candidates), reverse=True)
    added, alive = 0.0, len(work)
    rounds = num_rounds(alive)
    for _ in range(rounds):
        added += sum(work[:alive])
        alive = survivors_of(alive)
    return max(work[0], added - rounds * work[0])
