"""The spatial part that most temporal layers share: a graph convolution in each step, with the same weights in all."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.native import Dropout, Epilogue, Term
from siafu.nn.product import products
from siafu.nn.temporal.layer import Span
from siafu.nn.temporal.step import Step, StepRows, aggregate_step_into, aggregate_steps, rows_of, stack_steps


def convolve(span: Span, weight: Tensor, activation: str) -> Tensor:
    """``s(A_t X_t W)`` for each own step: (T, N, F), (F, H) -> (T, N, H).

    The narrower side is aggregated, unless the aggregate of the inputs is known. If the inputs are aggregated and
    gradients are needed, the aggregate is saved for backward.
    """
    x, keep = span.x, torch.is_grad_enabled()
    if span.m is not None:
        return _AggregateAndProject.apply(keep, span.steps, span.m, None, None, weight, activation)
    if weight.shape[1] < weight.shape[0]:
        return apply_activation(aggregate_steps(span.steps, project_steps(x, weight)), activation)
    if isinstance(x, Tensor) and x.ndim == 3:
        return _AggregateAndProject.apply(keep, span.steps, None, None, x, weight, activation)
    if not isinstance(x, Tensor) or not x.requires_grad:
        return _AggregateAndProject.apply(keep, span.steps, None, x, None, weight, activation)
    m = aggregate_steps(span.steps, x)
    return products([(m.reshape(-1, m.shape[2]), weight)], activation_only(activation)).view(*m.shape[:2], -1)


class _AggregateAndProject(torch.autograd.Function):
    """Aggregate (unless that is known) and project step by step.

    With ``keep`` all aggregates are saved for backward; without, one step's is held at a time.
    """

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
                aggregate_step_into(step, rows_of(x, place), rows)
            native.product([Term(rows, weight)], after=activation_only(activation), out=out[place])
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
                after=activation_only(ctx.activation),
                wants_x=[wants],
            )
            grad_weight += of_weight
            if grad_x is not None and of_m is not None:
                aggregate_step_into(step, of_m, grad_x[place], transposed=True)
        return None, None, None, None, grad_x, grad_weight, None


def fill_inactive(
    y_nodes: Tensor, x_nodes: Tensor, active: Tensor, weight: Tensor, activation: str
) -> Tensor:
    """Fill in the convolved rows of inactive nodes, ``s(x W)``: a node without an edge has a self-loop of weight 1.

    (T, R, H), inputs (T, R, F) or (R, F) for all steps, (T, R) bool -> (T, R, H).
    """
    inactive = (~active).reshape(-1).nonzero()[:, 0]
    rows = inactive if x_nodes.ndim == 3 else inactive % y_nodes.shape[1]
    x_inactive = x_nodes.reshape(-1, x_nodes.shape[-1]).index_select(0, rows)
    y_inactive = products([(x_inactive, weight)], activation_only(activation))
    return y_nodes.reshape(-1, y_nodes.shape[2]).index_copy(0, inactive, y_inactive).view_as(y_nodes)


def project_steps(x: StepRows, weight: Tensor) -> Tensor:
    """``X_t W``: (T, N, F) -> (T, N, H), or (N, F) -> (N, H)."""
    x = stack_steps(x)
    return products([(x.reshape(-1, x.shape[-1]), weight)]).view(*x.shape[:-1], -1)


def apply_activation(z: Tensor, activation: str) -> Tensor:
    """Apply the activation in place."""
    match activation:
        case "relu":
            return z.relu_()
        case "elu":
            return torch.nn.functional.elu_(z)
        case _:
            return z


def activation_only(activation: str) -> Epilogue:
    """The epilogue of a product: the activation, without dropout or bias."""
    return Epilogue(None, activation, Dropout(), None)


def project_by_step(m: StepRows, weights: Tensor, activation: str) -> Tensor:
    """``s(M_t W_t)``: (T, N, F), (T, F, H) -> (T, N, H)."""
    known, learned = (None, m) if isinstance(m, Tensor) else (m, None)
    return _ProjectByStep.apply(known, learned, weights, activation)


class _ProjectByStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, known: Sequence[Tensor] | None, learned: Tensor | None, weights: Tensor, activation: str
    ) -> Tensor:
        m = known if learned is None else learned
        assert m is not None
        out = native.empty_steps(len(m), m[0].shape[0], weights.shape[2], weights.dtype)
        for rows, weight, into in zip(m, weights, out, strict=True):
            native.product([Term(rows, weight)], after=activation_only(activation), out=into)
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
                after=activation_only(ctx.activation),
                wants_x=[False if grad_m is None else grad_m[step]],
            )
            grad_weights[step] = of_weight
        return None, grad_m, grad_weights, None
