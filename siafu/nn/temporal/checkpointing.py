"""Gradient checkpointing over time: the state between segments is stored, activations are recomputed."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.nn.temporal.layer import Span, State
from siafu.nn.temporal.model import TemporalModel
from siafu.nn.temporal.temporal_comm import TemporalComm, single_rank

Gradients = list[Tensor | None]


def checkpointed_backward(
    model: TemporalModel,
    make_span: Callable[[int], Span],
    step_loss: Callable[[int, int, Tensor], Tensor | None],
    *,
    num_segments: int,
    state: State,
    comm: TemporalComm = single_rank,
    known_states: Sequence[State] = (),
) -> Tensor:
    """Add the gradients of the sum of all losses to those of all parameters; returns the sum.

    All segments but the last are first run without autograd, to get the states between them. Then segments are run
    with autograd and differentiated, from the last to the first. The last segment therefore runs once, others twice.

    Args:
        model: the model.
        make_span: makes the span of a segment; called each time the segment is run.
        step_loss: called once for each own step with segment, place in the segment and rows (N, H); None: no loss.
        num_segments: the number of segments.
        state: the state before the first segment, as ``model.begin`` returns it.
        comm: told before each run which segment begins, and how it is run.
        known_states: states after the first segments, if they are known; these segments run once. May be overwritten.
    """
    before, stored = [state, *known_states], range(len(known_states), num_segments - 1)
    del known_states
    for segment in stored:
        comm.begin_segment(segment, "forward")
        with torch.no_grad():
            before.append(model(make_span(segment), before[-1], comm)[1])
    losses: list[Tensor] = []
    grads: Gradients = [None] * len(state)
    for segment in reversed(range(num_segments)):
        comm.begin_segment(segment, "recompute" if segment in stored else "once")
        loss, grads = _backward_segment(
            model,
            make_span(segment)._replace(final_state_needed=False, initial_state_reusable=segment > 0),
            partial(step_loss, segment),
            before.pop(),
            grads,
            comm,
        )
        losses.append(loss)
    _backward(state, grads)
    return torch.stack(losses).sum()


def _backward_segment(
    model: TemporalModel,
    span: Span,
    step_loss: Callable[[int, Tensor], Tensor | None],
    state: State,
    grads: Gradients,
    comm: TemporalComm,
) -> tuple[Tensor, Gradients]:
    """Run one segment and differentiate it; returns its loss and the gradients of the state before it.

    ``grads`` are the gradients of the state after it. Outputs and the state after the segment are freed before the
    backward pass, and everything else when this function returns.
    """
    found: Gradients = [None] * len(state)
    state = list(_CaptureGradients.apply(found, torch.zeros((), requires_grad=True), *state))
    out, after = model(span, state, comm)
    loss, grad = _loss_gradients(
        out, step_loss, overwrite=not model.temporal_layers[-1].backward_reads_outputs
    )
    tied = _tie_gradients([out, *after], [grad, *grads])
    del out, grad, span, after, state
    grads.clear()
    if tied is not None:
        tied.backward()
    return loss, found


def _loss_gradients(
    out: Tensor, step_loss: Callable[[int, Tensor], Tensor | None], *, overwrite: bool
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of some steps, and its gradient with respect to their rows: (T, N, H) -> (), (T, N, H).

    With ``overwrite`` gradients are written over the rows.
    """
    loss, rows = out.new_zeros(()), out.detach()
    grad = rows if overwrite else native.empty_steps(rows.shape[0], rows.shape[1], rows.shape[2], rows.dtype)
    for place in range(rows.shape[0]):
        h = rows[place].detach().requires_grad_()
        of_step = step_loss(place, h)
        if of_step is not None:
            of_step.backward()
            loss += of_step.detach()
        if h.grad is None:
            grad[place].zero_()
        else:
            grad[place].copy_(h.grad)
    return loss, grad


def _backward(values: list[Tensor], grads: Gradients) -> None:
    """Backpropagate gradients from some values; values without a gradient are skipped."""
    tied = _tie_gradients(values, grads)
    if tied is not None:
        tied.backward()


def _tie_gradients(values: list[Tensor], grads: Gradients) -> Tensor | None:
    """A scalar whose ``backward()`` starts at some values with given gradients; it does not hold the values."""
    pairs = [
        (value, grad)
        for value, grad in zip(values, grads, strict=True)
        if value.requires_grad and grad is not None
    ]
    return (
        _InjectGradients.apply([grad for _, grad in pairs], *(value for value, _ in pairs)) if pairs else None
    )


class _InjectGradients(torch.autograd.Function):
    """Zero forward, the given gradients backward."""

    @staticmethod
    def forward(ctx: Any, grads: list[Tensor], *values: Tensor) -> Tensor:
        ctx.grads = grads
        return values[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        grads, ctx.grads = ctx.grads, None
        return None, *grads


class _CaptureGradients(torch.autograd.Function):
    """The identity on the state before a segment; backward puts its gradients into a list and stops there."""

    @staticmethod
    def forward(ctx: Any, found: Gradients, _: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.found = found
        ctx.set_materialize_grads(False)
        return tuple(each.detach() for each in state)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        ctx.found[:] = grads
        return None, None, *(None for _ in grads)
