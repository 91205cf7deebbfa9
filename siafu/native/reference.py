"""Each kernel in plain torch: the reference for tests, and the fallback without the compiled core."""

import torch
from torch import Tensor

from siafu.native.values import Csr, Dropout

STORAGE_DTYPES = (torch.bfloat16, torch.int8)  # what rows are stored in, and never calculated with
_MASK = 0xFFFFFFFF
_CHUNK = 1 << 22  # numbers that are looked at together


def _row_edge(csr: Csr) -> Tensor:
    return torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())  # (E,)


def spmm(
    csr: Csr,
    x_src: Tensor,
    *,
    weight: Tensor | None = None,
    pre: Tensor | None = None,
    post: Tensor | None = None,
    loop: Tensor | None = None,
    ends: Tensor | None = None,
    first_src: int = 0,
    add_to: Tensor | None = None,
) -> Tensor:
    """Sum in-neighbour rows; see :func:`siafu.native.spmm`."""
    begins = csr.indptr[:-1] if ends is None else csr.indptr[: ends.numel()]
    count = (csr.indptr[1:] if ends is None else ends) - begins
    row_edge = torch.arange(count.numel()).repeat_interleave(count)  # (E,)
    edge = torch.arange(row_edge.numel()) + (begins - count.cumsum(0) + count)[row_edge]
    x_src = x_src.float() if x_src.dtype in STORAGE_DTYPES else x_src
    if pre is not None:
        x_src = x_src * pre[:, None]
    m_edge = x_src[csr.indices[edge].long() - first_src]  # (E, F)
    if weight is not None:
        m_edge = m_edge * weight[edge][:, None]
    out = x_src.new_zeros(count.numel(), x_src.shape[1]).index_add(0, row_edge, m_edge)
    if loop is not None:
        rows = loop.numel()
        out = torch.cat([out[:rows] + x_src[:rows] * loop[:, None], out[rows:]])
    out = out if post is None else out * post[:, None]
    return out if add_to is None else add_to.add_(out)


def segment_max(csr: Csr, x_src: Tensor, *, node_id: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Maximum of in-neighbour rows; see :func:`siafu.native.segment_max`."""
    if node_id is not None:  # in the order of ids the first is the one with the lowest
        rank = torch.empty_like(node_id)
        rank[node_id.argsort()] = torch.arange(node_id.numel())
        order = rank[csr.indices.long()].argsort(stable=True)
        order = order[_row_edge(csr)[order].argsort(stable=True)]
        csr = Csr(csr.indptr, csr.indices[order], None)
    row_edge = _row_edge(csr)
    shape = csr.indptr.numel() - 1, x_src.shape[1]
    m_edge = x_src[csr.indices.long()]
    index = row_edge[:, None].expand_as(m_edge)
    out = x_src.new_zeros(shape).scatter_reduce(0, index, m_edge, "amax", include_self=False)
    place = torch.arange(row_edge.numel())[:, None].expand_as(m_edge)
    none = torch.iinfo(torch.int64).max
    place = torch.where((m_edge == out[row_edge]) | m_edge.isnan(), place, none)  # the first that reaches it
    first = torch.full(shape, none).scatter_reduce(0, index, place, "amin")
    source = torch.cat([csr.indices, csr.indices.new_tensor([-1])])[first.clamp(max=row_edge.numel())]
    return out, source


def segment_max_backward(transposed: Csr, grad_dst: Tensor, source: Tensor) -> Tensor:
    """Give each gradient to its source; see :func:`siafu.native.segment_max_backward`."""
    out = grad_dst.new_zeros(transposed.indptr.numel(), grad_dst.shape[1])  # one row more, for those without
    index = torch.where(source < 0, out.shape[0] - 1, source).long()
    return out.scatter_add(0, index, grad_dst)[:-1].contiguous()


def _row_state(key: int, row_id: Tensor) -> Tensor:
    """The 32-bit state of each row; 64-bit unsigned arithmetic in signed tensors, which wrap alike."""

    def signed(value: int) -> int:
        return value - 2**64 if value >= 2**63 else value

    def shift(z: Tensor, bits: int) -> Tensor:
        return (z >> bits) & ((1 << (64 - bits)) - 1)

    z = signed(key) + row_id * signed(0x9E3779B97F4A7C15)
    z = (z ^ shift(z, 30)) * signed(0xBF58476D1CE4E5B9)
    z = (z ^ shift(z, 27)) * signed(0x94D049BB133111EB)
    return (z ^ shift(z, 31)) & _MASK


def dropout_mask(dropout: Dropout, row_id: Tensor, width: int) -> Tensor:
    """Return which elements are kept, (R, F) bool."""
    h = (_row_state(dropout.key, row_id)[:, None] + torch.arange(width) * 0x9E3779B9) & _MASK
    h = ((h ^ (h >> 16)) * 0x7FEB352D) & _MASK
    h = ((h ^ (h >> 15)) * 0x846CA68B) & _MASK
    return (h ^ (h >> 16)) >= dropout.threshold


def epilogue(
    x: Tensor,
    *,
    bias: Tensor | None,
    activation: str,
    dropout: Dropout,
    row_id: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Bias, activation, dropout; see :func:`siafu.epilogue`."""
    h = x if bias is None else x + bias
    match activation:
        case "relu":
            h = h.relu()
        case "elu":
            h = torch.nn.functional.elu(h)
    if dropout.threshold:
        rows = torch.arange(x.shape[0]) if row_id is None else row_id
        h = torch.where(dropout_mask(dropout, rows, x.shape[1]), h * dropout.scale, 0.0)
    return h.clone() if out is None else out.copy_(h)


def epilogue_backward(
    grad: Tensor, output: Tensor, *, activation: str, dropout: Dropout, row_id: Tensor | None, with_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of :func:`epilogue`; see :func:`siafu.epilogue_backward`."""
    grad = grad * dropout.scale
    if dropout.threshold:
        rows = torch.arange(grad.shape[0]) if row_id is None else row_id
        grad = torch.where(dropout_mask(dropout, rows, grad.shape[1]), grad, 0.0)
    h = output / dropout.scale
    match activation:
        case "relu":
            grad = torch.where(h > 0, grad, 0.0)
        case "elu":
            grad = torch.where(h > 0, grad, grad * (h + 1))
    return grad, grad.sum(0) if with_bias else None


def gather(rows: Tensor, index: Tensor, *, widen: bool = False, more: Tensor | None = None) -> Tensor:
    """Rows picked by number; see :func:`siafu.native.gather`."""
    picked = rows[index] if more is None else torch.cat([rows, more])[index]
    return picked.float() if widen and picked.dtype in STORAGE_DTYPES else picked


def build_csr(row: Tensor, col: Tensor, *, num_rows: int, origin: bool = False) -> Csr:
    """CSR of edges; see :func:`siafu.native.build_csr`."""
    order = row.argsort(stable=True)
    indptr = torch.zeros(num_rows + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(row.long(), minlength=num_rows).cumsum(0)
    return Csr(indptr, col[order].to(torch.int32), order if origin else None)


def transpose(csr: Csr, *, num_cols: int, origin: bool = False) -> Csr:
    """Exchange rows and columns; see :func:`siafu.native.transpose`."""
    return build_csr(csr.indices, _row_edge(csr).to(torch.int32), num_rows=num_cols, origin=origin)


def sort_rows(csr: Csr) -> Csr:
    """Sort columns within rows; see :func:`siafu.native.sort_rows`."""
    by_col = csr.indices.argsort(stable=True)
    order = by_col[_row_edge(csr)[by_col].argsort(stable=True)]
    return Csr(csr.indptr, csr.indices[order], None if csr.origin is None else csr.origin[order])


def deduplicate(csr: Csr) -> Csr:
    """Drop repeated columns; see :func:`siafu.native.deduplicate`."""
    row_edge = _row_edge(csr)
    first = torch.ones_like(row_edge, dtype=torch.bool)
    first[1:] = (row_edge[1:] != row_edge[:-1]) | (csr.indices[1:] != csr.indices[:-1])
    indptr = torch.zeros_like(csr.indptr)
    indptr[1:] = torch.bincount(row_edge[first], minlength=csr.indptr.numel() - 1).cumsum(0)
    return Csr(indptr, csr.indices[first], None if csr.origin is None else csr.origin[first])


def count_distinct(csr: Csr) -> Tensor:
    """Count distinct columns; see :func:`siafu.native.count_distinct`."""
    return deduplicate(csr).indptr.diff()


def apply_delta(csr: Csr, *, add: Csr, drop: Csr) -> Csr:
    """Add and remove edges; see :func:`siafu.native.apply_delta`."""
    here, gone, new = (_row_edge(rows) << 32 | rows.indices.long() for rows in (csr, drop, add))
    how_many = torch.searchsorted(gone, here, right=True) - torch.searchsorted(gone, here)
    which = torch.arange(here.numel()) - torch.searchsorted(
        here, here
    )  # 0 for the first of equal ones, 1, ...
    stays = which >= how_many
    found = torch.searchsorted(here, gone, right=True) - torch.searchsorted(here, gone)
    lacking = found < torch.searchsorted(gone, gone, right=True) - torch.searchsorted(gone, gone)
    if bool(lacking.any()):
        raise ValueError(delta_error(int(gone[lacking][0] >> 32)))
    keys = torch.cat([here[stays], new])
    order = keys.argsort(stable=True)
    origin = None
    if csr.origin is not None and add.origin is not None:
        origin = torch.cat([csr.origin[stays], add.origin])[order]
    return Csr(csr.indptr + add.indptr - drop.indptr, (keys[order] & 0x7FFFFFFF).int(), origin)


def edges_not_in(csr: Csr, others: Csr) -> Tensor:
    """Find edges that another CSR lacks; see :func:`siafu.native.edges_not_in`."""
    here, there = (_row_edge(rows) << 32 | rows.indices.long() for rows in (csr, others))
    which = torch.arange(here.numel()) - torch.searchsorted(
        here, here
    )  # 0 for the first of equal ones, 1, ...
    had = torch.searchsorted(there, here, right=True) - torch.searchsorted(there, here)
    return (which >= had).nonzero()[:, 0]


def delta_error(row: int) -> str:
    """Return the error message for a delta that does not fit the CSR."""
    return f"a delta takes an edge out of row {row} that is not in it; the two are not of the same graph"


def take_rows(csr: Csr, rows: Tensor, *, name: Tensor, origin: bool = False) -> Csr:
    """Select rows and rename columns; see :func:`siafu.native.take_rows`."""
    count = csr.indptr[rows + 1] - csr.indptr[rows]
    row_edge = torch.arange(rows.numel()).repeat_interleave(count)
    edge = torch.arange(row_edge.numel()) + (csr.indptr[rows] - count.cumsum(0) + count)[row_edge]
    col = name[csr.indices[edge].long()]
    taken = sort_rows(build_csr(row_edge.to(torch.int32), col, num_rows=rows.numel(), origin=True))
    assert taken.origin is not None
    return Csr(taken.indptr, taken.indices, edge[taken.origin] if origin else None)


def mark_columns(csr: Csr, rows: Tensor, *, num_cols: int) -> Tensor:
    """Mark the columns of some rows; see :func:`siafu.native.mark_columns`."""
    mark = torch.zeros(num_cols, dtype=torch.bool)
    mark[take_rows(csr, rows, name=torch.arange(num_cols, dtype=torch.int32)).indices.long()] = True
    return mark


def missing_loops(csr: Csr, weight: Tensor | None) -> Tensor:
    """Compute missing self-loop weights; see :func:`siafu.native.missing_loops`."""
    row_edge = _row_edge(csr)
    loop = (row_edge == csr.indices).nonzero()[:, 0]
    value = torch.ones(loop.numel(), dtype=torch.float64) if weight is None else weight[loop].double()
    last = torch.ones(csr.indptr.numel() - 1, dtype=torch.float64)
    for place, row in enumerate(row_edge[loop].tolist()):
        last[row] = value[place]
    return last.index_add(0, row_edge[loop], -value)


def split_rows(csr: Csr, column: int) -> Tensor:
    """Split rows at a column; see :func:`siafu.native.split_rows`."""
    below = torch.zeros(csr.indptr.numel() - 1, dtype=torch.int64)
    return csr.indptr[:-1] + below.index_add(0, _row_edge(csr), (csr.indices < column).long())


def locality_order(csr: Csr, *, max_community: int = 1024, rounds: int = 8) -> Tensor:
    """Return the given order: without the compiled core a cache-friendly order gains nothing."""
    return torch.arange(csr.indptr.numel() - 1)


def first_decrease(values: Tensor) -> int:
    """See :func:`siafu.native.first_decrease`."""
    for start in range(0, values.numel(), _CHUNK):  # ranges overlap by one; no copy is as large as the values
        falls = values[start : start + _CHUNK + 1].diff() < 0
        if bool(falls.any()):
            return start + int(falls.int().argmax())
    return -1


def first_out_of_range(values: Tensor, limit: int) -> int:
    """See :func:`siafu.native.first_out_of_range`."""
    for start in range(0, values.numel(), _CHUNK):
        some = values[start : start + _CHUNK]
        outside = (some < 0) | (some >= limit)
        if bool(outside.any()):
            return start + int(outside.int().argmax())
    return -1


def first_unsorted_row(csr: Csr) -> int:
    """See :func:`siafu.native.first_unsorted_row`."""
    row_edge = torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())
    falls = (csr.indices.diff() < 0) & (row_edge.diff() == 0)
    return int(row_edge[:-1][falls][0]) if bool(falls.any()) else -1


def argmax_rows(x: Tensor, index: Tensor) -> Tensor:
    """The column of the largest number of picked rows; see :func:`siafu.native.argmax_rows`."""
    return x[index].argmax(1)
