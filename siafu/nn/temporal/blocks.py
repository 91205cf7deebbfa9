"""Gradients of a long time in little memory: it is passed block by block, and only the state between them is kept."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from siafu.nn.temporal.layer import Span, State
from siafu.nn.temporal.model import TemporalModel
from siafu.nn.temporal.turn import Turn, alone

Gradients = list[Tensor | None]


class Passed(NamedTuple):
    """What a pass over all blocks gives, beside gradients.

    Attributes:
        loss: the sum of the losses of all blocks, a number without a gradient.
        state: the state after the last block, without a gradient.
    """

    loss: Tensor
    state: State


def passed_in_blocks(
    model: TemporalModel,
    span_of: Callable[[int], Span],
    loss_of: Callable[[int, Tensor], Tensor],
    *,
    num_blocks: int,
    state: State,
    turn: Turn = alone,
) -> Passed:
    """Add the gradients of ``sum of loss_of(block, outputs of the block)`` to those of all parameters.

    All blocks but the last are passed without a graph; then each is passed again and goes back, from the last, which
    needs no second pass, to the first. ``span_of`` makes the span of a block, whenever it is asked for; ``loss_of`` is
    asked once for each. ``state`` is that before the first block, as ``model.begin`` returns it. The turn is told
    before each pass which block begins, and whether it was passed before.
    """
    before, last = [state], state
    for block in range(num_blocks - 1):
        turn.begin(block, again=False)
        with torch.no_grad():
            before.append(model(span_of(block), before[-1], turn)[1])
    losses: list[Tensor] = []
    grads: Gradients = [None] * len(state)
    for block in reversed(range(num_blocks)):
        turn.begin(block, again=block < num_blocks - 1)
        leaves = [each.detach().requires_grad_() for each in before.pop()]
        loss, after = _passed_back(model, span_of(block), partial(loss_of, block), leaves, grads, turn)
        last = last if losses else after
        del after
        losses.append(loss)
        grads = [each.grad for each in leaves]
    _back(state, grads)
    return Passed(torch.stack(losses).sum(), last)


def _passed_back(
    model: TemporalModel,
    span: Span,
    loss_of: Callable[[Tensor], Tensor],
    state: State,
    grads: Gradients,
    turn: Turn,
) -> tuple[Tensor, State]:
    """Pass one block and go back, by the gradients of the state after it; its loss, and that state.

    What it makes is gone when it returns, so that the next block finds the memory free.
    """
    out, after = model(span, state, turn)
    loss = loss_of(out)
    del out, span
    _back([loss, *after], [torch.ones_like(loss), *grads])
    return loss.detach(), [each.detach() for each in after]


def _back(values: list[Tensor], grads: Gradients) -> None:
    """Go back from some values by their gradients; those without one are left."""
    pairs = [
        (value, grad)
        for value, grad in zip(values, grads, strict=True)
        if value.requires_grad and grad is not None
    ]
    if pairs:
        torch.autograd.backward([value for value, _ in pairs], [grad for _, grad in pairs])
