"""``SparseRows``: rows most of whose numbers are zero, such as bags of words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.native import core, reference
from siafu.native.memory import empty_rows
from siafu.native.values import Csr, Dropout


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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All numbers as a NumPy array, (R, F)."""
        if copy is False:
            raise ValueError("sparse rows become an array by a copy; leave copy at None")
        dense = self.to_dense().numpy()
        return dense if dtype is None else dense.astype(dtype)

    def __getitem__(self, rows: slice) -> "SparseRows":
        """A range of rows, a view of the same values."""
        if not isinstance(rows, slice):
            raise TypeError(
                f"sparse rows take a range of rows, not {type(rows).__name__}; use take(index), or to_dense()"
            )
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
            place = _places_of(self.indptr, index)
            picked = self.indices[place], self.values[place]
        else:
            total = int(indptr[-1])
            picked = torch.empty(total, dtype=torch.int32), torch.empty(total, dtype=self.dtype)
            core.kernels.sparse_take(self.arguments, index, indptr, *picked)
        return replace(self, indptr=indptr, indices=picked[0], values=picked[1], row_id=row_id)

    def dropped(self, dropout: Dropout, row_id: Tensor | None) -> "SparseRows":
        """The same rows, of which elements are dropped when they are read."""
        return replace(self, dropout=dropout, row_id=row_id)

    def scaled(self, scale: Tensor) -> "SparseRows":
        """Each row times a number, (R,)."""
        return replace(self, values=self.values * scale.repeat_interleave(self.indptr.diff()))

    def divided(self, divisor: Tensor, *, out: Tensor | None = None) -> "SparseRows":
        """Each row divided by a number, (R,); the values are written to ``out``, (Z,), if it is given."""
        out = torch.empty_like(self.values) if out is None else out
        for rows in self.row_ranges():
            begin, end = int(self.indptr[rows.start]), int(self.indptr[rows.stop])
            by = divisor[rows].repeat_interleave(self.indptr[rows.start : rows.stop + 1].diff())
            torch.div(self.values[begin:end], by, out=out[begin:end])
        return replace(self, values=out)

    def row_ranges(self) -> Iterator[slice]:
        """Ranges of rows, about as many numbers at a time as lie in a cache."""
        step = max(1, (1 << 22) * len(self) // max(1, self.values.numel()))
        for begin in range(0, len(self), step):
            yield slice(begin, min(begin + step, len(self)))

    def row_sums(self) -> Tensor:
        """The sum of each row, (R,)."""
        out = self.values.new_zeros(len(self))
        for rows in self.row_ranges():
            part = self[rows]
            out[rows].index_add_(
                0, torch.arange(len(part)).repeat_interleave(part.indptr.diff()), part.values
            )
        return out

    def to_dense(self, *, out: Tensor | None = None) -> Tensor:
        """All numbers, (R, F), in ``out`` if it is given."""
        return self.dense_rows(None, out=out)

    def dense_rows(self, index: Tensor | None, *, out: Tensor | None = None) -> Tensor:
        """Rows picked by number, (K,) int64 -> (K, F); all of them by default."""
        if not has_sparse_kernel(self):
            rows = _to_dense(self if index is None else self.take(index))
            return rows if out is None else out.copy_(rows)
        index = None if index is None else index.long().contiguous()
        if out is None:
            out = empty_rows(len(self) if index is None else index.numel(), self.width, self.dtype)
        core.kernels.sparse_dense(self.arguments, index, out)
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
    def arguments(self) -> tuple[Any, ...]:
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


def has_sparse_kernel(x: SparseRows, *others: Tensor) -> bool:
    """Return whether the compiled core has a kernel for values of these dtypes."""
    values = (x.values, *others)
    return core.kernels is not None and all(each.dtype == torch.float32 for each in values)


def _places_of(indptr: Tensor, index: Tensor) -> Tensor:
    """The places of the numbers of some rows, row after row."""
    count = indptr[index + 1] - indptr[index]
    first = (indptr[index] - count.cumsum(0) + count).repeat_interleave(count)
    return first + torch.arange(first.numel())


def _to_dense(x: SparseRows) -> Tensor:
    """All numbers, (R, F), in plain torch."""
    row = torch.arange(len(x)).repeat_interleave(x.indptr.diff())
    out = x.values.new_zeros(x.shape)
    out[row, x.indices.long()] = x.values
    if not x.dropout.threshold:
        return out
    row_id = torch.arange(len(x)) if x.row_id is None else x.row_id
    return torch.where(reference.dropout_mask(x.dropout, row_id, x.width), out * x.dropout.scale, 0.0)
