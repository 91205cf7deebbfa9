"""Sums and maxima of in-neighbour rows over a CSR, and the gradient of the maximum."""

import torch
from torch import Tensor

from siafu.native import core, reference
from siafu.native.memory import empty_rows, row_range, write_rows
from siafu.native.values import Csr


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

    bfloat16 and int8 rows are summed and returned in float32. The scales are (E,), (S,) and (D,) in the output's dtype.
    ``loop`` has at most D entries; its destinations are the first sources. If a row's sources lie in several arrays, it
    is summed in several calls: ``ends`` (D,) cuts rows short, ``first_src`` is the column of row 0 of ``x_src``, and
    ``add_to`` (D, F) is added to and returned. ``out`` (D, F) is filled and returned. With ``rows`` only those rows are
    computed.
    """
    num_dst = csr.indptr.numel() - 1 if ends is None else ends.numel()
    if core.kernels is None:
        how = {"weight": weight, "pre": pre, "post": post, "loop": loop}
        whole = reference.spmm(csr, x_src, **how, ends=ends, first_src=first_src)
        if add_to is not None:
            whole += add_to
        return write_rows(add_to if out is None else out, whole, rows)
    x_src = x_src.contiguous()
    dtype = torch.float32 if x_src.dtype in reference.STORAGE_DTYPES else x_src.dtype
    if out is None:
        out = empty_rows(num_dst, x_src.shape[1], dtype) if add_to is None else add_to
    rest = (weight, pre, post, loop, out, ends, first_src, add_to is not None, row_range(rows, num_dst))
    if x_src.dtype == torch.bfloat16:
        core.kernels.spmm_bf16(csr.indptr, csr.indices, x_src.view(torch.uint16), *rest)
    elif x_src.dtype == torch.int8:
        core.kernels.spmm_int8(csr.indptr, csr.indices, x_src, *rest)
    else:
        core.kernels.spmm(csr.indptr, csr.indices, x_src, *rest)
    return out


def segment_max(
    csr: Csr,
    x_src: Tensor,
    *,
    node_id: Tensor | None = None,
    into: tuple[Tensor, Tensor] | None = None,
    rows: slice | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the maximum of in-neighbour rows (0 if none) and its source (-1 if none): (S, F) -> 2 x (D, F).

    Among equal rows the source with the lowest ``node_id`` (S,) wins; without ids the first. ``into`` is filled and
    returned. With ``rows`` only those rows are computed.
    """
    if core.kernels is None:
        found = reference.segment_max(csr, x_src, node_id=node_id)
        return (
            found
            if into is None
            else (write_rows(into[0], found[0], rows), write_rows(into[1], found[1], rows))
        )
    x_src, num_dst = x_src.contiguous(), csr.indptr.numel() - 1
    if into is None:
        out = empty_rows(num_dst, x_src.shape[1], x_src.dtype)
        into = out, torch.empty_like(out, dtype=torch.int32)
    core.kernels.segment_max(csr.indptr, csr.indices, x_src, *into, node_id, row_range(rows, num_dst))
    return into


def segment_max_backward(
    transposed: Csr,
    grad_dst: Tensor,
    source: Tensor,
    *,
    out: Tensor | None = None,
    rows: slice | None = None,
) -> Tensor:
    """Route each gradient to the source of the maximum: (D, F) -> (S, F); ``rows`` as in ``segment_max``."""
    if core.kernels is None:
        return write_rows(out, reference.segment_max_backward(transposed, grad_dst, source), rows)
    grad_dst, num_src = grad_dst.contiguous(), transposed.indptr.numel() - 1
    out = empty_rows(num_src, grad_dst.shape[1], grad_dst.dtype) if out is None else out
    core.kernels.segment_max_backward(
        transposed.indptr, transposed.indices, grad_dst, source, out, row_range(rows, num_src)
    )
    return out
