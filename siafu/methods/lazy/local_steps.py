"""What clients do apart: steps on their own nodes from the same weights, and what they tell of it, rounded."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from siafu.comm.wire_sizes import UpdateWire
from siafu.methods.lazy.averaging import flat, put

_NUMBERS = 1 << 23  # of the weights of clients that step at once

# For the weights of clients, (B, N), and the rows of each, in a local step: gradients, (B, N), and losses, (B,), means.
ClientGradients = Callable[[Tensor, Sequence[Tensor], int], tuple[Tensor, Tensor]]


def run_local_steps(
    before: Tensor,
    clients: Sequence[Tensor],
    shares: Sequence[float],
    *,
    gradients: ClientGradients,
    lr: float,
    steps: int,
    wire: UpdateWire,
) -> tuple[Tensor, float]:
    """The mean of what clients tell, (N,), by their shares, which add up to 1; and of their losses.

    Each takes so many plain steps of size ``lr`` from ``before``, (N,), and tells the sum of the gradients that it
    followed: where there is one step, the gradient.
    """
    mean, lost = torch.zeros_like(before), 0.0
    for some in _batches(len(clients), before.numel()):
        share = before.new_tensor(shares[some])
        told, losses = _told(before, clients[some], gradients, lr=lr, steps=steps)
        mean += share @ wire.arrived(told)
        lost += float(share @ losses)
    return mean, lost


def sequential_gradients(
    learned: Sequence[nn.Parameter], loss: Callable[[Tensor], Tensor], begin: Callable[[int], None]
) -> ClientGradients:
    """Gradients of one client after another, by the model itself; ``loss`` is the mean of some rows."""

    def gradients(weights: Tensor, clients: Sequence[Tensor], local: int) -> tuple[Tensor, Tensor]:
        before, found, losses = flat(learned), [], []
        for mine, rows in zip(weights, clients, strict=True):
            put(learned, mine)
            begin(local)
            mean = loss(rows)
            found.append(flat_gradient(mean, learned))
            losses.append(mean.detach())
        put(learned, before)
        return torch.stack(found), torch.stack(losses)

    return gradients


def flat_gradient(loss: Tensor, learned: Sequence[nn.Parameter]) -> Tensor:
    """The gradient of a loss in one row, (N,)."""
    grads = torch.autograd.grad(loss, list(learned), allow_unused=True)
    pairs = zip(learned, grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])


def _batches(clients: int, numbers: int) -> Iterator[slice]:
    step = max(1, _NUMBERS // max(1, numbers))
    for begin in range(0, clients, step):
        yield slice(begin, begin + step)


def _told(
    before: Tensor, clients: Sequence[Tensor], gradients: ClientGradients, *, lr: float, steps: int
) -> tuple[Tensor, Tensor]:
    """What each of some clients tells, (B, N), and the mean loss of its steps, (B,)."""
    start = before.expand(len(clients), -1)
    told, losses = torch.zeros_like(start), before.new_zeros(len(clients))
    for local in range(steps):
        grad, loss = gradients(start - lr * told, clients, local)
        told += grad
        losses += loss / steps
    return told, losses
