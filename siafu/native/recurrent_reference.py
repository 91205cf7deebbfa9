"""The LSTM in plain torch; see :mod:`siafu.native.recurrent`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from siafu.native.values import LstmInputs, State


def lstm(given: LstmInputs) -> tuple[Tensor, State]:
    """Pass all steps; see :func:`siafu.native.lstm`."""
    summed = sum((x @ weight for x, weight in given.inputs), given.bias)
    gates = torch.broadcast_to(summed, (given.num_steps, *summed.shape[-2:])).unbind()
    (h, c), outputs = given.before, []
    for step, of_inputs in enumerate(gates):
        i, f, g, o = (of_inputs + h @ given.weight_h).chunk(4, 1)
        c_new = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h_new = o.sigmoid() * c_new.tanh()
        there = None if given.present is None else given.present[step]
        outputs.append(where_present(there, h_new, torch.zeros_like(h_new)))
        h, c = where_present(there, h_new, h), where_present(there, c_new, c)
    return torch.stack(outputs), (h, c)


def lstm_backward(
    given: LstmInputs, grad: Tensor, grad_after: tuple[Tensor | None, Tensor | None], *, wants: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients; see :func:`siafu.native.lstm_backward`."""
    leaves = [each.detach().requires_grad_() for each in given.tensors]
    count = 2 * len(given.inputs)
    inputs = [type(given.inputs[0])(*pair) for pair in zip(leaves[:count:2], leaves[1:count:2], strict=True)]
    weight_h, bias, h, c = leaves[count:]
    with torch.enable_grad():
        out, after = lstm(type(given)(inputs, weight_h, bias, given.present, (h, c), given.num_steps))
        ends = [
            (out, grad),
            *((end, of) for end, of in zip(after, grad_after, strict=True) if of is not None),
        ]
    found = torch.autograd.grad([end for end, _ in ends], leaves, [of for _, of in ends])
    unwanted = {2 * place for place, wanted in enumerate(wants) if not wanted}
    return [None if place in unwanted else each for place, each in enumerate(found)]


def where_present(present: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """Select new rows where present, else old ones: (R,), (R, H) -> (R, H)."""
    return new if present is None else torch.where(present[:, None], new, old)
