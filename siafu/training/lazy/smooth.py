"""Predictions passed on over the graph for some rounds, as many as the validation nodes find good."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.comm.config import Precision
from siafu.graph import Block
from siafu.nn.propagated import smoothed
from siafu.training.lazy.judged import val_scores
from siafu.training.task import Task

Reset = Callable[[Tensor], Tensor]


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


def rounds_of(
    block: Block, p: Tensor, *, share: float, precision: Precision, reset: Reset = lambda q: q
) -> Iterator[Tensor]:
    """``q <- (1 - share) S q + share p`` from ``q = p``, round by round: (D, C) float64. Each is collective.

    ``reset`` is done to p and after each round, such as :func:`known_labels`.
    """
    p = q = reset(p)
    while True:
        q = reset(smoothed(block, q, p, share=share, precision=precision))
        yield q


def known_labels(task: Task) -> Reset:
    """Put the labels of training nodes, which are known, in the place of what is said of them.

    A model that does so knows its nodes, and is good for no others.
    """
    rows = task.rows["train"]
    known = torch.nn.functional.one_hot(task.y[rows], task.num_outputs).double()

    def reset(q: Tensor) -> Tensor:
        return q.index_copy(0, rows, known)

    return reset


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
        passed, top, top_round = (
            rounds_of(block, (temperature * z).softmax(1), share=share, precision=precision),
            -1.0,
            0,
        )
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
