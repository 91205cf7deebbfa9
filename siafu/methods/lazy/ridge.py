"""A linear head fitted in closed form: ridge regression by block conjugate gradients over all ranks.

It solves ``(A + l I) W = B`` with ``A = X' D X``, ``B = X' D Y`` of centred rows and targets, D the weights of rows.
Each round extends the Krylov space by ``A V`` for its newest directions V, one F x C matrix that is summed over ranks.
The space does not depend on the penalty l, so the best head in it is found for every l without further messages. All C
columns share one space, so few rounds are needed. Once it spans all directions of the rows, the head is exact.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.comm.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantized_all_reduce import QuantizedAllReduce
from siafu.methods.lazy.validation import index_of_best, val_scores
from siafu.nn.streamed import DenseRows, Streamed
from siafu.training.task import Task

_CHUNK_BYTES = 1 << 25
VALUES_PER_SCALE = 64  # values that share a scale, where sums are rounded
_RANK_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-10}  # a smaller direction is rounding error


class RowSubset:
    """A subset of the input rows, (R, F), read in ranges."""

    def __init__(self, x: DenseRows, index: Tensor | None = None) -> None:
        self._x = x
        self.index = torch.arange(x.shape[0]) if index is None else index
        self.width = x.shape[1]
        self.dtype = torch.float64 if x.dtype == torch.float64 else torch.float32

    def ranges(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows range by range, in float32 or float64."""
        step = max(1, _CHUNK_BYTES // max(1, self.dtype.itemsize * self.width))
        for begin in range(0, self.index.numel(), step):
            some = slice(begin, begin + step)
            yield some, self.take(self.index[some])

    def take(self, index: Tensor) -> Tensor:
        """Take rows of all inputs by index, in float32 or float64: (R,) -> (R, F)."""
        rows = self._x.take(index) if isinstance(self._x, Streamed) else self._x[index]
        return rows.to(self.dtype)

    def select(self, kept: Tensor) -> "RowSubset":
        """Select the rows of a mask, (R,) bool."""
        fewer = copy(self)
        fewer.index = self.index[kept]
        return fewer

    def matmul(self, weight: Tensor) -> Tensor:
        """Compute ``X W``: (F, K) -> (R, K) float64."""
        out = torch.empty(self.index.numel(), weight.shape[1], dtype=torch.float64)
        for some, rows in self.ranges():
            out[some] = (rows @ weight.to(self.dtype)).double()
        return out

    def transposed_matmul(self, values: Tensor) -> Tensor:
        """Compute ``X' V``: (R, K) -> (F, K), in the rows' own dtype."""
        out = torch.zeros(self.width, values.shape[1], dtype=self.dtype)
        for some, rows in self.ranges():
            out.addmm_(rows.t(), values[some].to(self.dtype))
        return out

    def squared_lengths(self) -> Tensor:
        """Compute the squared length of each row, (R,)."""
        found = [rows.square().sum(1) for _, rows in self.ranges()]
        return torch.cat(found).double() if found else torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class LinearHead:
    """A linear head, ``x W + b``.

    Attributes:
        weight: (F, C).
        bias: (C,).
        penalty: the ridge penalty, relative to the mean variance of a direction.
        rounds: rounds of conjugate gradients.
        score: its validation score.
    """

    weight: Tensor
    bias: Tensor
    penalty: float
    rounds: int
    score: float


class RidgeRegression:
    """Ridge regression on the rows of all ranks, round by round. The constructor and :meth:`grow_basis` are collective.

    ``target`` is (R, C); ``weight``, (R,), is the weight of each row, None for 1.
    """

    def __init__(
        self,
        rows: RowSubset,
        target: Tensor,
        comm: Comm,
        *,
        precision: Precision = "fp32",
        weight: Tensor | None = None,
    ) -> None:
        self._rows, self._comm, self._precision = rows, comm, precision
        self._sums = QuantizedAllReduce(comm, precision, width=VALUES_PER_SCALE, error_feedback=False)
        count = target.shape[0]
        self._weight = (torch.ones(count) if weight is None else weight).double()[:, None]
        target = target.double()
        self._centre(target)
        self._first = self._sum(self._weight * (target - self.mean_target))
        self._next = self._first
        self.basis = self._first.new_empty(rows.width, 0)  # (F, K), orthonormal
        self._image = self.basis  # A times each of them
        self.rounds = 0

    def _centre(self, target: Tensor) -> None:
        """Compute the means, and the mean variance of a direction, the unit of penalties."""
        weight, rows = self._weight, self._rows
        few = [weight.sum(), weight.new_tensor(weight.numel()), weight[:, 0] @ rows.squared_lengths()]
        here = torch.cat(
            [rows.transposed_matmul(weight)[:, 0].double(), torch.stack(few), (weight * target).sum(0)]
        )
        sums = self._comm.all_reduce(here.to(rows.dtype), label="gradients ridge").double()
        column, (total, count, squares), of_target = sums.split([rows.width, 3, target.shape[1]])
        total = total.clamp(min=1e-30)
        self.mean, self.mean_target = column / total, of_target / total
        variance = squares - total * self.mean.square().sum()
        self.unit = max(float(variance) / max(1.0, min(float(count), rows.width)), 1e-30)

    def grow_basis(self) -> Tensor:
        """Add directions to the basis; returns them, (F, K) with K up to C, 0 when complete. Collective."""
        fresh, before = self._next, torch.linalg.matrix_norm(self._next, 2)
        for _ in range(2):  # twice, against rounding errors
            fresh = fresh - self.basis @ (self.basis.t() @ fresh)
        left, size, _ = torch.linalg.svd(fresh, full_matrices=False)
        fresh = left[:, size > _RANK_TOLERANCE[self._rows.dtype] * before]
        room = self._rows.width - self.basis.shape[1]
        fresh = fresh[:, :room]
        if fresh.shape[1]:
            self._next = self._sum(self._weight * (self._rows.matmul(fresh) - self.mean @ fresh))
            self.basis = torch.cat([self.basis, fresh], 1)
            self._image = torch.cat([self._image, self._next], 1)
            self.rounds += 1
        return fresh

    def coefficients(self, penalties: tuple[float, ...]) -> list[Tensor]:
        """Solve for each penalty; returns coefficients in the basis, each (K, C)."""
        square = self.basis.t() @ self._image
        value, vector = torch.linalg.eigh((square + square.t()) / 2)
        seen = vector.t() @ (self.basis.t() @ self._first)
        value = value.clamp(min=0)  # negative values are rounding errors
        return [vector @ (seen / (value + penalty * self.unit)[:, None]) for penalty in penalties]

    def head(self, coefficient: Tensor, *, penalty: float, score: float = 0.0) -> LinearHead:
        """Build the head of some coefficients, which may lack the latest directions."""
        weight = self.basis[:, : coefficient.shape[0]] @ coefficient
        bias, dtype = self.mean_target - self.mean @ weight, self._rows.dtype
        return LinearHead(weight.to(dtype), bias.to(dtype), penalty, self.rounds, score)

    def _sum(self, values: Tensor) -> Tensor:
        """Compute ``X' V`` over the rows of all ranks: (R, K) -> (F, K) float64. Collective."""
        term = self._rows.transposed_matmul(values)
        return self._sums.all_reduce(term.reshape(-1), label="gradients ridge").view_as(term).double()


def fit_head(
    ridge: RidgeRegression,
    rows_val: RowSubset,
    task: Task,
    *,
    penalties: tuple[float, ...],
    rounds: int,
    patience: int,
) -> LinearHead:
    """Fit the head with the best validation score over rounds and penalties. Collective.

    Fitting stops after ``patience`` rounds without a better score.
    """
    best, best_round, done = -1.0, 0, 0
    kept, penalty = ridge.basis.new_empty(0, task.num_outputs), penalties[0]
    z_val = torch.empty(rows_val.index.numel(), 0, dtype=torch.float64)
    while done < rounds and done - best_round < patience:
        fresh = ridge.grow_basis()
        if not fresh.shape[1]:
            break
        done += 1
        z_val = torch.cat([z_val, rows_val.matmul(fresh) - ridge.mean @ fresh], 1)
        found = ridge.coefficients(penalties)
        scores = val_scores(task, [z_val @ each + ridge.mean_target for each in found])
        place = index_of_best(scores)
        if scores[place] > best:
            best, best_round, kept, penalty = scores[place], done, found[place], penalties[place]
    head = ridge.head(kept, penalty=penalty, score=best)
    return LinearHead(head.weight, head.bias, penalty, best_round, best)
