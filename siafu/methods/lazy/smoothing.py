"""Predictions passed on over the graph for some rounds, as many as the validation nodes find good."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from siafu.comm.config import Precision
from siafu.graph import Block
from siafu.methods.lazy.validation import val_scores
from siafu.nn.propagated import smoothed
from siafu.training.task import Task


@dataclass(frozen=True, eq=False)
class Smoothing:
    """How predictions are smoothed best.

    Attributes:
        temperature: what scores are multiplied by first.
        rounds: how often they are passed on.
        score: on the validation nodes.
        q: (D, C) float64, what comes of it.
    """

    temperature: float
    rounds: int
    score: float
    q: Tensor


def rounds_of(block: Block, p: Tensor, *, share: float, precision: Precision) -> Iterator[Tensor]:
    """``q <- (1 - share) S q + share p`` from ``q = p``, round by round: (D, C) float64. Each is collective."""
    q = p
    while True:
        q = smoothed(block, q, p, share=share, precision=precision)
        yield q


def search_smoothing(
    block: Block,
    z: Tensor,
    task: Task,
    *,
    temperatures: tuple[float, ...],
    rounds: int,
    patience: int,
    share: float,
    precision: Precision,
) -> Smoothing:
    """The temperature and the number of rounds that are best on the validation nodes for scores z (D, C). Collective.

    A temperature is left where ``patience`` rounds have brought nothing better with it.
    """
    best = Smoothing(temperatures[0], 0, -1.0, z)
    for temperature in temperatures:
        passed = rounds_of(block, (temperature * z).softmax(1), share=share, precision=precision)
        top, top_round = -1.0, 0
        for number in range(1, rounds + 1):
            q = next(passed)
            (score,) = val_scores(task, [q[task.rows["val"]]])
            if score > best.score:
                best = Smoothing(temperature, number, score, q)
            if score > top:
                top, top_round = score, number
            elif number - top_round >= patience:
                break
    return best
