"""The spatial part that most layers share: a graph convolution within each step, with the same weights in all."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.native import After, Dropout, Term
from siafu.nn.product import products
from siafu.nn.temporal.layer import Span
from siafu.nn.temporal.step import Step, StepRows, rows_of, snapshots_in, stacked, sum_step


def convolved(span: Span, weight: Tensor, activation: str) -> Tensor:
    """``s(A_t X_t W)`` for each own step: (T, N, F), (F, H) -> (T, N, H).

    The narrower side is summed, unless the sum of the inputs is known. Where the inputs are summed, their sum is not
    kept: making it again takes less than the product does.
    """
    if span.m is not None:
        flat = products([(span.m.reshape(-1, span.m.shape[2]), weight)], after(activation))
        return flat.view(*span.m.shape[:2], -1)
    if weight.shape[1] < weight.shape[0]:
        return followed(snapshots_in(span.steps, projected(span.x, weight)), activation)
    x = span.x
    if isinstance(x, Tensor) and x.ndim == 3:
        return _Summed.apply(span.steps, None, x, weight, activation)
    if not isinstance(x, Tensor) or not x.requires_grad:
        return _Summed.apply(span.steps, x, None, weight, activation)
    m = snapshots_in(span.steps, x)
    return products([(m.reshape(-1, m.shape[2]), weight)], after(activation)).view(*m.shape[:2], -1)


class _Summed(torch.autograd.Function):
    """Sums and products step by step; of the sums one step is there at a time, on the way back too."""

    @staticmethod
    def forward(
        ctx: Any,
        steps: Sequence[Step],
        given: StepRows | None,
        learned: Tensor | None,
        weight: Tensor,
        activation: str,
    ) -> Tensor:
        x = given if learned is None else learned
        assert x is not None
        m = torch.empty_like(rows_of(x, 0))
        out = native.empty_steps(len(steps), m.shape[0], weight.shape[1], m.dtype)
        for place, step in enumerate(steps):
            sum_step(step, rows_of(x, place), m)
            native.product([Term(m, weight)], after=after(activation), out=out[place])
        ctx.steps, ctx.given, ctx.activation = steps, given, activation
        ctx.save_for_backward(*([] if learned is None else [learned]), weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, Tensor | None, Tensor, None]:
        *learned, weight, out = ctx.saved_tensors
        x, wants = (learned[0], ctx.needs_input_grad[2]) if learned else (ctx.given, False)
        grad_x = native.empty_steps(x.shape[0], x.shape[1], x.shape[2], x.dtype) if wants else None
        m, grad_weight = torch.empty_like(rows_of(x, 0)), torch.zeros_like(weight)
        for place, step in enumerate(ctx.steps):
            sum_step(step, rows_of(x, place), m)
            (of_m,), (of_weight,), _ = native.product_backward(
                [Term(m, weight)],
                grads[0][place],
                output=out[place],
                after=after(ctx.activation),
                wants_x=[wants],
            )
            grad_weight += of_weight
            if grad_x is not None and of_m is not None:
                sum_step(step, of_m, grad_x[place], turned=True)
        return None, None, grad_x, grad_weight, None


def with_idle(y_nodes: Tensor, x_nodes: Tensor, busy: Tensor, weight: Tensor, activation: str) -> Tensor:
    """Convolved rows with those of nodes that have no edge filled in: ``s(x W)``, since a node's own weight is 1 then.

    (T, R, H), inputs (T, R, F) or (R, F) for all steps, (T, R) bool -> (T, R, H).
    """
    idle = (~busy).reshape(-1).nonzero()[:, 0]
    rows = idle if x_nodes.ndim == 3 else idle % y_nodes.shape[1]
    x_idle = x_nodes.reshape(-1, x_nodes.shape[-1]).index_select(0, rows)
    y_idle = products([(x_idle, weight)], after(activation))
    return y_nodes.reshape(-1, y_nodes.shape[2]).index_copy(0, idle, y_idle).view_as(y_nodes)


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
