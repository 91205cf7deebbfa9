"""Input rows that do not fit into memory: read a range at a time, and what is done to them is done as they are read.

It knows no file: the rows are mapped by whoever made them, and so is every array that it asks for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.native import SparseRows

_RANGE_BYTES = 1 << 25


Spill = Callable[[int, int], Tensor]  # makes an array of zeros, (rows, width) float32, that lies on disk


@dataclass(frozen=True, eq=False)
class Streamed:
    """Static rows, (R, F) float32 once they are read.

    Attributes:
        rows: (R, F) float32, bfloat16 or int8, mapped into memory.
        spill: makes arrays on disk.
        scale: (R,) float32, what each row is multiplied by; or None.
        dropout: which elements fall out.
        row_id: (R,) int64, the user's row numbers, by which they fall out; or None: 0 to R - 1.
    """

    rows: Tensor
    spill: Spill
    scale: Tensor | None = None
    dropout: native.Dropout = field(default_factory=native.Dropout)
    row_id: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """(R, F)."""
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows once they are read."""
        return torch.float32

    def __getitem__(self, rows: slice) -> "Streamed":
        """The first rows."""
        assert rows.start in (None, 0)
        assert rows.step is None
        return replace(
            self,
            rows=self.rows[rows],
            scale=None if self.scale is None else self.scale[rows],
            row_id=None if self.row_id is None else self.row_id[rows],
        )

    def dropped(self, dropout: native.Dropout, row_id: Tensor | None) -> "Streamed":
        """The same rows with elements dropped."""
        return replace(self, dropout=dropout, row_id=row_id)

    def ranges(self) -> Iterator[tuple[slice, Tensor]]:
        """Every range of rows, read and made ready."""
        native.restore_readahead(self.rows)
        num_rows, width = self.shape
        size = max(1, _RANGE_BYTES // max(1, 4 * width))
        for begin in range(0, num_rows, size):
            rows = slice(begin, min(begin + size, num_rows))
            yield rows, self.read(rows)

    def whole(self) -> Tensor:
        """All rows at once, in memory."""
        out = native.empty_rows(self.shape[0], self.shape[1], torch.float32)
        for rows, chunk in self.ranges():
            out[rows] = chunk
        return out

    def read(self, rows: slice) -> Tensor:
        """A range of rows."""
        chunk = self.rows[rows].float()
        if self.scale is not None:
            chunk = chunk * self.scale[rows, None]
        if not self.dropout.threshold:
            return chunk
        ids = torch.arange(rows.start, rows.stop) if self.row_id is None else self.row_id[rows]
        return native.epilogue(chunk, bias=None, activation="none", dropout=self.dropout, row_id=ids)

    def take(self, index: Tensor) -> Tensor:
        """Rows picked by number, (R,) int64 -> (R, F)."""
        native.prefetch_rows(self.rows, index)
        picked = native.gather(self.rows, index, widen=True)
        if self.scale is not None:
            picked *= self.scale[index, None]
        if not self.dropout.threshold:
            return picked
        ids = index if self.row_id is None else self.row_id[index]
        return native.epilogue(
            picked, bias=None, activation="none", dropout=self.dropout, row_id=ids, out=picked
        )


def dense(rows: "Rows") -> "DenseRows":
    """The rows with their zeros, for layers and methods that read no sparse rows."""
    return rows.to_dense() if isinstance(rows, SparseRows) else rows


def in_memory(rows: "Rows") -> Tensor:
    """The rows as a dense array: read from disk, or with their zeros."""
    match rows:
        case Streamed():
            return rows.whole()
        case SparseRows():
            return rows.to_dense()
    return rows


DenseRows = Tensor | Streamed
Rows = DenseRows | SparseRows  # what layers read; sparse and streamed rows are inputs alone


def streamed_product(x: Streamed, weight: Tensor, add: Tensor | None) -> Tensor:
    """``x W``, or ``add + x W``: (R, I), (I, O), (R, O) or (O,) -> (R, O); the rows are read again for the gradient."""
    return _StreamedProduct.apply(weight, add, x)


class _StreamedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, add: Tensor | None, x: Streamed) -> Tensor:
        ctx.x, ctx.add_dims = x, 0 if add is None else add.ndim
        out = native.empty_rows(x.shape[0], weight.shape[1], weight.dtype)
        for rows, chunk in x.ranges():
            if add is None:
                torch.mm(chunk, weight, out=out[rows])
            else:
                torch.addmm(add[rows] if add.ndim == 2 else add, chunk, weight, out=out[rows])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (grad,) = grads
        wants_weight, wants_add, _ = ctx.needs_input_grad
        grad_weight = grad.new_zeros(ctx.x.shape[1], grad.shape[1]) if wants_weight else None
        if grad_weight is not None:
            for rows, chunk in ctx.x.ranges():
                grad_weight.addmm_(chunk.t(), grad[rows])
        grad_add = None
        if wants_add:
            grad_add = grad if ctx.add_dims == 2 else grad.sum(0)
        return grad_weight, grad_add, None
