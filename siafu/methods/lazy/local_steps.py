"""Local training of simulated clients: gradient steps on own nodes from the same weights, and their rounded updates."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from siafu.comm.wire_sizes import UpdateEncoding
from siafu.methods.lazy.averaging import flat_parameters, set_flat_parameters

_NUMBERS = 1 << 23  # weights of all clients that step at once

# (weights of clients (B, N), rows of each, number of the local step) -> mean gradients (B, N) and mean losses (B,).
ClientGradients = Callable[[Tensor, Sequence[Tensor], int], tuple[Tensor, Tensor]]


def run_local_steps(
    before: Tensor,
    clients: Sequence[Tensor],
    shares: Sequence[float],
    *,
    gradients: ClientGradients,
    lr: float,
    steps: int,
    wire: UpdateEncoding,
) -> tuple[Tensor, float]:
    """Average the updates of clients, (N,), and their losses, weighted by ``shares``, which add up to 1.

    Each client takes ``steps`` SGD steps of size ``lr`` from the weights ``before``, (N,). Its update is the sum of its
    gradients.
    """
    mean, lost = torch.zeros_like(before), 0.0
    for some in _client_batches(len(clients), before.numel()):
        share = before.new_tensor(shares[some])
        updates, losses = _client_updates(before, clients[some], gradients, lr=lr, steps=steps)
        mean += share @ wire.quantize_rows(updates)
        lost += float(share @ losses)
    return mean, lost


def sequential_gradients(
    learned: Sequence[nn.Parameter], loss: Callable[[Tensor], Tensor], begin: Callable[[int], None]
) -> ClientGradients:
    """Compute gradients of one client after another with the model itself; ``loss`` is the mean loss of rows."""

    def gradients(weights: Tensor, clients: Sequence[Tensor], local: int) -> tuple[Tensor, Tensor]:
        before, found, losses = flat_parameters(learned), [], []
        for mine, rows in zip(weights, clients, strict=True):
            set_flat_parameters(learned, mine)
            begin(local)
            mean = loss(rows)
            found.append(flat_gradient(mean, learned))
            losses.append(mean.detach())
        set_flat_parameters(learned, before)
        return torch.stack(found), torch.stack(losses)

    return gradients


def flat_gradient(loss: Tensor, learned: Sequence[nn.Parameter]) -> Tensor:
    """Compute the gradient of a loss as one vector, (N,)."""
    grads = torch.autograd.grad(loss, list(learned), allow_unused=True)
    pairs = zip(learned, grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in pairs])


def _client_batches(clients: int, numbers: int) -> Iterator[slice]:
    step = max(1, _NUMBERS // max(1, numbers))
    for begin in range(0, clients, step):
        yield slice(begin, begin + step)


def _client_updates(
    before: Tensor, clients: Sequence[Tensor], gradients: ClientGradients, *, lr: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Compute the update of each client, (B, N), and the mean loss of its steps, (B,)."""
    start = before.expand(len(clients), -1)
    updates, losses = torch.zeros_like(start), before.new_zeros(len(clients))
    for local in range(steps):
        grad, loss = gradients(start - lr * updates, clients, local)
        updates += grad
        losses += loss / steps
    return updates, losses
