"""What clients do apart: steps on their own nodes from the same weights, and what they tell of it, rounded."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from siafu.comm.weights import UpdateWire
from siafu.training.config import TrainConfig
from siafu.training.lazy.updates import flat, put


def local_moves(
    learned: Sequence[nn.Parameter],
    clients: Sequence[Tensor],
    *,
    loss: Callable[[Tensor], Tensor],
    begin: Callable[[int], None],
    weight: Callable[[Tensor], float],
    config: TrainConfig,
    lr: float,
    steps: int,
    wire: UpdateWire,
) -> tuple[Tensor, float]:
    """The mean of what clients tell, (N,), each by the weight of its rows; and of their losses.

    That is a gradient where there is one step, else how far weights moved in so many steps of Adam, whose state is
    not kept: a client may not be asked again.
    """
    before, shares = flat(learned), [weight(rows) for rows in clients]
    total, mean, lost = sum(shares) or 1.0, torch.zeros_like(before), 0.0  # of all clients together
    for rows, share in zip(clients, shares, strict=True):
        put(learned, before)
        told, first = _told(learned, rows, loss, begin, config=config, lr=lr, steps=steps)
        mean += share / total * wire.arrived(told[None])[0]
        lost += share / total * first
    put(learned, before)
    return mean, lost


def flat_gradient(loss: Tensor, learned: Sequence[nn.Parameter]) -> Tensor:
    """The gradient of a loss in one row, (N,)."""
    grads = torch.autograd.grad(loss, list(learned), allow_unused=True)
    pairs = zip(learned, grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])


def _told(
    learned: Sequence[nn.Parameter],
    rows: Tensor,
    loss: Callable[[Tensor], Tensor],
    begin: Callable[[int], None],
    *,
    config: TrainConfig,
    lr: float,
    steps: int,
) -> tuple[Tensor, float]:
    """What one client tells, (N,), and the mean loss of its steps."""
    before = flat(learned)
    first, second, losses = torch.zeros_like(before), torch.zeros_like(before), 0.0
    for local in range(steps):
        begin(local)
        found = loss(rows)
        grad = flat_gradient(found, learned)
        losses += float(found.detach()) / steps
        if steps == 1:
            return grad, losses
        grad = grad + config.weight_decay * flat(learned)
        first, second = first.lerp(grad, 0.1), second.lerp(grad.square(), 0.001)
        size = (second / (1 - 0.999 ** (local + 1))).sqrt() + 1e-8
        put(learned, flat(learned) - lr * first / (1 - 0.9 ** (local + 1)) / size)
    return flat(learned) - before, losses
