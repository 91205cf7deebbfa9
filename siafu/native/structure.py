"""CSR structure: build, transpose, sort, compare, relabel, and find values out of order or range."""

import torch
from torch import Tensor

from siafu.native import core, reference
from siafu.native.values import Csr


def build_csr(row: Tensor, col: Tensor, *, num_rows: int, origin: bool = False) -> Csr:
    """Build the CSR of the edges (row[i], col[i]), int32; edges of one row stay in the given order."""
    if core.kernels is None:
        return reference.build_csr(row, col, num_rows=num_rows, origin=origin)
    csr = _empty(num_rows, row.numel(), origin)
    core.kernels.build_csr(row.contiguous(), col.contiguous(), csr.indptr, csr.indices, csr.origin)
    return csr


def transpose(csr: Csr, *, num_cols: int, origin: bool = False, indices: Tensor | None = None) -> Csr:
    """Transpose a CSR; columns ascend within each row of the result.

    ``indices`` is an (E,) int32 buffer for the result; None allocates one.
    """
    if core.kernels is None:
        out = reference.transpose(csr, num_cols=num_cols, origin=origin)
        return out if indices is None else out._replace(indices=indices.copy_(out.indices))
    out = _empty(num_cols, csr.indices.numel(), origin)  # a page that nobody writes takes no memory
    out = out if indices is None else out._replace(indices=indices)
    core.kernels.transpose_csr(csr.indptr, csr.indices, out.indptr, out.indices, out.origin)
    return out


def sort_rows(csr: Csr) -> Csr:
    """Sort the columns of each row, stably; ``origin`` is permuted alike."""
    if core.kernels is None:
        return reference.sort_rows(csr)
    out = Csr(csr.indptr, csr.indices.clone(), None if csr.origin is None else csr.origin.clone())
    core.kernels.sort_rows(out.indptr, out.indices, out.origin)
    return out


def deduplicate(csr: Csr) -> Csr:
    """Keep the first of equal columns in each sorted row."""
    if core.kernels is None:
        return reference.deduplicate(csr)
    out = Csr(csr.indptr.clone(), csr.indices.clone(), None if csr.origin is None else csr.origin.clone())
    left = core.kernels.deduplicate_rows(out.indptr, out.indices, out.origin)
    return Csr(
        out.indptr, out.indices[:left].clone(), None if out.origin is None else out.origin[:left].clone()
    )


def count_distinct(csr: Csr) -> Tensor:
    """Count the distinct columns of each sorted row, (D,) int64."""
    if core.kernels is None:
        return reference.count_distinct(csr)
    out = torch.empty(csr.indptr.numel() - 1, dtype=torch.int64)
    core.kernels.count_distinct(csr.indptr, csr.indices, out)
    return out


def apply_delta(csr: Csr, *, add: Csr, drop: Csr) -> Csr:
    """Return the CSR with the edges of ``add`` added and those of ``drop`` removed; all have sorted rows.

    Of equal columns the first ones are removed, and added ones are placed last. So a CSR that was built from edges in
    order, and is updated by adding later edges and removing the earliest, equals the CSR built from the remaining
    edges. ``origin`` is kept if ``csr`` and ``add`` have it.
    """
    if core.kernels is None:
        return reference.apply_delta(csr, add=add, drop=drop)
    edges = csr.indices.numel() + add.indices.numel() - drop.indices.numel()
    out = _empty(csr.indptr.numel() - 1, max(0, edges), csr.origin is not None)
    row = core.kernels.apply_delta(*csr, *add, drop.indptr, drop.indices, *out)
    if row >= 0:
        raise ValueError(reference.delta_error(row))
    return out


def edges_not_in(csr: Csr, others: Csr) -> Tensor:
    """Return the positions of the edges that ``others`` lacks, ascending, (n,) int64; rows of both are sorted.

    If an edge occurs in both, but more often here, its later occurrences count as missing.
    """
    if core.kernels is None:
        return reference.edges_not_in(csr, others)
    places = torch.empty(csr.indices.numel(), dtype=torch.int64)
    count = core.kernels.places_lacking(csr.indptr, csr.indices, others.indptr, others.indices, places)
    return places[:count].clone()


def relabel(csr: Csr, order: Tensor, *, origin: bool = False) -> Csr:
    """Relabel a square CSR so that node ``order[i]`` becomes ``i``; rows come out sorted."""
    name = torch.empty(order.numel(), dtype=torch.int32)
    name[order] = torch.arange(order.numel(), dtype=torch.int32)
    return take_rows(csr, order, name=name, origin=origin)


def take_rows(csr: Csr, rows: Tensor, *, name: Tensor, origin: bool = False) -> Csr:
    """Return some rows, (R,) int64, with column ``c`` renamed to ``name[c]``, int32, not negative; rows are sorted."""
    if core.kernels is None:
        return reference.take_rows(csr, rows, name=name, origin=origin)
    out = _empty(rows.numel(), int((csr.indptr[rows + 1] - csr.indptr[rows]).sum()), origin)
    core.kernels.take_rows(csr.indptr, csr.indices, rows, name, out.indptr, out.indices, out.origin)
    return out


def mark_columns(csr: Csr, rows: Tensor, *, num_cols: int) -> Tensor:
    """Return which columns occur in some rows, (num_cols,) bool."""
    if core.kernels is None:
        return reference.mark_columns(csr, rows, num_cols=num_cols)
    mark = torch.zeros(num_cols, dtype=torch.uint8)
    core.kernels.mark_columns(csr.indptr, csr.indices, rows, mark)
    return mark.view(torch.bool)


def missing_loops(csr: Csr, weight: Tensor | None) -> Tensor:
    """Return the weight that each row lacks of exactly one self-loop, (D,) float64.

    It is 1 for a row without a self-loop. For a row with self-loops it is the weight (E,) of the last one minus the sum
    of all.
    """
    if core.kernels is None:
        return reference.missing_loops(csr, weight)
    out = torch.empty(csr.indptr.numel() - 1, dtype=torch.float64)
    core.kernels.missing_loops(csr.indptr, csr.indices, weight, out)
    return out


def split_rows(csr: Csr, column: int) -> Tensor:
    """Return where in each sorted row the columns from ``column`` on begin, (D,) int64."""
    if core.kernels is None:
        return reference.split_rows(csr, column)
    ends = torch.empty(csr.indptr.numel() - 1, dtype=torch.int64)
    core.kernels.split_rows(csr.indptr, csr.indices, column, ends)
    return ends


def locality_order(csr: Csr, *, max_community: int = 1024, rounds: int = 8) -> Tensor:
    """Return an order of the nodes, (N,) int64, that places communities (by label propagation) together."""
    if core.kernels is None:
        return reference.locality_order(csr, max_community=max_community, rounds=rounds)
    order = torch.empty(csr.indptr.numel() - 1, dtype=torch.int64)
    core.kernels.locality_order(csr.indptr, csr.indices, max_community, rounds, order)
    return order


def first_decrease(values: Tensor) -> int:
    """Return the first index of (n,) int64 after which the value is smaller; -1 if values never decrease."""
    values = values.contiguous()
    return reference.first_decrease(values) if core.kernels is None else core.kernels.first_fall(values)


def first_out_of_range(values: Tensor, limit: int) -> int:
    """Return the first index of a value outside ``[0, limit)``, in (n,) int32 or int64; -1 if there is none."""
    values = values.contiguous()
    return (
        reference.first_out_of_range(values, limit)
        if core.kernels is None
        else core.kernels.first_outside(values, limit)
    )


def first_unsorted_row(csr: Csr) -> int:
    """Return the first row whose columns are not ascending; -1 if there is none."""
    if core.kernels is None:
        return reference.first_unsorted_row(csr)
    return core.kernels.first_unsorted(csr.indptr.contiguous(), csr.indices.contiguous())


def _empty(num_rows: int, num_edges: int, origin: bool) -> Csr:
    indptr = torch.empty(num_rows + 1, dtype=torch.int64)
    indices = torch.empty(num_edges, dtype=torch.int32)
    return Csr(indptr, indices, torch.empty(num_edges, dtype=torch.int64) if origin else None)
