"""An LSTM over many rows with shared weights, through all steps of a block of time, and its gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from siafu.native import core, recurrent_reference
from siafu.native.memory import empty_rows, empty_steps
from siafu.native.products import has_kernel
from siafu.native.values import LstmInputs, LstmOutputs, State, Term

_MOST_PARTS, _PART_ROWS = 16, 1024


def lstm(given: LstmInputs, *, keep: bool = False, ends: bool = True) -> LstmOutputs:
    """Run all steps; ``keep`` keeps the gates, so that the backward pass need not recompute them.

    ``ends`` asks for the state after the last step.
    """
    if not has_kernel(*given.tensors):
        return LstmOutputs(*recurrent_reference.lstm(given), None)
    (h, c), steps = given.before, given.num_steps
    out, after = _steps(steps, h), (_like(h), _like(c)) if ends else None
    gates = _steps(steps, h, times=4) if keep else None
    core.kernels.lstm(*_plain(given), out, after, gates)
    return LstmOutputs(out, after, gates)


def lstm_backward(
    given: LstmInputs,
    grad: Tensor,
    grad_after: tuple[Tensor | None, Tensor | None],
    *,
    gates: Tensor | None,
    wants: Sequence[bool],
    apart: bool = False,
    over: bool = False,
) -> list[Tensor | None]:
    """Return the gradients of ``given.tensors`` from those of the outputs and of the last state.

    ``gates`` are the kept ones. ``wants`` says for each input whether the gradient of its rows is wanted. ``apart``
    returns these in the memory of the gates where they fit, with a larger row stride. ``over`` writes the gradients of
    the initial state over that state.
    """
    if not has_kernel(*given.tensors):
        return recurrent_reference.lstm_backward(given, grad, grad_after, wants=wants)
    *plain, (h, c) = _plain(given)
    grad_x = _places(given, wants, gates if apart else None)
    shapes = [*(term.weight.shape for term in given.inputs), given.weight_h.shape, given.bias.shape]
    sizes = [shape.numel() for shape in shapes]
    parts = min(_MOST_PARTS, max(1, h.shape[0] // _PART_ROWS))
    sums, total = empty_rows(parts, sum(sizes), h.dtype), h.new_empty(sum(sizes))
    of_after = [None if each is None else each.contiguous() for each in grad_after]
    of_before = (h, c) if over else (_like(h), _like(c))
    core.kernels.lstm_backward(
        *plain, (h, c), gates, grad.contiguous(), *of_after, grad_x, of_before, sums, total
    )
    *of_weights, of_h, of_bias = (flat.view(s) for flat, s in zip(total.split(sizes), shapes, strict=True))
    of_inputs = [each for pair in zip(grad_x, of_weights, strict=True) for each in pair]
    return [*of_inputs, of_h, of_bias, *of_before]


def _places(given: LstmInputs, wants: Sequence[bool], gates: Tensor | None) -> list[Tensor | None]:
    """Choose arrays for the gradients of inputs: columns of the gates, which are no longer needed by then."""
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


def _plain(given: LstmInputs) -> tuple[list[Term], Tensor, Tensor, Tensor | None, State]:
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
    return empty_steps(steps, h.shape[0], times * h.shape[1], h.dtype)


def _like(x: Tensor) -> Tensor:
    return empty_rows(x.shape[:-1].numel(), x.shape[-1], x.dtype).view_as(x)
