"""Smoothing of predictions over the graph (personalised PageRank); validation chooses temperature and rounds."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from siafu.comm.config import Precision
from siafu.context import Context
from siafu.methods.lazy.validation import val_scores
from siafu.nn.propagated import smoothed
from siafu.training.task import Task


@dataclass(frozen=True, eq=False)
class SmoothingResult:
    """The best smoothing that was found.

    Attributes:
        temperature: the factor of the scores before softmax.
        rounds: the number of propagation rounds.
        score: its validation score.
        q: (D, C) float64, the smoothed probabilities.
    """

    temperature: float
    rounds: int
    score: float
    q: Tensor


def smoothing_rounds(context: Context, p: Tensor, *, share: float, precision: Precision) -> Iterator[Tensor]:
    """Iterate ``q <- (1 - share) S q + share p`` from ``q = p``: yields (D, C) float64. Each round is collective."""
    q = p
    while True:
        q = smoothed(context, q, p, share=share, precision=precision)
        yield q


def search_smoothing(
    context: Context,
    z: Tensor,
    task: Task,
    *,
    temperatures: tuple[float, ...],
    rounds: int,
    patience: int,
    share: float,
    precision: Precision,
) -> SmoothingResult:
    """Find the temperature and number of rounds with the best validation score, for scores z (D, C). Collective.

    The search leaves a temperature after ``patience`` rounds without a better score.
    """
    best = SmoothingResult(temperatures[0], 0, -1.0, z)
    for temperature in temperatures:
        passed = smoothing_rounds(context, (temperature * z).softmax(1), share=share, precision=precision)
        top, top_round = -1.0, 0
        for number in range(1, rounds + 1):
            q = next(passed)
            (score,) = val_scores(task, [q[task.rows["val"]]])
            if score > best.score:
                best = SmoothingResult(temperature, number, score, q)
            if score > top:
                top, top_round = score, number
            elif number - top_round >= patience:
                break
    return best
