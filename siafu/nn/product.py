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
    """Rows ``add`` are added to where they are: nothing reads them afterwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, add: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.add_dims = 0 if add is None else add.ndim
        in_place = add is not None and add.ndim == 2 and add.is_contiguous() and not add.is_leaf
        if in_place:
            ctx.mark_dirty(add)
        return native.product(x, weight, add=add, out=add if in_place else None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (grad,) = grads
        wants_x, wants_weight, wants_add = ctx.needs_input_grad
        grad_x = native.product(grad, weight, turned=True) if wants_x else None
        grad_weight = native.product_weight(x, grad) if wants_weight else None
        grad_add = None
        if wants_add:
            grad_add = grad if ctx.add_dims == 2 else grad.sum(0)
        return grad_x, grad_weight, grad_add
