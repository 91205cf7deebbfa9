"""The two steps of correct-and-smooth (Huang et al. 2020, https://arxiv.org/abs/2010.13993), on the rows of one rank.

*Correct*: the errors of the training nodes are propagated over the graph and added to the probabilities. *Smooth*: the
probabilities of labelled nodes are replaced by their labels, and all are propagated. With ``S`` of
:class:`~siafu.training.correct_and_smooth.adjacency.SymmetricAdjacency`, a step of either is
``x <- alpha S x + (1 - alpha) x_0``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.nn.streamed import Spill
from siafu.training.correct_and_smooth.adjacency import SymmetricAdjacency
from siafu.training.correct_and_smooth.config import CorrectAndSmoothConfig
from siafu.training.task import Task

TABLES = 4  # of (D, C), at most as many at once
_ROWS_PER_RANGE = 1 << 16
_LARGEST_SCALE = 1000.0  # beyond it an error is too small to be scaled
_LEAST = {"class": 1e-9, "labels": 1e-6}  # a probability whose logit can be taken


@dataclass(frozen=True, eq=False)
class CorrectAndSmooth:
    """Both steps for one task.

    Attributes:
        adjacency: the adjacency to propagate over.
        task: of kind class or labels; it has the labels.
        config: the settings.
        table: makes arrays (rows, width) of float32.
    """

    adjacency: SymmetricAdjacency
    task: Task
    config: CorrectAndSmoothConfig
    table: Spill

    def correct(self, out: Tensor) -> Tensor:
        """Compute corrected probabilities of outputs (logits): (D, C) -> (D, C). Collective."""
        z = self._probabilities(out)
        rows, y = self._labels(["train"])
        error = y - z[rows]
        propagated, size = self._propagate_errors(rows, error, z.shape), self._mean_size(error)
        for part, added in zip(z.split(_ROWS_PER_RANGE), propagated.split(_ROWS_PER_RANGE), strict=True):
            part += added * self._scale(added, size)
        return z

    def smooth(self, corrected: Tensor, splits: Sequence[str]) -> Tensor:
        """Compute outputs (logits) of corrected probabilities, from the labels of some splits. Collective."""
        rows, y = self._labels(splits)
        first = self._copy(corrected)
        first[rows] = y
        alpha, x, spare = self.config.smooth_alpha, self._copy(first), self._table(first.shape)
        for _ in range(self.config.smooth_steps):
            self.adjacency.multiply(x, spare)
            spare.mul_(alpha).add_(first, alpha=1 - alpha).clamp_(0, 1)
            x, spare = spare, x
        return _logits(x, self.task.kind)

    def _propagate_errors(self, rows: Tensor, error: Tensor, shape: Sequence[int]) -> Tensor:
        """Propagate the errors of some rows: (R, C) -> (D, C). Collective.

        With a fixed scale, the errors of the training nodes stay as they are.
        """
        alpha, fixed = self.config.correct_alpha, self.config.scale != "auto"
        x, spare = self._table(shape), self._table(shape)
        x.zero_()
        x[rows] = error
        for _ in range(self.config.correct_steps):
            self.adjacency.multiply(x, spare)
            spare.mul_(alpha)
            if fixed:
                spare[rows] = error
            else:
                spare[rows] += (1 - alpha) * error
                spare.clamp_(-1, 1)
            x, spare = spare, x
        return x

    def _mean_size(self, error: Tensor) -> float:
        """Compute the mean sum of a training node's absolute errors, over all ranks. Collective."""
        total = self.task.comm.all_reduce(error.abs().sum(dtype=torch.float64)[None], label="scores")
        return float(total) / self.task.count["train"]

    def _scale(self, propagated: Tensor, size: float) -> Tensor | float:
        """The factors of propagated errors, which make them as large as training errors are: (R, C) -> (R, 1)."""
        if self.config.scale != "auto":
            return self.config.scale
        scale = size / propagated.abs().sum(1, keepdim=True)
        return torch.where(scale <= _LARGEST_SCALE, scale, 1.0)

    def _labels(self, splits: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The labelled rows of some splits, (R,), and their labels as probabilities, (R, C)."""
        rows = torch.cat([self.task.rows[split] for split in splits])
        y = self.task.y[rows]
        if self.task.kind == "class":
            return rows, torch.nn.functional.one_hot(y, self.task.num_outputs).float()
        return rows, y

    def _probabilities(self, out: Tensor) -> Tensor:
        z = self._table(out.shape)
        for part, into in zip(out.split(_ROWS_PER_RANGE), z.split(_ROWS_PER_RANGE), strict=True):
            into.copy_(part.softmax(1) if self.task.kind == "class" else part.sigmoid())
        return z

    def _table(self, shape: Sequence[int]) -> Tensor:
        return self.table(shape[0], shape[1])

    def _copy(self, rows: Tensor) -> Tensor:
        return self._table(rows.shape).copy_(rows)


def _logits(z: Tensor, kind: str) -> Tensor:
    """Replace probabilities by logits, in place; those of a class need not add up to 1."""
    least = _LEAST[kind]
    return z.clamp_(min=least).log_() if kind == "class" else z.clamp_(least, 1 - least).logit_()
