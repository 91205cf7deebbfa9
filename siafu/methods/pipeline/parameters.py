"""The weights, by version, and the gradients that make the next version.

The parameter servers live in the graph servers: each rank adds up its share of all gradients and tells the others the
sum, and every rank makes the same step of the optimiser. Version e is what epoch e made of the weights.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.methods.pipeline.peer_messages import Kind, Message
from siafu.workers.task import Arrays

Step = Callable[[int, list[Tensor]], None]


class Parameters:
    """The weights of a model and, epoch by epoch, a slot for the gradients of each interval.

    Intervals are added up in their order, ranks in theirs: the same gradients give the same bits whenever they come.

    ``step(epoch, gradients)`` moves the weights; ``renewed(version)`` is told that there is a new version. ``copies``
    are arrays like the weights for as many versions as may be read at once; without them each version has new ones.
    """

    def __init__(
        self,
        model: nn.Module,
        comm: Comm,
        *,
        intervals: int,
        version: int,
        step: Step,
        renewed: Callable[[int], None],
        copies: Sequence[Mapping[str, np.ndarray]] = (),
    ) -> None:
        self.comm, self.version, self._intervals = comm, version, intervals
        self._parameters = dict(model.named_parameters())
        self._step, self._renewed = step, renewed
        self._copies = deque(copies)
        self._sums: dict[int, _Sum] = {}
        sizes = sum(each.numel() for each in self._parameters.values()) + 1
        cuts = [sizes * rank // comm.world_size for rank in range(comm.world_size + 1)]
        self._shares = [slice(cuts[rank], cuts[rank + 1]) for rank in range(comm.world_size)]
        self.losses: dict[int, float] = {}

    def weights(self) -> Arrays:
        """A copy of all weights."""
        now = weights_of(self._parameters)
        if not self._copies:
            return {name: value.copy() for name, value in now.items()}
        copy = self._copies[0]
        self._copies.rotate(-1)
        for name, value in now.items():
            copy[name][...] = value
        return copy

    def add(self, epoch: int, interval: int, grads: Arrays, *, loss: float = 0.0) -> None:
        """Put gradients into the slot of an interval, beside those that are there."""
        self._of(epoch).add(interval, grads, loss)

    def complete(self, epoch: int, interval: int) -> None:
        """Nothing more comes into a slot; when all are complete, the others are told."""
        total = self._of(epoch)
        if total.complete(interval) < self._intervals:
            return
        flat = total.flat(self._parameters)
        for rank, share in enumerate(self._shares):
            if rank == self.comm.rank:
                self.shared(rank, epoch, flat[share])
            elif share.stop > share.start:
                self.comm.post(rank, Message(Kind.SHARE, epoch).tag, flat[share], label="gradients")

    def shared(self, rank: int, epoch: int, values: Tensor) -> None:
        """A rank's gradients of this rank's share of the weights are here."""
        total = self._of(epoch)
        total.shares[rank] = values
        if len(total.shares) < self.comm.world_size:
            return
        added = total.shares[0].clone()
        for each in range(1, self.comm.world_size):
            added += total.shares[each]
        if added.numel():
            for peer in range(self.comm.world_size):
                if peer != self.comm.rank:
                    self.comm.post(peer, Message(Kind.SUM, epoch).tag, added, label="gradients")
        self.summed(self.comm.rank, epoch, added)

    def summed(self, rank: int, epoch: int, values: Tensor) -> None:
        """The sum of a rank's share of the weights is here; with all of them, there is a new version."""
        self._of(epoch).sums[rank] = values
        while (here := self._sums.get(self.version + 1)) is not None and self._whole(here):
            flat = torch.cat([here.sums[each] for each in sorted(here.sums)])
            self._renew(self.version + 1, flat)

    def _whole(self, total: "_Sum") -> bool:
        return all(rank in total.sums for rank, share in enumerate(self._shares) if share.stop > share.start)

    def _renew(self, epoch: int, flat: Tensor) -> None:
        *pieces, loss = flat.split([*(each.numel() for each in self._parameters.values()), 1])
        grads = [piece.view_as(p) for piece, p in zip(pieces, self._parameters.values(), strict=True)]
        self._step(epoch, grads)
        self.losses[epoch], self.version = float(loss), epoch
        del self._sums[epoch]
        self._renewed(epoch)

    def _of(self, epoch: int) -> "_Sum":
        found = self._sums.get(epoch)
        if found is None:
            found = self._sums[epoch] = _Sum()
        return found


def weights_of(parameters: Mapping[str, nn.Parameter]) -> dict[str, np.ndarray]:
    """The weights themselves, as NumPy's."""
    return {name: value.detach().numpy() for name, value in parameters.items()}


class _Sum:
    """The gradients of one epoch, as far as they are here.

    Attributes:
        shares: of this rank's share of the weights, by rank.
        sums: of each rank's share of the weights.
    """

    def __init__(self) -> None:
        self.shares: dict[int, Tensor] = {}
        self.sums: dict[int, Tensor] = {}
        self._slots: dict[int, dict[str, np.ndarray]] = {}
        self._losses: dict[int, float] = {}
        self._completed: set[int] = set()
        self._total: dict[str, np.ndarray] = {}
        self._loss, self._added = 0.0, 0

    def add(self, interval: int, grads: Arrays, loss: float) -> None:
        """Put gradients into a slot."""
        slot = self._slots.setdefault(interval, {})
        for name, grad in grads.items():
            slot[name] = slot[name] + grad if name in slot else grad
        self._losses[interval] = self._losses.get(interval, 0.0) + loss

    def complete(self, interval: int) -> int:
        """A slot is complete; returns how many are. They are added up as soon as all before them are."""
        self._completed.add(interval)
        while self._added in self._completed:
            for name, grad in self._slots.pop(self._added, {}).items():
                self._total[name] = self._total[name] + grad if name in self._total else grad
            self._loss += self._losses.pop(self._added, 0.0)
            self._added += 1
        return len(self._completed)

    def flat(self, parameters: dict[str, nn.Parameter]) -> Tensor:
        """All gradients in one row, in the order of the parameters, and the loss."""
        pieces = [
            torch.from_numpy(np.asarray(self._total[name])).reshape(-1)
            if name in self._total
            else torch.zeros(value.numel(), dtype=value.dtype)
            for name, value in parameters.items()
        ]
        dtype = next(iter(parameters.values())).dtype
        return torch.cat([*pieces, torch.tensor([self._loss], dtype=dtype)])
