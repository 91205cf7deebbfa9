"""A route with absent senders: their last received rows are used until they return. It knows no connection."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from siafu.comm.route import Route


class StaleRowCache:
    """Caches the last rows received from each sender under each label, over all attempts of a run."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def store(self, sender: str, label: str, node_id: Tensor, rows: Tensor) -> None:
        """Store the rows of some nodes, (R,) int64 and (R, F)."""
        self._rows[sender, label] = node_id, rows

    def get(self, sender: str, label: str, node_id: Tensor, width: int) -> Tensor | None:
        """Return the last rows of exactly these nodes, (R, F); None if there are none."""
        kept_id, rows = self._rows.get((sender, label), (node_id[:0], node_id[:0]))
        same = torch.equal(kept_id, node_id) and rows.ndim == 2 and rows.shape[1] == width
        return rows if same else None


@dataclass(frozen=True, eq=False)
class PartialRoute(Route):
    """A route among the present sites. Halo rows owned by absent sites are stored last.

    Attributes:
        senders: name and sent node ids, (R,) int64, of each present site, by rank.
        away: the same of each absent site.
        memory: the last rows received from each site.
    """

    senders: Sequence[tuple[str, Tensor]] = ()
    away: Sequence[tuple[str, Tensor]] = ()
    memory: StaleRowCache = field(default_factory=StaleRowCache)

    def assemble_halo(self, came: Sequence[Tensor], *, label: str) -> Tensor:
        """Concatenate the rows received from each rank and the stale rows of absent sites; zeros if there are none."""
        for (name, node_id), rows in zip(self.senders, came, strict=True):
            self.memory.store(name, label, node_id, rows)
        like = came[0]
        stale = [self._stale_rows(name, node_id, like, label) for name, node_id in self.away]
        return torch.cat([*came, *stale])

    def _stale_rows(self, name: str, node_id: Tensor, like: Tensor, label: str) -> Tensor:
        last = self.memory.get(name, label, node_id, like.shape[1])
        return like.new_zeros(node_id.numel(), like.shape[1]) if last is None else last.to(like.dtype)

    def missing_rows(self, *, label: str, width: int) -> Tensor | None:
        """Return the halo rows never received under a label, (H,) bool; None if all have been received."""
        known = [torch.zeros(node_id.numel(), dtype=torch.bool) for _, node_id in self.senders]
        for name, node_id in self.away:
            lacks = self.memory.get(name, label, node_id, width) is None
            known.append(torch.full((node_id.numel(),), lacks))
        every = torch.cat(known)
        return every if bool(every.any()) else None
