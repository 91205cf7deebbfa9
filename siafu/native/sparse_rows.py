"""Products of sparse rows with weights, and sums over in-neighbours; plain versions in ``sparse_rows_reference``.

Results of the compiled core equal those of dense rows to rounding, and are the same for any number of threads.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from siafu.native import core, sparse_rows_reference
from siafu.native.memory import empty_rows
from siafu.native.products import parts_of
from siafu.native.sparse_values import SparseRows, has_sparse_kernel
from siafu.native.values import Csr, Epilogue

Allocate = Callable[..., Tensor]  # as torch.empty: called with a number of elements and dtype=


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
    core.kernels.sparse_product(x.arguments, weight.contiguous(), add, out, how)
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
    core.kernels.sparse_product_backward(x.arguments, grad, output, how, sums, out)
    return out[:-1], out[-1]


def sparse_sum(
    csr: Csr,
    x_src: SparseRows,
    *,
    weight: Tensor | None = None,
    pre: Tensor | None = None,
    post: Tensor | None = None,
    loop: Tensor | None = None,
    allocate: Allocate = torch.empty,
) -> SparseRows:
    """Sum in-neighbour rows, S x F -> D x F, as :func:`siafu.native.spmm` does; ``allocate`` makes the arrays."""
    if not has_sparse_kernel(x_src, *(each for each in (weight, pre, post, loop) if each is not None)):
        return sparse_rows_reference.sum_rows(csr, x_src, weight=weight, pre=pre, post=post, loop=loop)
    indptr = torch.zeros(csr.indptr.numel(), dtype=torch.int64)
    given = (csr.indptr, csr.indices, x_src.arguments, weight, pre, post, loop, indptr)
    core.kernels.sparse_sum(*given, None, None)
    indptr.cumsum_(0)
    total = int(indptr[-1])
    indices, values = allocate(total, dtype=torch.int32), allocate(total, dtype=x_src.dtype)
    core.kernels.sparse_sum(*given, indices, values)
    return SparseRows(indptr, indices, values, x_src.width)
