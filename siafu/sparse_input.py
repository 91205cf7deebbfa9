"""Read features that are mostly zero, and refuse arrays that are no sparse rows with the reason."""

from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.array_checks import check_offsets, check_width
from siafu.native import Csr, SparseRows
from siafu.user_input import MAX_NODES, check_finite, read_node_rows

MOST_SPARSE = 0.125  # share of numbers that are not zero, up to which sparse rows are smaller and faster


def read_sparse(values: Any, name: str) -> SparseRows:
    """Read sparse rows: a sparse matrix of scipy or torch, or rows that were read before."""
    if isinstance(values, SparseRows):
        return values
    if values.ndim != 2:
        raise ValueError(f"{name} is {tuple(values.shape)}; expected a row of features for each node")
    if isinstance(values, Tensor):
        return _read_torch(values.detach().cpu(), name)
    csr = values.tocsr()
    indptr, indices, data = (torch.from_numpy(array) for array in (csr.indptr, csr.indices, csr.data))
    return sparse_rows(indptr, indices, data, csr.shape[1], name)


def sparse_rows(indptr: Tensor, indices: Tensor, values: Tensor, width: int, name: str) -> SparseRows:
    """Check the arrays of compressed sparse rows, sort each row by column, and add up what stands twice."""
    check_width((indptr.numel() - 1, width), name)
    if width > MAX_NODES:
        raise ValueError(f"{name} has {width} columns; at most {MAX_NODES} are possible")
    if indices.ndim != 1 or values.shape != indices.shape:
        raise ValueError(
            f"{name} has columns {tuple(indices.shape)} and values {tuple(values.shape)}; expected as many of each"
        )
    indptr = indptr.to(torch.int64).contiguous()
    check_offsets(indptr, indices.numel(), name)
    place = native.first_out_of_range(indices.contiguous(), width)
    if place >= 0:
        raise ValueError(f"{name} has a column {int(indices[place])}; expected 0 to {width - 1}")
    indices, values = indices.to(torch.int32).contiguous(), values.to(torch.float32).contiguous()
    if native.first_unsorted_row(Csr(indptr, indices)) >= 0:
        indptr, indices, values = _canonical(indptr, indices, values)
    return SparseRows(indptr, indices, values, width)


def _read_torch(values: Tensor, name: str) -> SparseRows:
    if values.layout == torch.sparse_csr:
        return sparse_rows(
            values.crow_indices(), values.col_indices(), values.values(), values.shape[1], name
        )
    entries = values.to_sparse_coo().coalesce()
    row, column = entries.indices()
    count = torch.bincount(row, minlength=values.shape[0])
    indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return sparse_rows(indptr, column, entries.values(), values.shape[1], name)


def _canonical(indptr: Tensor, indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort each row by column, and add up the values of a column that stands there several times."""
    row = torch.arange(indptr.numel() - 1).repeat_interleave(indptr.diff())
    code, place = ((row << 32) + indices).unique(return_inverse=True)
    sums = values.new_zeros(code.numel(), dtype=torch.float64).index_add_(0, place, values.double())
    count = torch.bincount(code >> 32, minlength=indptr.numel() - 1)
    ends = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return ends, (code & (2**32 - 1)).int(), sums.float()


def is_sparse(values: Any) -> bool:
    """Return whether a value is a sparse matrix of scipy or torch, or sparse rows."""
    if isinstance(values, Tensor):
        return values.layout != torch.strided
    return isinstance(values, SparseRows) or hasattr(values, "tocsr")


def read_features(values: Any, name: str = "x") -> Tensor | SparseRows:
    """Read features; a sparse matrix most of whose numbers are not zero becomes dense."""
    if not is_sparse(values):
        return read_node_rows(values, name)
    rows = read_sparse(values, name)
    return rows if rows.density <= MOST_SPARSE else rows.to_dense()


def check_features(x: Tensor | SparseRows, what: str) -> None:
    """Refuse features that are not finite numbers; the error names row and column."""
    if isinstance(x, Tensor):
        check_finite(x, what)
        return
    bad = ~torch.isfinite(x.values)
    if bool(bad.any()):
        place = int(bad.nonzero()[0])
        row = int(torch.searchsorted(x.indptr, place, right=True)) - 1
        found, column = float(x.values[place]), int(x.indices[place])
        raise ValueError(f"{what}: row {row}, column {column} is {found}; expected a finite number")
