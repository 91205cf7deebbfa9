"""Gradients of a long time in little memory: it is passed block by block, and only the state between them is kept."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siafu.nn.temporal.layer import Span, State
from siafu.nn.temporal.model import TemporalModel
from siafu.nn.temporal.turn import Turn, alone

Gradients = list[Tensor | None]


def passed_in_blocks(
    model: TemporalModel,
    span_of: Callable[[int], Span],
    loss_of: Callable[[int, Tensor], Tensor],
    *,
    num_blocks: int,
    state: State,
    turn: Turn = alone,
) -> Tensor:
    """Add the gradients of ``sum of loss_of(block, outputs of the block)`` to those of all parameters; returns the sum.

    All blocks but the last are passed without a graph; then each is passed again and goes back, from the last, which
    needs no second pass, to the first. ``span_of`` makes the span of a block, whenever it is asked for; ``loss_of`` is
    asked once for each. ``state`` is that before the first block, as ``model.begin`` returns it. The turn is told
    before each pass which block begins, and whether it was passed before.
    """
    before = [state]
    for block in range(num_blocks - 1):
        turn.begin(block, again=False)
        with torch.no_grad():
            before.append(model(span_of(block), before[-1], turn)[1])
    losses: list[Tensor] = []
    grads: Gradients = [None] * len(state)
    for block in reversed(range(num_blocks)):
        turn.begin(block, again=block < num_blocks - 1)
        leaves = [each.detach().requires_grad_() for each in before.pop()]
        losses.append(_passed_back(model, span_of(block), partial(loss_of, block), leaves, grads, turn))
        grads = [each.grad for each in leaves]
    _back(state, grads)
    return torch.stack(losses).sum()


def _passed_back(
    model: TemporalModel,
    span: Span,
    loss_of: Callable[[Tensor], Tensor],
    state: State,
    grads: Gradients,
    turn: Turn,
) -> Tensor:
    """Pass one block and go back, by the gradients of the state after it; returns its loss.

    What it makes is gone when it returns, so that the next block finds the memory free; outputs and the state after it
    are gone before it goes back.
    """
    out, after = model(span, state, turn)
    loss = loss_of(out)
    tied = _tied([loss, *after], [torch.ones_like(loss), *grads])
    del out, span, after
    if tied is not None:
        tied.backward()
    return loss.detach()


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
