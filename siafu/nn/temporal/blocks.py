"""Gradients of a long time in little memory: it is passed block by block, and only the state between them is kept."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from siafu.nn.temporal.layer import Span, State
from siafu.nn.temporal.model import TemporalModel
from siafu.nn.temporal.turn import Turn, alone


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
    before = [state]
    for block in range(num_blocks - 1):
        turn.begin(block, again=False)
        with torch.no_grad():
            _, after = model(span_of(block), before[-1], turn)
        before.append(after)
    losses: list[Tensor] = []
    last, grads = state, None
    for block in reversed(range(num_blocks)):
        turn.begin(block, again=block < num_blocks - 1)
        leaves = [each.detach().requires_grad_() for each in before.pop()]
        out, after = model(span_of(block), leaves, turn)
        loss = loss_of(block, out)
        last = last if losses else [each.detach() for each in after]
        _back([loss, *after], [None, *(grads or [None] * len(after))], roots=1)
        losses.append(loss.detach())
        grads = [each.grad for each in leaves]
    _back(state, grads or [])
    return Passed(torch.stack(losses).sum(), last)


def _back(values: list[Tensor], grads: list[Tensor | None], *, roots: int = 0) -> None:
    """Go back from some values by their gradients; the first are scalars, whose gradient is 1. Others need one."""
    pairs = [
        (value, grad)
        for place, (value, grad) in enumerate(zip(values, grads, strict=True))
        if value.requires_grad and (place < roots or grad is not None)
    ]
    if pairs:
        torch.autograd.backward([value for value, _ in pairs], [grad for _, grad in pairs])
