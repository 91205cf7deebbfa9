"""The kernels on sparse rows in plain torch: the reference for tests, and the fallback without the compiled core."""

from collections.abc import Iterator

import torch
from torch import Tensor

from siafu.native import reference
from siafu.native.dense_rows import epilogue, epilogue_backward
from siafu.native.sparse_values import SparseRows
from siafu.native.values import Csr, Epilogue

_CHUNK_NUMBERS = 1 << 24


def _row_ranges(x: SparseRows) -> Iterator[slice]:
    step = max(1, _CHUNK_NUMBERS // max(1, x.width))
    for start in range(0, len(x), step):
        yield slice(start, min(start + step, len(x)))


def product(
    x: SparseRows, weight: Tensor, *, add: Tensor | None, after: Epilogue | None, out: Tensor | None
) -> Tensor:
    """``add + x W`` and its epilogue; see :func:`siafu.native.sparse_product`."""
    out = weight.new_empty(len(x), weight.shape[1]) if out is None else out
    for rows in _row_ranges(x):
        chunk = x[rows].to_dense().to(weight.dtype) @ weight
        if add is not None:
            chunk = chunk + (add[rows] if add.ndim == 2 else add)
        out[rows] = chunk
    if after is None:
        return out
    bias, activation, dropout, row_id = after
    return epilogue(out, bias=bias, activation=activation, dropout=dropout, row_id=row_id, out=out)


def product_backward(
    x: SparseRows, grad: Tensor, *, output: Tensor | None, after: Epilogue | None
) -> tuple[Tensor, Tensor]:
    """The gradients of weight and bias; see :func:`siafu.native.sparse_product_backward`."""
    if after is not None:
        assert output is not None
        _, activation, dropout, row_id = after
        grad, _ = epilogue_backward(
            grad, output, activation=activation, dropout=dropout, row_id=row_id, with_bias=False
        )
    grad_weight = grad.new_zeros(x.width, grad.shape[1])
    for rows in _row_ranges(x):
        part = x[rows].to_dense().to(grad.dtype)
        grad_weight.addmm_(part.t(), grad[rows])
    return grad_weight, grad.sum(0)


def sum_rows(
    csr: Csr,
    x_src: SparseRows,
    *,
    weight: Tensor | None,
    pre: Tensor | None,
    post: Tensor | None,
    loop: Tensor | None,
) -> SparseRows:
    """Sums of in-neighbour rows; see :func:`siafu.native.sparse_sum`."""
    dense = x_src.to_dense()
    sums = reference.spmm(csr, dense, weight=weight, pre=pre, post=post, loop=loop)
    there = reference.spmm(csr, (dense != 0).double(), loop=None if loop is None else loop.abs().double())
    place = there != 0
    count = place.sum(1)
    indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return SparseRows(indptr, place.nonzero()[:, 1].int(), sums[place], x_src.width)
