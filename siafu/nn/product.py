"""Products of rows and weights, and what follows them, in one pass each way."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.native import Epilogue, SparseRows, Term
from siafu.nn.dropout import epilogue
from siafu.nn.streamed import Rows, Streamed, streamed_product

PROJECTED = "projected"  # under which a context keeps what was made of its rows before


def product(x: Rows, weight: Tensor, add: Tensor | None = None) -> Tensor:
    """``x W``, or ``add + x W``: (R, I), (I, O), (R, O) or (O,) -> (R, O)."""
    match x:
        case Streamed():
            return streamed_product(x, weight, add)
        case SparseRows():
            return _SparseProduct.apply(add, None, None, None, weight, x)
    return _Products.apply(add, None, None, x, weight)


def products(terms: Sequence[tuple[Rows, Tensor]], after: Epilogue | None = None) -> Tensor:
    """The sum of ``x W`` over some rows and weights, and what follows it: (R, I), (I, O), ... -> (R, O)."""
    bias = None if after is None else after.bias
    if all(isinstance(x, Tensor) for x, _ in terms):
        return _Products.apply(None, bias, after, *(each for term in terms for each in term))
    out = None
    for x, weight in terms[:-1]:
        out = product(x, weight, out)
    x, weight = terms[-1]
    if isinstance(x, SparseRows):
        return _SparseProduct.apply(out, bias, after, None, weight, x)
    out = product(x, weight, out)
    return out if after is None else finished(out, after)


def known_product(z: Tensor | None, x: Rows, weight: Tensor, add: Tensor | None = None) -> Tensor:
    """``x W + add``; its value is ``z`` (R, O) where that is given, its gradients are those of the product.

    So a projection by earlier weights can be used for a while.
    """
    if z is None:
        return product(x, weight, add)
    if isinstance(x, SparseRows):
        return _SparseProduct.apply(add, None, None, z, weight, x)
    return _KnownProduct.apply(add, z, x, weight)


def finished(z: Tensor, after: Epilogue, *, in_place: bool = True) -> Tensor:
    """Apply bias, activation and dropout to rows that no product has made; ``in_place`` may overwrite them."""
    bias, activation, dropout, row_id = after
    return epilogue(z, bias, activation=activation, dropout=dropout, row_id=row_id, in_place=in_place)


class _KnownProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, add: Tensor | None, z: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_add, _, wants_x, _ = ctx.needs_input_grad
        (grad_x,), (grad_weight,), grad_add = native.product_backward(
            [Term(x, weight)], grads[0], wants_x=[wants_x]
        )
        return grad_add if wants_add else None, None, grad_x, grad_weight


class _Products(torch.autograd.Function):
    """Rows ``add`` are added to where they are: nothing reads them afterwards."""

    @staticmethod
    def forward(
        ctx: Any, add: Tensor | None, bias: Tensor | None, after: Epilogue | None, *rest: Tensor
    ) -> Tensor:
        in_place = add is not None and add.ndim == 2 and add.is_contiguous() and not add.is_leaf
        if in_place:
            ctx.mark_dirty(add)
        terms = [Term(x, weight) for x, weight in zip(rest[::2], rest[1::2], strict=True)]
        out = native.product(terms, add=add, after=after, out=add if in_place else None)
        ctx.after, ctx.add_dims = after, 0 if add is None else add.ndim
        ctx.save_for_backward(*rest, *(() if after is None else (out,)))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        saved, output = ctx.saved_tensors, None
        if ctx.after is not None:
            *saved, output = saved
        terms = [Term(x, weight) for x, weight in zip(saved[::2], saved[1::2], strict=True)]
        wants_add, wants_bias, _, *wants = ctx.needs_input_grad
        grad_x, grad_weights, grad_bias = native.product_backward(
            terms, grad, output=output, after=ctx.after, wants_x=wants[::2]
        )
        grad_add = None
        if wants_add:
            grad_add = grad if ctx.add_dims == 2 else grad_bias
        of_terms = [each for pair in zip(grad_x, grad_weights, strict=True) for each in pair]
        return grad_add, grad_bias if wants_bias else None, None, *of_terms


class _SparseProduct(torch.autograd.Function):
    """``add + x W`` of sparse rows, which are inputs and have no gradient; its value is ``z`` where that is known.

    Rows ``add`` are added to where they are: nothing reads them afterwards.
    """

    @staticmethod
    def forward(
        ctx: Any,
        add: Tensor | None,
        bias: Tensor | None,
        after: Epilogue | None,
        z: Tensor | None,
        weight: Tensor,
        x: SparseRows,
    ) -> Tensor:
        ctx.x, ctx.after, ctx.add_dims = x, after, 0 if add is None else add.ndim
        if z is not None:
            return z.view_as(z)
        in_place = add is not None and add.ndim == 2 and add.is_contiguous() and not add.is_leaf
        if in_place:
            ctx.mark_dirty(add)
        out = native.sparse_product(x, weight, add=add, after=after, out=add if in_place else None)
        ctx.save_for_backward(*(() if after is None else (out,)))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), after, x = grads, ctx.after, ctx.x
        wants_add, wants_bias, *_ = ctx.needs_input_grad
        if (
            after is not None and ctx.add_dims == 2
        ):  # the rows that were added get the gradient before the epilogue
            _, activation, dropout, row_id = after
            how: dict[str, Any] = {"activation": activation, "dropout": dropout, "row_id": row_id}
            grad, _ = native.epilogue_backward(grad, *ctx.saved_tensors, **how, with_bias=False)
            after = None
        output = ctx.saved_tensors[0] if after is not None else None
        grad_weight, grad_bias = native.sparse_product_backward(x, grad, output=output, after=after)
        grad_add = None
        if wants_add:
            grad_add = grad if ctx.add_dims == 2 else grad_bias
        return grad_add, grad_bias if wants_bias else None, None, None, grad_weight, None
