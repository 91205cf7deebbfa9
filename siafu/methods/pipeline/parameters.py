"""The weights, by version, and the gradients that produce the next version.

The ranks are also the parameter servers: each rank sums the gradients of its share of the weights over all ranks and
posts the sum, and every rank makes the same optimiser step. Version e holds the weights after epoch e.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.methods.pipeline.peer_messages import Message, MessageKind
from siafu.workers.task import Arrays

Step = Callable[[int, list[Tensor]], None]


class Parameters:
    """The weights of a model and, for each epoch, the gradients of each interval.

    Gradients are summed in the order of intervals, then of ranks, so that the sum has the same bits in whatever order
    they arrive.

    ``step(epoch, gradients)`` updates the weights, then ``on_new_version(version)`` is called. ``copies`` are arrays
    like the weights for as many versions as are read at a time; without them each version has new arrays.
    """

    def __init__(
        self,
        model: nn.Module,
        comm: Comm,
        *,
        intervals: int,
        version: int,
        step: Step,
        on_new_version: Callable[[int], None],
        copies: Sequence[Mapping[str, np.ndarray]] = (),
    ) -> None:
        self.comm, self.version, self._intervals = comm, version, intervals
        self._parameters = dict(model.named_parameters())
        self._step, self._on_new_version = step, on_new_version
        self._copies = deque(copies)
        self._sums: dict[int, _GradientSum] = {}
        sizes = sum(each.numel() for each in self._parameters.values()) + 1
        cuts = [sizes * rank // comm.world_size for rank in range(comm.world_size + 1)]
        self._shares = [slice(cuts[rank], cuts[rank + 1]) for rank in range(comm.world_size)]
        self.losses: dict[int, float] = {}

    def weights(self) -> Arrays:
        """Copy all weights."""
        now = weights_of(self._parameters)
        if not self._copies:
            return {name: value.copy() for name, value in now.items()}
        copy = self._copies[0]
        self._copies.rotate(-1)
        for name, value in now.items():
            copy[name][...] = value
        return copy

    def add(self, epoch: int, interval: int, grads: Arrays, *, loss: float = 0.0) -> None:
        """Add gradients of an interval to those that it has."""
        self._sum_of(epoch).add(interval, grads, loss)

    def complete(self, epoch: int, interval: int) -> None:
        """Note that an interval has all its gradients; after the last interval, post each rank its share."""
        total = self._sum_of(epoch)
        if total.complete(interval) < self._intervals:
            return
        flat = total.flat(self._parameters)
        for rank, share in enumerate(self._shares):
            if rank == self.comm.rank:
                self.receive_share(rank, epoch, flat[share])
            elif share.stop > share.start:
                self.comm.post(rank, Message(MessageKind.SHARE, epoch).tag, flat[share], label="gradients")

    def receive_share(self, rank: int, epoch: int, values: Tensor) -> None:
        """Take a rank's gradients of this rank's share of the weights; after the last, post their sum."""
        total = self._sum_of(epoch)
        total.shares[rank] = values
        if len(total.shares) < self.comm.world_size:
            return
        added = total.shares[0].clone()
        for each in range(1, self.comm.world_size):
            added += total.shares[each]
        if added.numel():
            for peer in range(self.comm.world_size):
                if peer != self.comm.rank:
                    self.comm.post(peer, Message(MessageKind.SUM, epoch).tag, added, label="gradients")
        self.receive_sum(self.comm.rank, epoch, added)

    def receive_sum(self, rank: int, epoch: int, values: Tensor) -> None:
        """Take the summed gradients of a rank's share of the weights; after the last, update the weights."""
        self._sum_of(epoch).sums[rank] = values
        while (total := self._sums.get(self.version + 1)) is not None and self._is_complete(total):
            flat = torch.cat([total.sums[each] for each in sorted(total.sums)])
            self._update(self.version + 1, flat)

    def _is_complete(self, total: "_GradientSum") -> bool:
        return all(rank in total.sums for rank, share in enumerate(self._shares) if share.stop > share.start)

    def _update(self, epoch: int, flat: Tensor) -> None:
        *pieces, loss = flat.split([*(each.numel() for each in self._parameters.values()), 1])
        grads = [piece.view_as(p) for piece, p in zip(pieces, self._parameters.values(), strict=True)]
        self._step(epoch, grads)
        self.losses[epoch], self.version = float(loss), epoch
        del self._sums[epoch]
        self._on_new_version(epoch)

    def _sum_of(self, epoch: int) -> "_GradientSum":
        found = self._sums.get(epoch)
        if found is None:
            found = self._sums[epoch] = _GradientSum()
        return found


def weights_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, np.ndarray]:
    """View weights as NumPy arrays."""
    return {name: value.detach().numpy() for name, value in parameters.items()}


class _GradientSum:
    """The gradients of one epoch so far.

    Attributes:
        shares: gradients of this rank's share of the weights, by rank.
        sums: summed gradients of each rank's share of the weights.
    """

    def __init__(self) -> None:
        self.shares: dict[int, Tensor] = {}
        self.sums: dict[int, Tensor] = {}
        self._grads: dict[int, dict[str, np.ndarray]] = {}  # by interval, until they are added to the total
        self._losses: dict[int, float] = {}
        self._completed: set[int] = set()
        self._total: dict[str, np.ndarray] = {}
        self._loss, self._num_added = 0.0, 0

    def add(self, interval: int, grads: Arrays, loss: float) -> None:
        """Add gradients of an interval."""
        own = self._grads.setdefault(interval, {})
        for name, grad in grads.items():
            own[name] = own[name] + grad if name in own else grad
        self._losses[interval] = self._losses.get(interval, 0.0) + loss

    def complete(self, interval: int) -> int:
        """Complete an interval; returns how many are. Each is added once all intervals before it are complete."""
        self._completed.add(interval)
        while self._num_added in self._completed:
            for name, grad in self._grads.pop(self._num_added, {}).items():
                self._total[name] = self._total[name] + grad if name in self._total else grad
            self._loss += self._losses.pop(self._num_added, 0.0)
            self._num_added += 1
        return len(self._completed)

    def flat(self, parameters: dict[str, nn.Parameter]) -> Tensor:
        """Concatenate all gradients, in the order of the parameters, and the loss."""
        pieces = [
            torch.from_numpy(np.asarray(self._total[name])).reshape(-1)
            if name in self._total
            else torch.zeros(value.numel(), dtype=value.dtype)
            for name, value in parameters.items()
        ]
        dtype = next(iter(parameters.values())).dtype
        return torch.cat([*pieces, torch.tensor([self._loss], dtype=dtype)])
