"""Gradients of a long time in little memory: it is passed block by block, and only the state between them is kept."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.nn.temporal.layer import Span, State
from siafu.nn.temporal.model import TemporalModel
from siafu.nn.temporal.temporal_comm import Turn, alone

Gradients = list[Tensor | None]


def checkpointed_backward(
    model: TemporalModel,
    span_of: Callable[[int], Span],
    loss_of: Callable[[int, int, Tensor], Tensor | None],
    *,
    num_segments: int,
    state: State,
    turn: Turn = alone,
    known: Sequence[State] = (),
) -> Tensor:
    """Add the gradients of the sum of all losses to those of all parameters; returns the sum.

    All blocks but the last are passed without a graph; then each is passed again and goes back, from the last, which
    needs no second pass, to the first. ``span_of`` makes the span of a block, whenever it is asked for. ``loss_of`` is
    asked once for each own step, by its block, its place there and its rows, (N, H); None: it has no loss. ``state`` is
    that before the first block, as ``model.begin`` returns it; blocks after which the state is ``known`` are passed
    once, and known states may be written over. The turn is told before each pass which block begins, and how it is
    passed.
    """
    before, passed = [state, *known], range(len(known), num_segments - 1)
    del known
    for block in passed:
        turn.begin(block, "first")
        with torch.no_grad():
            before.append(model(span_of(block), before[-1], turn)[1])
    losses: list[Tensor] = []
    grads: Gradients = [None] * len(state)
    for block in reversed(range(num_segments)):
        turn.begin(block, "again" if block in passed else "only")
        loss, grads = _passed_back(
            model,
            span_of(block)._replace(ends=False, spent=block > 0),
            partial(loss_of, block),
            before.pop(),
            grads,
            turn,
        )
        losses.append(loss)
    _back(state, grads)
    return torch.stack(losses).sum()


def _passed_back(
    model: TemporalModel,
    span: Span,
    loss_of: Callable[[int, Tensor], Tensor | None],
    state: State,
    grads: Gradients,
    turn: Turn,
) -> tuple[Tensor, Gradients]:
    """Pass one block and go back, by the gradients of the state after it; returns its loss and those before it.

    What it makes is gone when it returns, so that the next block finds the memory free; outputs and the state after it
    are gone before it goes back.
    """
    found: Gradients = [None] * len(state)
    state = list(_Begun.apply(found, torch.zeros((), requires_grad=True), *state))
    out, after = model(span, state, turn)
    loss, grad = _of_losses(out, loss_of, over=not model.temporal_layers[-1].rereads)
    tied = _tied([out, *after], [grad, *grads])
    del out, grad, span, after, state
    grads.clear()
    if tied is not None:
        tied.backward()
    return loss, found


def _of_losses(
    out: Tensor, loss_of: Callable[[int, Tensor], Tensor | None], *, over: bool
) -> tuple[Tensor, Tensor]:
    """The losses of the rows of some steps, added up, and their gradients, step by step: (T, N, H) -> (), (T, N, H).

    Gradients are written over the rows where these are not read again.
    """
    loss, rows = out.new_zeros(()), out.detach()
    grad = rows if over else native.empty_steps(rows.shape[0], rows.shape[1], rows.shape[2], rows.dtype)
    for place in range(rows.shape[0]):
        h = rows[place].detach().requires_grad_()
        of_step = loss_of(place, h)
        if of_step is not None:
            of_step.backward()
            loss += of_step.detach()
        if h.grad is None:
            grad[place].zero_()
        else:
            grad[place].copy_(h.grad)
    return loss, grad


def _back(values: list[Tensor], grads: Gradients) -> None:
    """Go back from some values by their gradients; those without one are left."""
    tied = _tied(values, grads)
    if tied is not None:
        tied.backward()


def _tied(values: list[Tensor], grads: Gradients) -> Tensor | None:
    """A number from which the way back leads to some values with their gradients; it holds none of the values."""
    pairs = [
        (value, grad)
        for value, grad in zip(values, grads, strict=True)
        if value.requires_grad and grad is not None
    ]
    return _Tied.apply([grad for _, grad in pairs], *(value for value, _ in pairs)) if pairs else None


class _Tied(torch.autograd.Function):
    """Nothing forward, given gradients back."""

    @staticmethod
    def forward(ctx: Any, grads: list[Tensor], *values: Tensor) -> Tensor:
        ctx.grads = grads
        return values[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        grads, ctx.grads = ctx.grads, None
        return None, *grads


class _Begun(torch.autograd.Function):
    """A state with which a block begins, and at which its way back ends: gradients are put into a list."""

    @staticmethod
    def forward(ctx: Any, found: Gradients, _: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.found = found
        ctx.set_materialize_grads(False)
        return tuple(each.detach() for each in state)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        ctx.found[:] = grads
        return None, None, *(None for _ in grads)
