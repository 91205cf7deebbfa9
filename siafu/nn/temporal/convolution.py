"""The spatial part that most layers share: a graph convolution within each step, with the same weights in all."""

from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.native import After, Dropout, Term
from siafu.nn.product import products
from siafu.nn.temporal.layer import Span
from siafu.nn.temporal.step import StepRows, snapshots_in, stacked


def convolved(span: Span, weight: Tensor, activation: str) -> Tensor:
    """``s(A_t X_t W)`` for each own step: (T, N, F), (F, H) -> (T, N, H).

    The narrower side is summed, unless the sum of the inputs is known.
    """
    if span.m is None and weight.shape[1] < weight.shape[0]:
        return followed(snapshots_in(span.steps, projected(span.x, weight)), activation)
    m = snapshots_in(span.steps, span.x) if span.m is None else span.m
    flat = products([(m.reshape(-1, m.shape[2]), weight)], after(activation))
    return flat.view(*m.shape[:2], -1)


def projected(x: StepRows, weight: Tensor) -> Tensor:
    """``X_t W``: (T, N, F) -> (T, N, H), or (N, F) -> (N, H)."""
    x = stacked(x)
    return products([(x.reshape(-1, x.shape[-1]), weight)]).view(*x.shape[:-1], -1)


def followed(z: Tensor, activation: str) -> Tensor:
    """The activation of rows that nobody else reads."""
    match activation:
        case "relu":
            return z.relu_()
        case "elu":
            return torch.nn.functional.elu_(z)
        case _:
            return z


def after(activation: str) -> After:
    """What follows a product: the activation alone."""
    return After(None, activation, Dropout(), None)


def stepwise(m: Tensor, weights: Tensor, activation: str) -> Tensor:
    """``s(M_t W_t)``: (T, N, F), (T, F, H) -> (T, N, H)."""
    return _Stepwise.apply(m, weights, activation)


class _Stepwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, m: Tensor, weights: Tensor, activation: str) -> Tensor:
        num_steps, num_rows, _ = m.shape
        out = native.empty_steps(num_steps, num_rows, weights.shape[2], m.dtype)
        for rows, weight, into in zip(m, weights, out, strict=True):
            native.product([Term(rows, weight)], after=after(activation), out=into)
        ctx.activation = activation
        ctx.save_for_backward(m, weights, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, None]:
        m, weights, out = ctx.saved_tensors
        wants_m = ctx.needs_input_grad[0]
        grad_m = torch.empty_like(m) if wants_m else None
        grad_weights = torch.empty_like(weights)
        for step, (rows, weight) in enumerate(zip(m, weights, strict=True)):
            (of_rows,), (of_weight,), _ = native.product_backward(
                [Term(rows, weight)],
                grads[0][step],
                output=out[step],
                after=after(ctx.activation),
                wants_x=[wants_m],
            )
            grad_weights[step] = of_weight
            if grad_m is not None and of_rows is not None:
                grad_m[step] = of_rows
        return grad_m, grad_weights, None
