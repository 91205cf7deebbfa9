"""A linear head fitted in closed form: ridge regression by block conjugate gradients among ranks.

``(A + l I) W = B`` with ``A = X' D X``, ``B = X' D Y`` of centred rows and targets, D the weights of rows. Each round
grows a space of directions by ``A V`` for its newest ones, which is one F x C matrix, added up over all ranks. The head
is the best one in that space, for every penalty l at no further message: the spaces of conjugate gradients do not
depend on l. All C columns share one space, so that few rounds do. Once the space holds all directions that rows have,
the head is the direct solution.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.comm.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantized_all_reduce import QuantizedAllReduce
from siafu.methods.lazy.validation import first_best, val_scores
from siafu.nn.streamed import Rows, Streamed
from siafu.training.task import Task

_CHUNK_BYTES = 1 << 25
SHARE_A_SCALE = 64  # numbers, where sums are rounded
_LEAST = {torch.float32: 1e-6, torch.float64: 1e-10}  # below it a direction is rounding


class Picked:
    """Some input rows, read a range at a time: (R, F)."""

    def __init__(self, x: Rows, index: Tensor | None = None) -> None:
        self._x = x
        self.index = torch.arange(x.shape[0]) if index is None else index
        self.width = x.shape[1]
        self.dtype = torch.float64 if x.dtype == torch.float64 else torch.float32

    def ranges(self) -> Iterator[tuple[slice, Tensor]]:
        """Every range of rows, in float32 or float64."""
        step = max(1, _CHUNK_BYTES // max(1, self.dtype.itemsize * self.width))
        for begin in range(0, self.index.numel(), step):
            some = slice(begin, begin + step)
            yield some, self.take(self.index[some])

    def take(self, index: Tensor) -> Tensor:
        """Some rows of all inputs, in float32 or float64: (R,) -> (R, F)."""
        rows = self._x.take(index) if isinstance(self._x, Streamed) else self._x[index]
        return rows.to(self.dtype)

    def some(self, kept: Tensor) -> "Picked":
        """Those of the rows that are kept, (R,) bool."""
        fewer = copy(self)
        fewer.index = self.index[kept]
        return fewer

    def times(self, weight: Tensor) -> Tensor:
        """``X W``: (F, K) -> (R, K) float64."""
        out = torch.empty(self.index.numel(), weight.shape[1], dtype=torch.float64)
        for some, rows in self.ranges():
            out[some] = (rows @ weight.to(self.dtype)).double()
        return out

    def turned(self, values: Tensor) -> Tensor:
        """``X' V``: (R, K) -> (F, K), in the rows' own dtype."""
        out = torch.zeros(self.width, values.shape[1], dtype=self.dtype)
        for some, rows in self.ranges():
            out.addmm_(rows.t(), values[some].to(self.dtype))
        return out

    def squares(self) -> Tensor:
        """The square of the length of each row, (R,)."""
        found = [rows.square().sum(1) for _, rows in self.ranges()]
        return torch.cat(found).double() if found else torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Head:
    """``x W + b``.

    Attributes:
        weight: (F, C).
        bias: (C,).
        penalty: in parts of the mean variance of a direction.
        rounds: of conjugate gradients.
        score: on the validation nodes.
    """

    weight: Tensor
    bias: Tensor
    penalty: float
    rounds: int
    score: float


class Ridge:
    """Ridge regression on the rows of all ranks, round by round. Making one is collective, and :meth:`grow`.

    ``target`` is (R, C); ``weight`` (R,) says how much each row counts, None: 1.
    """

    def __init__(
        self,
        rows: Picked,
        target: Tensor,
        comm: Comm,
        *,
        precision: Precision = "fp32",
        weight: Tensor | None = None,
    ) -> None:
        self._rows, self._comm, self._precision = rows, comm, precision
        self._sums = QuantizedAllReduce(comm, precision, width=SHARE_A_SCALE, error_feedback=False)
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
        """Find the means, and the mean variance of a direction, which penalties are parts of."""
        weight, rows = self._weight, self._rows
        few = [weight.sum(), weight.new_tensor(weight.numel()), weight[:, 0] @ rows.squares()]
        here = torch.cat([rows.turned(weight)[:, 0].double(), torch.stack(few), (weight * target).sum(0)])
        sums = self._comm.all_reduce(here.to(rows.dtype), label="gradients ridge").double()
        column, (total, count, squares), of_target = sums.split([rows.width, 3, target.shape[1]])
        total = total.clamp(min=1e-30)
        self.mean, self.mean_target = column / total, of_target / total
        variance = squares - total * self.mean.square().sum()
        self.unit = max(float(variance) / max(1.0, min(float(count), rows.width)), 1e-30)

    def grow(self) -> Tensor:
        """Add directions; returns them, (F, K) with K up to C, and none where there are no more. Collective."""
        fresh, before = self._next, torch.linalg.matrix_norm(self._next, 2)
        for _ in range(2):  # once more, for what rounding left
            fresh = fresh - self.basis @ (self.basis.t() @ fresh)
        left, size, _ = torch.linalg.svd(fresh, full_matrices=False)
        fresh = left[:, size > _LEAST[self._rows.dtype] * before]
        room = self._rows.width - self.basis.shape[1]
        fresh = fresh[:, :room]
        if fresh.shape[1]:
            self._next = self._sum(self._weight * (self._rows.times(fresh) - self.mean @ fresh))
            self.basis = torch.cat([self.basis, fresh], 1)
            self._image = torch.cat([self._image, self._next], 1)
            self.rounds += 1
        return fresh

    def coefficients(self, penalties: tuple[float, ...]) -> list[Tensor]:
        """The best head in the space for each penalty, by its coefficients in the basis: each (K, C)."""
        square = self.basis.t() @ self._image
        value, vector = torch.linalg.eigh((square + square.t()) / 2)
        seen = vector.t() @ (self.basis.t() @ self._first)
        value = value.clamp(min=0)  # what is below is rounding
        return [vector @ (seen / (value + penalty * self.unit)[:, None]) for penalty in penalties]

    def head(self, coefficient: Tensor, *, penalty: float, score: float = 0.0) -> Head:
        """The head of such coefficients; later directions may be missing from them."""
        weight = self.basis[:, : coefficient.shape[0]] @ coefficient
        bias, dtype = self.mean_target - self.mean @ weight, self._rows.dtype
        return Head(weight.to(dtype), bias.to(dtype), penalty, self.rounds, score)

    def _sum(self, values: Tensor) -> Tensor:
        """``X' V`` over the rows of all ranks: (R, K) -> (F, K) float64."""
        term = self._rows.turned(values)
        return self._sums.all_reduce(term.reshape(-1), label="gradients ridge").view_as(term).double()


def fit_head(
    ridge: Ridge,
    rows_val: Picked,
    task: Task,
    *,
    penalties: tuple[float, ...],
    rounds: int,
    patience: int,
) -> Head:
    """The head that is best on the validation nodes, among so many rounds and these penalties. Collective.

    It ends where no penalty has been better for ``patience`` rounds.
    """
    best, best_round, done = -1.0, 0, 0
    kept, penalty = ridge.basis.new_empty(0, task.num_outputs), penalties[0]
    z_val = torch.empty(rows_val.index.numel(), 0, dtype=torch.float64)
    while done < rounds and done - best_round < patience:
        fresh = ridge.grow()
        if not fresh.shape[1]:
            break
        done += 1
        z_val = torch.cat([z_val, rows_val.times(fresh) - ridge.mean @ fresh], 1)
        found = ridge.coefficients(penalties)
        scores = val_scores(task, [z_val @ each + ridge.mean_target for each in found])
        place = first_best(scores)
        if scores[place] > best:
            best, best_round, kept, penalty = scores[place], done, found[place], penalties[place]
    head = ridge.head(kept, penalty=penalty, score=best)
    return Head(head.weight, head.bias, penalty, best_round, best)
