"""An LSTM over many rows that share its weights, through all steps of a block of time, and its gradients."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import siafu.native as native
from siafu.native import recurrent_reference
from siafu.native.products import Term, _ours

State = tuple[Tensor, Tensor]  # h and c, each (R, H)
_MOST_PARTS, _PART_ROWS = 16, 1024


class Lstm(NamedTuple):
    """What an LSTM reads: ``(i, f, g, o) = sum of x_t W + h_{t-1} U + b``.

    Attributes:
        inputs: one or two; x is (T, R, I), or (R, I) where every step has the same, its weight (I, 4H).
        weight_h: (H, 4H).
        bias: (4H,).
        present: (T, R) bool, or None: all rows are there. One that is absent keeps its state and gives zeros.
        before: h and c before the first step.
        num_steps: T.
    """

    inputs: Sequence[Term]
    weight_h: Tensor
    bias: Tensor
    present: Tensor | None
    before: State
    num_steps: int

    @property
    def tensors(self) -> list[Tensor]:
        """All that it has a gradient for: x and weight of each input, U, b, h, c."""
        return [*(each for term in self.inputs for each in term), self.weight_h, self.bias, *self.before]


class LstmPassed(NamedTuple):
    """What an LSTM gives: (T, R, H), h and c after the last step, and gates (T, R, 4H), where these were asked for.

    Gates serve one way back, which may write gradients over them.
    """

    out: Tensor
    after: State | None
    gates: Tensor | None


def lstm(given: Lstm, *, keep: bool = False, ends: bool = True) -> LstmPassed:
    """Pass all steps; with ``keep`` the gates are kept, so that the way back need not compute them again.

    ``ends`` asks for the state after the last step.
    """
    if not _ours(*given.tensors):
        return LstmPassed(*recurrent_reference.lstm(given), None)
    (h, c), steps = given.before, given.num_steps
    out, after = _steps(steps, h), (_like(h), _like(c)) if ends else None
    gates = _steps(steps, h, times=4) if keep else None
    native._core.lstm(*_plain(given), out, after, gates)
    return LstmPassed(out, after, gates)


def lstm_backward(
    given: Lstm,
    grad: Tensor,
    grad_after: tuple[Tensor | None, Tensor | None],
    *,
    gates: Tensor | None,
    wants: Sequence[bool],
    apart: bool = False,
    over: bool = False,
) -> list[Tensor | None]:
    """The gradients of ``given.tensors``, from those of the outputs and of the state after the last step.

    ``gates`` are those that were kept. ``wants`` tells of each input whether the gradient of its rows is asked for.
    With ``apart`` these come in the memory of the gates where they fit, and their rows lie apart then. With ``over``,
    those of the state before the first step are written over it.
    """
    if not _ours(*given.tensors):
        return recurrent_reference.lstm_backward(given, grad, grad_after, wants=wants)
    *plain, (h, c) = _plain(given)
    grad_x = _places(given, wants, gates if apart else None)
    shapes = [*(term.weight.shape for term in given.inputs), given.weight_h.shape, given.bias.shape]
    sizes = [shape.numel() for shape in shapes]
    parts = min(_MOST_PARTS, max(1, h.shape[0] // _PART_ROWS))
    sums, total = native.empty_rows(parts, sum(sizes), h.dtype), h.new_empty(sum(sizes))
    of_after = [None if each is None else each.contiguous() for each in grad_after]
    of_before = (h, c) if over else (_like(h), _like(c))
    native._core.lstm_backward(
        *plain, (h, c), gates, grad.contiguous(), *of_after, grad_x, of_before, sums, total
    )
    *of_weights, of_h, of_bias = (flat.view(s) for flat, s in zip(total.split(sizes), shapes, strict=True))
    of_inputs = [each for pair in zip(grad_x, of_weights, strict=True) for each in pair]
    return [*of_inputs, of_h, of_bias, *of_before]


def _places(given: Lstm, wants: Sequence[bool], gates: Tensor | None) -> list[Tensor | None]:
    """Where the gradients of inputs go: into columns of the gates, of which a step is done when they come."""
    places, first = list[Tensor | None](), 0
    for (x, _), wanted in zip(given.inputs, wants, strict=True):
        last = first + x.shape[-1]
        if not wanted:
            places.append(None)
        elif gates is None or x.ndim == 2 or last > gates.shape[2]:
            places.append(_like(x))
        else:
            places.append(gates[..., first:last])
            first = last
    return places


def _plain(given: Lstm) -> tuple[list[Term], Tensor, Tensor, Tensor | None, State]:
    inputs = [Term(x.contiguous(), weight.contiguous()) for x, weight in given.inputs]
    present = None if given.present is None else given.present.contiguous().view(torch.uint8)
    h, c = given.before
    return (
        inputs,
        given.weight_h.contiguous(),
        given.bias.contiguous(),
        present,
        (h.contiguous(), c.contiguous()),
    )


def _steps(steps: int, h: Tensor, *, times: int = 1) -> Tensor:
    return native.empty_steps(steps, h.shape[0], times * h.shape[1], h.dtype)


def _like(x: Tensor) -> Tensor:
    return native.empty_rows(x.shape[:-1].numel(), x.shape[-1], x.dtype).view_as(x)
