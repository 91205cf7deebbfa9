"""Features that are mostly zero, as arrays of a store or of a part: compressed sparse rows."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from siafu.native import SparseRows
from siafu.sparse_input import sparse_rows

SPARSE_FEATURES = ("x_indptr", "x_indices", "x_values")


def arrays_of(x: SparseRows) -> dict[str, Tensor]:
    """The arrays of sparse features, by name."""
    return dict(zip(SPARSE_FEATURES, (x.indptr, x.indices, x.values), strict=True))


def join_arrays(fields: dict[str, Any], width: int | None, what: str, *, check: bool = True) -> None:
    """Replace the arrays of sparse features by ``x``; ``check`` reads and validates all of them."""
    if width is None:
        return
    indptr, indices, values = (fields.pop(name) for name in SPARSE_FEATURES)
    if check:
        fields["x"] = sparse_rows(indptr, indices, values, width, f"{what}: x")
    else:
        fields["x"] = SparseRows(indptr, indices, values, width)


def row_chunks(x: SparseRows, picked: Tensor, *, most_bytes: int) -> Iterator[SparseRows]:
    """Picked rows, so many at a time that they take about ``most_bytes``."""
    ends = (x.indptr[picked + 1] - x.indptr[picked]).cumsum(0) * 8
    begin = 0
    while begin < picked.numel():
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(torch.searchsorted(ends, before + most_bytes, right=True)))
        yield x.take(picked[begin:end])
        begin = end
