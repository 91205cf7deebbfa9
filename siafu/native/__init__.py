"""Kernels over rows and CSR arrays: the typed face of the compiled core. They know no rank, no file, no clock.

Every kernel takes and returns tensors on the CPU, allocates its own output, and has a twin of the same name in
``siafu.native.reference``, which is used where the core was not compiled. Ids are int32, offsets int64.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch  # before _core: both then share the thread pool of torch's OpenMP library
from torch import Tensor

from siafu.native import reference
from siafu.native.attention import (
    MAX_HEADS,
    AttendBackward,
    AttendV2Backward,
    Attention,
    Edges,
    attend,
    attend_backward,
    attend_v2,
    attend_v2_backward,
)
from siafu.native.pairs import Above, Factors, count_ranks, pair_rows, pair_rows_backward, pair_scores
from siafu.native.partition import PartCounts, assign_bytes, assign_parts, count_parts
from siafu.native.products import After, Term, product, product_backward
from siafu.native.recurrent import Lstm, LstmPassed, lstm, lstm_backward
from siafu.native.sampling import (
    Draws,
    Met,
    draw,
    local_rows,
    sample_and_relabel,
    scatter_rows,
    sort_rows_by_id,
)
from siafu.native.varint import pack_ascending, pack_pairs, unpack_ascending, unpack_pairs

_core: Any
try:
    _core = import_module("siafu.native._core")
except ImportError:  # a source tree that was never built
    _core = None

__all__ = [
    "MAX_HEADS",
    "Above",
    "After",
    "AttendBackward",
    "AttendV2Backward",
    "Attention",
    "Csr",
    "Draws",
    "Dropout",
    "Edges",
    "Factors",
    "Lstm",
    "LstmPassed",
    "Met",
    "PartCounts",
    "Term",
    "apply_delta",
    "arrays_reused",
    "assign_bytes",
    "assign_parts",
    "attend",
    "attend_backward",
    "attend_v2",
    "attend_v2_backward",
    "build_csr",
    "compiled",
    "count_ranks",
    "count_distinct",
    "count_parts",
    "deduplicate",
    "draw",
    "sample_and_relabel",
    "empty_rows",
    "empty_steps",
    "epilogue",
    "epilogue_backward",
    "restore_readahead",
    "prefetch_rows",
    "filled",
    "first_decrease",
    "local_rows",
    "first_out_of_range",
    "first_unsorted_row",
    "gather",
    "instruction_set",
    "locality_order",
    "lstm",
    "lstm_backward",
    "map_large_arrays",
    "mark_columns",
    "missing_loops",
    "pack_ascending",
    "pack_pairs",
    "pair_rows",
    "pair_rows_backward",
    "pair_scores",
    "edges_not_in",
    "product",
    "product_backward",
    "relabel",
    "segment_max",
    "segment_max_backward",
    "sort_rows",
    "sort_rows_by_id",
    "span",
    "split_rows",
    "spmm",
    "scatter_rows",
    "take_rows",
    "transpose",
    "unpack_ascending",
    "unpack_pairs",
]

Dropout = reference.Dropout
_LARGE_BYTES = 1 << 22
_MMAP_THRESHOLD = -3  # a setting of malloc.h
_MAPPED_BYTES = 1 << 20
_ACTIVATIONS = {"none": 0, "relu": 1, "elu": 2}


class Csr(NamedTuple):
    """Compressed rows: the columns of row ``i`` are ``indices[indptr[i]:indptr[i + 1]]``.

    Attributes:
        indptr: (R + 1,) int64, non-decreasing from 0.
        indices: (E,) int32.
        origin: (E,) int64, where each edge stood in the arrays it was made from; None where nobody asked.
    """

    indptr: Tensor
    indices: Tensor
    origin: Tensor | None = None


NOT_COMPILED = (
    "compiled core not found: siafu runs in plain torch, about ten times slower; reinstall siafu (pip install siafu, "
    "with a C++20 compiler), and do not start Python in a source tree that shadows the installed package"
)


def compiled() -> bool:
    """Whether the compiled core is in use."""
    return _core is not None


def instruction_set() -> str:
    """The instruction set the kernels run on: ``avx512``, ``avx2``, ``baseline``, or ``reference`` without a core."""
    return _core.isa() if _core is not None else "reference"


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
    out: Tensor | None = None,
    rows: slice | None = None,
) -> Tensor:
    """Sum in-neighbour rows, (S, F) -> (D, F): ``out_d = post_d (sum_e weight_e pre_s x_s + loop_d pre_d x_d)``.

    Rows in bfloat16 and int8 are summed and returned in float32. Scales are (E,), (S,), (D,) in the output's dtype;
    ``loop`` has at most D rows, whose destinations are the first sources. Where a row's sources lie in several arrays
    it is summed in several goes: ``ends`` (D,) cuts rows short, ``first_src`` is the column that row 0 of ``x_src``
    stands for, and ``add_to`` (D, F) is added to and returned; ``out`` (D, F) is filled and returned. With ``rows``
    nothing is done to any other.
    """
    num_dst = csr.indptr.numel() - 1 if ends is None else ends.numel()
    if _core is None:
        how = {"weight": weight, "pre": pre, "post": post, "loop": loop}
        whole = reference.spmm(csr, x_src, **how, ends=ends, first_src=first_src)
        if add_to is not None:
            whole += add_to
        return filled(add_to if out is None else out, whole, rows)
    x_src = x_src.contiguous()
    dtype = torch.float32 if x_src.dtype in reference.NARROW else x_src.dtype
    if out is None:
        out = empty_rows(num_dst, x_src.shape[1], dtype) if add_to is None else add_to
    rest = (weight, pre, post, loop, out, ends, first_src, add_to is not None, span(rows, num_dst))
    if x_src.dtype == torch.bfloat16:
        _core.spmm_bf16(csr.indptr, csr.indices, x_src.view(torch.uint16), *rest)
    elif x_src.dtype == torch.int8:
        _core.spmm_int8(csr.indptr, csr.indices, x_src, *rest)
    else:
        _core.spmm(csr.indptr, csr.indices, x_src, *rest)
    return out


def segment_max(
    csr: Csr,
    x_src: Tensor,
    *,
    node_id: Tensor | None = None,
    into: tuple[Tensor, Tensor] | None = None,
    rows: slice | None = None,
) -> tuple[Tensor, Tensor]:
    """Maximum of in-neighbour rows, zero where there are none, and its source, -1 for none: (S, F) -> 2 x (D, F).

    Of equal rows the one with the lowest ``node_id`` (S,) gives the maximum; without ids the first. ``into`` is filled
    and returned; with ``rows`` nothing is done to any other.
    """
    if _core is None:
        found = reference.segment_max(csr, x_src, node_id=node_id)
        return found if into is None else (filled(into[0], found[0], rows), filled(into[1], found[1], rows))
    x_src, num_dst = x_src.contiguous(), csr.indptr.numel() - 1
    if into is None:
        out = empty_rows(num_dst, x_src.shape[1], x_src.dtype)
        into = out, torch.empty_like(out, dtype=torch.int32)
    _core.segment_max(csr.indptr, csr.indices, x_src, *into, node_id, span(rows, num_dst))
    return into


def segment_max_backward(
    transposed: Csr,
    grad_dst: Tensor,
    source: Tensor,
    *,
    out: Tensor | None = None,
    rows: slice | None = None,
) -> Tensor:
    """Give each gradient to the source that gave the maximum: (D, F) -> (S, F); ``out`` and ``rows`` as above."""
    if _core is None:
        return filled(out, reference.segment_max_backward(transposed, grad_dst, source), rows)
    grad_dst, num_src = grad_dst.contiguous(), transposed.indptr.numel() - 1
    out = empty_rows(num_src, grad_dst.shape[1], grad_dst.dtype) if out is None else out
    _core.segment_max_backward(
        transposed.indptr, transposed.indices, grad_dst, source, out, span(rows, num_src)
    )
    return out


def span(rows: slice | None, num_rows: int) -> tuple[int, int]:
    """Where rows begin and end; None stands for all."""
    return (0, num_rows) if rows is None else (rows.start, rows.stop)


def filled(out: Tensor | None, values: Tensor, rows: slice | None) -> Tensor:
    """``values``, or ``out`` with some rows taken from them."""
    if out is None:
        return values
    rows = slice(0, values.shape[0]) if rows is None else rows
    out[rows] = values[rows]
    return out


def epilogue(
    x: Tensor,
    *,
    bias: Tensor | None,
    activation: str,
    dropout: Dropout,
    row_id: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``dropout(activation(x + bias))`` in one pass: (R, F) -> (R, F). ``out`` may be ``x`` itself."""
    if _core is None:
        return reference.epilogue(
            x, bias=bias, activation=activation, dropout=dropout, row_id=row_id, out=out
        )
    x = x.contiguous()
    out = empty_rows(x.shape[0], x.shape[1], x.dtype) if out is None else out
    act = _ACTIVATIONS[activation]
    _core.epilogue(x, bias, row_id, act, dropout.key, dropout.threshold, dropout.scale, out)
    return out


def epilogue_backward(
    grad: Tensor, output: Tensor, *, activation: str, dropout: Dropout, row_id: Tensor | None, with_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of :func:`epilogue`'s input and bias, from its output alone."""
    if _core is None:
        return reference.epilogue_backward(
            grad, output, activation=activation, dropout=dropout, row_id=row_id, with_bias=with_bias
        )
    grad = grad.contiguous()
    out = empty_rows(grad.shape[0], grad.shape[1], grad.dtype)
    parts = grad.new_empty(_core.bias_parts, grad.shape[1]) if with_bias else None
    act = _ACTIVATIONS[activation]
    _core.epilogue_backward(
        grad, output, row_id, act, dropout.key, dropout.threshold, dropout.scale, out, parts
    )
    return out, None if parts is None else parts.sum(0)


def gather(rows: Tensor, index: Tensor, *, widen: bool = False, more: Tensor | None = None) -> Tensor:
    """Rows picked by number, (N, ...) and (R,) integers -> (R, ...); ``widen`` makes float32 of bfloat16 and int8.

    ``more`` are rows that stand after the others, in an array of their own.
    """
    if _core is None:
        return reference.gather(rows, index, widen=widen, more=more)
    rows, index = rows.contiguous(), index.long().contiguous()
    widen = widen and rows.dtype in reference.NARROW
    if widen and more is not None:
        return gather(rows, index, more=more).float()
    dtype, width = torch.float32 if widen else rows.dtype, rows.shape[1:].numel()
    out = empty_rows(index.numel(), width, dtype).view(index.numel(), *rows.shape[1:])
    if widen:
        _core.gather_widen(_plain(rows), index, out)
    else:
        _core.gather(_plain(rows), None if more is None else _plain(more.contiguous()), index, _plain(out))
    return out


def prefetch_rows(rows: Tensor, index: Tensor) -> None:
    """Have the system read rows, picked by number, of an array mapped from a file, and none around them."""
    if _core is not None and rows.is_contiguous() and rows.nbytes >= _LARGE_BYTES:
        _core.expect_rows(_plain(rows), index.long().contiguous())


def restore_readahead(rows: Tensor) -> None:
    """Have the system read ahead in an array that is mapped from a file, as it does unless told otherwise."""
    if _core is not None and rows.is_contiguous() and rows.nbytes >= _LARGE_BYTES:
        _core.expect_all(_plain(rows))


def empty_rows(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """An array for a kernel to fill; where it is large, in large pages, and one used before where there is one."""
    num_bytes = rows * width * dtype.itemsize
    if _core is None or num_bytes < _LARGE_BYTES:
        return torch.empty(rows, width, dtype=dtype)
    storage = _core.take(num_bytes).untyped_storage()
    out: Any = torch.empty(0, dtype=dtype)
    return out.set_(storage, 0, (rows, width))  # not a view, so that autograd lets it be overwritten


def empty_steps(steps: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """The same for rows of several steps: (steps, rows, width)."""
    storage = empty_rows(steps * rows, width, dtype).untyped_storage()
    out: Any = torch.empty(0, dtype=dtype)
    return out.set_(storage, 0, (steps, rows, width))


@contextmanager
def arrays_reused() -> Iterator[None]:
    """Have the memory of large arrays of kernels used again when their tensors die, which saves its page faults."""
    if _core is None:
        yield
        return
    _core.keep_given_back(True)
    try:
        yield
    finally:
        _core.keep_given_back(False)


def map_large_arrays() -> None:
    """From now on have what torch makes itself, where it is large, go back to the system when it dies.

    The C library maps each such array by itself then; else it learns to keep them in its heap, which is quicker.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)


def first_decrease(values: Tensor) -> int:
    """The first place, of (n,) int64, after which a value is smaller; -1 where values never fall."""
    values = values.contiguous()
    return reference.first_decrease(values) if _core is None else _core.first_fall(values)


def first_out_of_range(values: Tensor, limit: int) -> int:
    """The first place, of (n,) int32 or int64, of a value that is negative or not below ``limit``; -1 if none is."""
    values = values.contiguous()
    return (
        reference.first_out_of_range(values, limit) if _core is None else _core.first_outside(values, limit)
    )


def first_unsorted_row(csr: Csr) -> int:
    """The first row whose columns do not ascend; -1 where those of all rows do."""
    if _core is None:
        return reference.first_unsorted_row(csr)
    return _core.first_unsorted(csr.indptr.contiguous(), csr.indices.contiguous())


def build_csr(row: Tensor, col: Tensor, *, num_rows: int, origin: bool = False) -> Csr:
    """CSR of the edges (row[i], col[i]), int32; edges of one row stay in their given order."""
    if _core is None:
        return reference.build_csr(row, col, num_rows=num_rows, origin=origin)
    csr = _empty(num_rows, row.numel(), origin)
    _core.build_csr(row.contiguous(), col.contiguous(), csr.indptr, csr.indices, csr.origin)
    return csr


def transpose(csr: Csr, *, num_cols: int, origin: bool = False, indices: Tensor | None = None) -> Csr:
    """Exchange rows and columns; columns ascend within each row of the result.

    ``indices`` is memory for the result's, (E,) int32; None: it is made.
    """
    if _core is None:
        out = reference.transpose(csr, num_cols=num_cols, origin=origin)
        return out if indices is None else out._replace(indices=indices.copy_(out.indices))
    out = _empty(num_cols, csr.indices.numel(), origin)  # a page that nobody writes takes no memory
    out = out if indices is None else out._replace(indices=indices)
    _core.transpose_csr(csr.indptr, csr.indices, out.indptr, out.indices, out.origin)
    return out


def sort_rows(csr: Csr) -> Csr:
    """Sort the columns of each row, stably; ``origin`` goes along."""
    if _core is None:
        return reference.sort_rows(csr)
    out = Csr(csr.indptr, csr.indices.clone(), None if csr.origin is None else csr.origin.clone())
    _core.sort_rows(out.indptr, out.indices, out.origin)
    return out


def deduplicate(csr: Csr) -> Csr:
    """Keep the first of equal columns in each sorted row."""
    if _core is None:
        return reference.deduplicate(csr)
    out = Csr(csr.indptr.clone(), csr.indices.clone(), None if csr.origin is None else csr.origin.clone())
    left = _core.deduplicate_rows(out.indptr, out.indices, out.origin)
    return Csr(
        out.indptr, out.indices[:left].clone(), None if out.origin is None else out.origin[:left].clone()
    )


def count_distinct(csr: Csr) -> Tensor:
    """How many different columns each sorted row has, (D,) int64."""
    if _core is None:
        return reference.count_distinct(csr)
    out = torch.empty(csr.indptr.numel() - 1, dtype=torch.int64)
    _core.count_distinct(csr.indptr, csr.indices, out)
    return out


def apply_delta(csr: Csr, *, add: Csr, drop: Csr) -> Csr:
    """The CSR with the edges of ``add`` put in and those of ``drop`` taken out; all have sorted rows, as many.

    Of equal columns the first are taken out, and those put in stand last: what was built of edges in an order, and is
    changed by later edges put in and the earliest taken out, is what would be built of them. ``origin`` goes along
    where ``csr`` and ``add`` have it.
    """
    if _core is None:
        return reference.apply_delta(csr, add=add, drop=drop)
    edges = csr.indices.numel() + add.indices.numel() - drop.indices.numel()
    out = _empty(csr.indptr.numel() - 1, max(0, edges), csr.origin is not None)
    row = _core.apply_delta(*csr, *add, drop.indptr, drop.indices, *out)
    if row >= 0:
        raise ValueError(reference.not_there(row))
    return out


def edges_not_in(csr: Csr, others: Csr) -> Tensor:
    """The places of edges that another CSR of as many sorted rows lacks, ascending, (n,) int64.

    Where it has an edge, but not as often, the later ones are lacking.
    """
    if _core is None:
        return reference.edges_not_in(csr, others)
    places = torch.empty(csr.indices.numel(), dtype=torch.int64)
    count = _core.places_lacking(csr.indptr, csr.indices, others.indptr, others.indices, places)
    return places[:count].clone()


def relabel(csr: Csr, order: Tensor, *, origin: bool = False) -> Csr:
    """The square CSR with node ``order[i]`` renamed ``i``; rows come out sorted."""
    name = torch.empty(order.numel(), dtype=torch.int32)
    name[order] = torch.arange(order.numel(), dtype=torch.int32)
    return take_rows(csr, order, name=name, origin=origin)


def take_rows(csr: Csr, rows: Tensor, *, name: Tensor, origin: bool = False) -> Csr:
    """The CSR of some rows, (R,) int64, with column ``c`` renamed ``name[c]``, int32, not negative; sorted rows."""
    if _core is None:
        return reference.take_rows(csr, rows, name=name, origin=origin)
    out = _empty(rows.numel(), int((csr.indptr[rows + 1] - csr.indptr[rows]).sum()), origin)
    _core.take_rows(csr.indptr, csr.indices, rows, name, out.indptr, out.indices, out.origin)
    return out


def mark_columns(csr: Csr, rows: Tensor, *, num_cols: int) -> Tensor:
    """Which columns some rows have, (num_cols,) bool."""
    if _core is None:
        return reference.mark_columns(csr, rows, num_cols=num_cols)
    mark = torch.zeros(num_cols, dtype=torch.uint8)
    _core.mark_columns(csr.indptr, csr.indices, rows, mark)
    return mark.view(torch.bool)


def missing_loops(csr: Csr, weight: Tensor | None) -> Tensor:
    """What each row lacks of exactly one edge to itself, (D,) float64.

    It is 1 where a row has none; where it has some, the weight (E,) of the last less that of all of them.
    """
    if _core is None:
        return reference.missing_loops(csr, weight)
    out = torch.empty(csr.indptr.numel() - 1, dtype=torch.float64)
    _core.missing_loops(csr.indptr, csr.indices, weight, out)
    return out


def split_rows(csr: Csr, column: int) -> Tensor:
    """Where in each sorted row the columns from ``column`` on begin, (D,) int64."""
    if _core is None:
        return reference.split_rows(csr, column)
    ends = torch.empty(csr.indptr.numel() - 1, dtype=torch.int64)
    _core.split_rows(csr.indptr, csr.indices, column, ends)
    return ends


def locality_order(csr: Csr, *, max_community: int = 1024, rounds: int = 8) -> Tensor:
    """An order of the nodes, (N,) int64, in which communities found by label propagation lie together."""
    if _core is None:
        return reference.locality_order(csr, max_community=max_community, rounds=rounds)
    order = torch.empty(csr.indptr.numel() - 1, dtype=torch.int64)
    _core.locality_order(csr.indptr, csr.indices, max_community, rounds, order)
    return order


def _plain(rows: Tensor) -> Tensor:
    """The same array as what has a name outside of torch."""
    return rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows


def _empty(num_rows: int, num_edges: int, origin: bool) -> Csr:
    indptr = torch.empty(num_rows + 1, dtype=torch.int64)
    indices = torch.empty(num_edges, dtype=torch.int32)
    return Csr(indptr, indices, torch.empty(num_edges, dtype=torch.int64) if origin else None)
