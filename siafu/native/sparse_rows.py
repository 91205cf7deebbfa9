"""``SparseRows``: rows most of whose numbers are zero, such as bags of words; their products, sums and dense copies.

Results of the compiled core equal those of dense rows to rounding, and are the same for any number of threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from siafu.native import core, sparse_rows_reference
from siafu.native.memory import empty_rows
from siafu.native.products import parts_of
from siafu.native.values import Csr, Dropout, Epilogue


@dataclass(frozen=True, eq=False)
class SparseRows:
    """R rows of F numbers as compressed sparse rows, with the dropout that acts on them when they are read.

    Attributes:
        indptr: (R + 1,) int64, non-decreasing from 0.
        indices: (Z,) int32, the columns of each row's numbers, ascending within a row, each once.
        values: (Z,) float32; every other number is zero.
        width: F.
        dropout: the dropout of elements; ``row_id`` (R,) int64 are the user's row numbers, by which it falls, or None.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor
    width: int
    dropout: Dropout = field(default_factory=Dropout)
    row_id: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """(R, F)."""
        return torch.Size((self.indptr.numel() - 1, self.width))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def requires_grad(self) -> bool:
        """False: sparse rows are inputs."""
        return False

    @property
    def density(self) -> float:
        """The share of numbers that are stored."""
        return self.values.numel() / max(1, self.shape.numel())

    @property
    def csr(self) -> Csr:
        """The columns alone."""
        return Csr(self.indptr, self.indices)

    def numel(self) -> int:
        """R times F."""
        return self.shape.numel()

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"SparseRows({self.shape[0]} x {self.width}, {100 * self.density:.1f} % not zero)"

    def __getitem__(self, rows: slice) -> "SparseRows":
        """A range of rows, a view of the same values."""
        start, stop, step = rows.indices(len(self))
        assert step == 1
        begin, end = int(self.indptr[start]), int(self.indptr[stop])
        return replace(
            self,
            indptr=self.indptr[start : stop + 1] - begin,
            indices=self.indices[begin:end],
            values=self.values[begin:end],
            row_id=self._row_id[start:stop] if self.dropout.threshold else self._known(start, stop),
        )

    def take(self, index: Tensor) -> "SparseRows":
        """Rows picked by number, (K,) int64 -> K rows; those of a dropout keep their ids."""
        index = index.long().contiguous()
        count = self.indptr[index + 1] - self.indptr[index]
        indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
        row_id = self._row_id[index] if self.dropout.threshold else None
        if self.row_id is not None:
            row_id = self.row_id[index]
        if core.kernels is None:
            place = sparse_rows_reference.places_of(self.indptr, index)
            picked = self.indices[place], self.values[place]
        else:
            total = int(indptr[-1])
            picked = torch.empty(total, dtype=torch.int32), torch.empty(total, dtype=self.dtype)
            core.kernels.sparse_take(self._arguments, index, indptr, *picked)
        return replace(self, indptr=indptr, indices=picked[0], values=picked[1], row_id=row_id)

    def dropped(self, dropout: Dropout, row_id: Tensor | None) -> "SparseRows":
        """The same rows, of which elements are dropped when they are read."""
        return replace(self, dropout=dropout, row_id=row_id)

    def scaled(self, scale: Tensor) -> "SparseRows":
        """Each row times a number, (R,)."""
        return replace(self, values=self.values * scale.repeat_interleave(self.indptr.diff()))

    def divided(self, divisor: Tensor) -> "SparseRows":
        """Each row divided by a number, (R,)."""
        return replace(self, values=self.values / divisor.repeat_interleave(self.indptr.diff()))

    def row_sums(self) -> Tensor:
        """The sum of each row, (R,)."""
        row = torch.arange(len(self)).repeat_interleave(self.indptr.diff())
        return self.values.new_zeros(len(self)).index_add_(0, row, self.values)

    def to_dense(self) -> Tensor:
        """All numbers, (R, F)."""
        return self.dense_rows(None)

    def dense_rows(self, index: Tensor | None) -> Tensor:
        """Rows picked by number, (K,) int64 -> (K, F); all of them by default."""
        if not has_sparse_kernel(self):
            return sparse_rows_reference.to_dense(self if index is None else self.take(index))
        index = None if index is None else index.long().contiguous()
        out = empty_rows(len(self) if index is None else index.numel(), self.width, self.dtype)
        core.kernels.sparse_dense(self._arguments, index, out)
        return out

    @staticmethod
    def from_dense(x: Tensor) -> "SparseRows":
        """Rows (R, F) of numbers most of which are zero."""
        count = torch.cat(
            [part.count_nonzero(1) for part in x.split(max(1, (1 << 24) // max(1, x.shape[1])))]
        )
        indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
        indices, values = torch.empty(int(indptr[-1]), dtype=torch.int32), x.new_empty(int(indptr[-1]))
        begin, step = 0, max(1, (1 << 22) // max(1, x.shape[1]))
        for part in x.split(step):
            row, column = part.nonzero(as_tuple=True)
            end = begin + row.numel()
            indices[begin:end], values[begin:end] = column.int(), part[row, column]
            begin = end
        return SparseRows(indptr, indices, values.float(), x.shape[1])

    @staticmethod
    def concatenate(parts: Sequence["SparseRows"]) -> "SparseRows":
        """Rows after rows of the same width, without a dropout."""
        assert not any(part.dropout.threshold for part in parts)
        counts = torch.cat([part.indptr.diff() for part in parts])
        return SparseRows(
            torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            torch.cat([part.indices for part in parts]),
            torch.cat([part.values for part in parts]),
            parts[0].width,
        )

    @property
    def _row_id(self) -> Tensor:
        return torch.arange(len(self)) if self.row_id is None else self.row_id

    def _known(self, start: int, stop: int) -> Tensor | None:
        return None if self.row_id is None else self.row_id[start:stop]

    @property
    def _arguments(self) -> tuple[Any, ...]:
        """The fields in the order of the compiled core's arguments."""
        drop, row_id = self.dropout, None if self.row_id is None else self.row_id.contiguous()
        return (
            self.indptr.contiguous(),
            self.indices.contiguous(),
            self.values.contiguous(),
            self.width,
            row_id,
            drop.key,
            drop.threshold,
            drop.scale,
        )


def sparse_product(
    x: SparseRows,
    weight: Tensor,
    *,
    add: Tensor | None = None,
    after: Epilogue | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``add + x W`` and its epilogue: R x F, (F, O) -> (R, O).

    ``add`` is (R, O) or (O,); ``out`` may be ``add``.
    """
    if not has_sparse_kernel(x, weight):
        return sparse_rows_reference.product(x, weight, add=add, after=after, out=out)
    out = empty_rows(len(x), weight.shape[1], weight.dtype) if out is None else out
    add = None if add is None else add.contiguous()
    how = None if after is None else after.arguments
    core.kernels.sparse_product(x._arguments, weight.contiguous(), add, out, how)
    return out


def sparse_product_backward(
    x: SparseRows,
    grad: Tensor,
    *,
    output: Tensor | None = None,
    after: Epilogue | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the weight, (F, O), and of the bias, (O,), given that of the result, (R, O).

    ``output`` is the result, which is read if there was an epilogue.
    """
    if not has_sparse_kernel(x, grad):
        return sparse_rows_reference.product_backward(x, grad, output=output, after=after)
    grad = grad if grad.stride(1) == 1 else grad.contiguous()
    (num_rows, width), pad = grad.shape, core.kernels.sparse_pad
    padded = -(-width // pad) * pad
    size = (parts_of(num_rows), x.width + 1, padded)
    sums = empty_rows(size[0], size[1] * size[2], grad.dtype).view(size)
    out = empty_rows(x.width + 1, width, grad.dtype)
    how = None if after is None else after.arguments
    core.kernels.sparse_product_backward(x._arguments, grad, output, how, sums, out)
    return out[:-1], out[-1]


def sparse_sum(
    csr: Csr,
    x_src: SparseRows,
    *,
    weight: Tensor | None = None,
    pre: Tensor | None = None,
    post: Tensor | None = None,
    loop: Tensor | None = None,
) -> SparseRows:
    """Sum in-neighbour rows, S x F -> D x F, as :func:`siafu.native.spmm` does."""
    if not has_sparse_kernel(x_src, *(each for each in (weight, pre, post, loop) if each is not None)):
        return sparse_rows_reference.sum_rows(csr, x_src, weight=weight, pre=pre, post=post, loop=loop)
    indptr = torch.zeros(csr.indptr.numel(), dtype=torch.int64)
    given = (csr.indptr, csr.indices, x_src._arguments, weight, pre, post, loop, indptr)
    core.kernels.sparse_sum(*given, None, None)
    indptr.cumsum_(0)
    total = int(indptr[-1])
    indices, values = torch.empty(total, dtype=torch.int32), torch.empty(total, dtype=x_src.dtype)
    core.kernels.sparse_sum(*given, indices, values)
    return SparseRows(indptr, indices, values, x_src.width)


def has_sparse_kernel(x: SparseRows, *others: Tensor) -> bool:
    """Return whether the compiled core has a kernel for values of these dtypes."""
    values = (x.values, *others)
    return core.kernels is not None and all(each.dtype == torch.float32 for each in values)
