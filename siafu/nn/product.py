"""Products of rows and weights, whose large results are arrays that were used before."""

from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.nn.streamed import Rows, Streamed, streamed_product


def product(x: Rows, weight: Tensor, add: Tensor | None = None) -> Tensor:
    """``x W``, or ``add + x W``: (R, I), (I, O), (R, O) or (O,) -> (R, O)."""
    if isinstance(x, Streamed):
        return streamed_product(x, weight, add)
    return _Product.apply(x, weight, add)


class _Product(torch.autograd.Function):
    """``torch.mm`` and ``torch.addmm`` into arrays of :func:`siafu.native.empty_rows`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, add: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.add_dims = 0 if add is None else add.ndim
        out = native.empty_rows(x.shape[0], weight.shape[1], x.dtype)
        return torch.mm(x, weight, out=out) if add is None else torch.addmm(add, x, weight, out=out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        wants_x, wants_weight, wants_add = ctx.needs_input_grad
        grad_x = None
        if wants_x:
            grad_x = torch.mm(grad, weight.t(), out=native.empty_rows(x.shape[0], x.shape[1], x.dtype))
        grad_weight = torch.mm(x.t(), grad) if wants_weight else None
        grad_add = None
        if wants_add:
            grad_add = grad if ctx.add_dims == 2 else grad.sum(0)
        return grad_x, grad_weight, grad_add
