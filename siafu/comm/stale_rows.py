"""A route some of whose senders are away: the last rows that came from them stand in. It knows no connection."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from siafu.comm.route import Route


class StaleRowCache:
    """The last rows that came from each sender under each label, over all attempts of a run."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def keep(self, sender: str, label: str, node_id: Tensor, rows: Tensor) -> None:
        """Keep the rows of some nodes, (R,) int64 and (R, F)."""
        self._rows[sender, label] = node_id, rows

    def last(self, sender: str, label: str, node_id: Tensor, width: int) -> Tensor | None:
        """The last rows of these very nodes, (R, F); None where there are none."""
        kept_id, rows = self._rows.get((sender, label), (node_id[:0], node_id[:0]))
        same = torch.equal(kept_id, node_id) and rows.ndim == 2 and rows.shape[1] == width
        return rows if same else None


@dataclass(frozen=True, eq=False)
class PartialRoute(Route):
    """A route to and from those who are there; rows of those who are not come last.

    Attributes:
        senders: the names of those who are there, by rank, and the ids of what they send, (R,) int64 each.
        away: the same of those who are not.
        memory: what came before.
    """

    senders: Sequence[tuple[str, Tensor]] = ()
    away: Sequence[tuple[str, Tensor]] = ()
    memory: StaleRowCache = field(default_factory=StaleRowCache)

    def assemble_halo(self, came: Sequence[Tensor], *, label: str) -> Tensor:
        """What came from each rank, and what stands in for the others; zeros where nothing is known."""
        for (name, node_id), rows in zip(self.senders, came, strict=True):
            self.memory.keep(name, label, node_id, rows)
        like = came[0]
        stand_ins = [self._stand_in(name, node_id, like, label) for name, node_id in self.away]
        return torch.cat([*came, *stand_ins])

    def _stand_in(self, name: str, node_id: Tensor, like: Tensor, label: str) -> Tensor:
        last = self.memory.last(name, label, node_id, like.shape[1])
        return like.new_zeros(node_id.numel(), like.shape[1]) if last is None else last.to(like.dtype)

    def missing_rows(self, *, label: str, width: int) -> Tensor | None:
        """Of which halo rows nothing is known under a label, (H,) bool; None where something is of all."""
        known = [torch.zeros(node_id.numel(), dtype=torch.bool) for _, node_id in self.senders]
        for name, node_id in self.away:
            lacks = self.memory.last(name, label, node_id, width) is None
            known.append(torch.full((node_id.numel(),), lacks))
        every = torch.cat(known)
        return every if bool(every.any()) else None
