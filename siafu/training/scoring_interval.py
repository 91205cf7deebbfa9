"""How often to score: by a count of the work of training and of scoring, which is the same on every machine."""

from math import ceil
from typing import NamedTuple


class EpochWork(NamedTuple):
    """The work of a run, in multiplications with an addition.

    Attributes:
        train: of training one epoch.
        score: of scoring once.
        fixed: of scoring that every run does: before the first epoch, and of the best weights at the end.
    """

    train: float
    score: float
    fixed: float = 0.0


def scoring_interval(work: EpochWork, epochs: int) -> int:
    """Return the fewest epochs from one scoring to the next with which scoring is at most a third of all work.

    Where even one scoring is more than that, only the last epoch is scored.
    """
    left = epochs * work.train / 2 - work.fixed
    most = int(min(epochs, left / work.score)) if work.score else epochs
    return min(epochs, ceil(epochs / max(1, most)))
