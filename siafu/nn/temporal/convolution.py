"""The spatial part that most layers share: a graph convolution within each step, with the same weights in all."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.native import Dropout, Epilogue, Term
from siafu.nn.product import products
from siafu.nn.temporal.layer import Span
from siafu.nn.temporal.step import Step, StepRows, rows_of, snapshots_in, stacked, sum_step


def convolved(span: Span, weight: Tensor, activation: str) -> Tensor:
    """``s(A_t X_t W)`` for each own step: (T, N, F), (F, H) -> (T, N, H).

    The narrower side is summed, unless the sum of the inputs is known. Where the inputs are summed, their sum is kept
    for the way back, if there is one.
    """
    x, keep = span.x, torch.is_grad_enabled()
    if span.m is not None:
        return _Summed.apply(keep, span.steps, span.m, None, None, weight, activation)
    if weight.shape[1] < weight.shape[0]:
        return followed(snapshots_in(span.steps, projected(x, weight)), activation)
    if isinstance(x, Tensor) and x.ndim == 3:
        return _Summed.apply(keep, span.steps, None, None, x, weight, activation)
    if not isinstance(x, Tensor) or not x.requires_grad:
        return _Summed.apply(keep, span.steps, None, x, None, weight, activation)
    m = snapshots_in(span.steps, x)
    return products([(m.reshape(-1, m.shape[2]), weight)], after(activation)).view(*m.shape[:2], -1)


class _Summed(torch.autograd.Function):
    """Sums, unless they are known, and products step by step; without a way back the sums of one step are there."""

    @staticmethod
    def forward(
        ctx: Any,
        keep: bool,
        steps: Sequence[Step],
        sums: StepRows | None,
        given: StepRows | None,
        learned: Tensor | None,
        weight: Tensor,
        activation: str,
    ) -> Tensor:
        x = next(each for each in (sums, given, learned) if each is not None)
        (num_rows, width), m = rows_of(x, 0).shape, sums
        if m is None:
            m = native.empty_steps(len(steps) if keep else 1, num_rows, width, weight.dtype)
        out = native.empty_steps(len(steps), num_rows, weight.shape[1], weight.dtype)
        for place, step in enumerate(steps):
            rows = m[place if keep or m is sums else 0]
            if m is not sums:
                sum_step(step, rows_of(x, place), rows)
            native.product([Term(rows, weight)], after=after(activation), out=out[place])
        ctx.steps, ctx.activation = steps, activation
        ctx.save_for_backward(weight, out, *m)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, out, *m = ctx.saved_tensors
        wants = ctx.needs_input_grad[4]
        grad_x = native.empty_steps(len(m), m[0].shape[0], m[0].shape[1], m[0].dtype) if wants else None
        grad_weight = torch.zeros_like(weight)
        for place, step in enumerate(ctx.steps):
            (of_m,), (of_weight,), _ = native.product_backward(
                [Term(m[place], weight)],
                grads[0][place],
                output=out[place],
                after=after(ctx.activation),
                wants_x=[wants],
            )
            grad_weight += of_weight
            if grad_x is not None and of_m is not None:
                sum_step(step, of_m, grad_x[place], turned=True)
        return None, None, None, None, grad_x, grad_weight, None


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


def after(activation: str) -> Epilogue:
    """What follows a product: the activation alone."""
    return Epilogue(None, activation, Dropout(), None)


def stepwise(m: StepRows, weights: Tensor, activation: str) -> Tensor:
    """``s(M_t W_t)``: (T, N, F), (T, F, H) -> (T, N, H)."""
    known, learned = (None, m) if isinstance(m, Tensor) else (m, None)
    return _Stepwise.apply(known, learned, weights, activation)


class _Stepwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, known: Sequence[Tensor] | None, learned: Tensor | None, weights: Tensor, activation: str
    ) -> Tensor:
        m = known if learned is None else learned
        assert m is not None
        out = native.empty_steps(len(m), m[0].shape[0], weights.shape[2], weights.dtype)
        for rows, weight, into in zip(m, weights, out, strict=True):
            native.product([Term(rows, weight)], after=after(activation), out=into)
        ctx.activation = activation
        ctx.save_for_backward(weights, out, *m)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weights, out, *m = ctx.saved_tensors
        grad_m = None
        if ctx.needs_input_grad[1]:
            grad_m = native.empty_steps(len(m), m[0].shape[0], m[0].shape[1], m[0].dtype)
        grad_weights = torch.empty_like(weights)
        for step, (rows, weight) in enumerate(zip(m, weights, strict=True)):
            _, (of_weight,), _ = native.product_backward(
                [Term(rows, weight)],
                grads[0][step],
                output=out[step],
                after=after(ctx.activation),
                wants_x=[False if grad_m is None else grad_m[step]],
            )
            grad_weights[step] = of_weight
        return None, grad_m, grad_weights, None
