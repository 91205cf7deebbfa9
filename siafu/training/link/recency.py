"""Recency of pairs: ``score(t) = sum over past edges of e^(-decay age)``. A baseline without learning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu import native
from siafu.native import Csr
from siafu.sampling.negatives import edge_codes

DECAY = 0.2


@dataclass(frozen=True, eq=False)
class Recency:
    """The recency of every pair at every step, as one entry an event: 8 + 8 K bytes an event, for all of time.

    A column counts events, or steps with an event, and has a decay. The value of an entry is the score right after its
    event; at a later step it has decayed by ``e^(-decay age)``.

    Attributes:
        num_nodes, num_steps: N and T.
        decays: of each column, K of them.
        entry: (M,) int64, ascending: (source N + target) T + step.
        value: (M, K) float64.
    """

    num_nodes: int
    num_steps: int
    decays: tuple[float, ...]
    entry: Tensor
    value: Tensor

    @classmethod
    def from_events(
        cls,
        src: Tensor,
        dst: Tensor,
        step: Tensor,
        *,
        num_nodes: int,
        num_steps: int,
        undirected: bool = False,
        decays: tuple[float, ...] = (DECAY,),
        count_steps: bool = False,
    ) -> "Recency":
        """Build from events (M,) in any order; with ``undirected`` an event counts in both directions.

        With ``count_steps`` there are further columns, one for each decay, before the others: they count steps with an
        event instead of events.
        """
        if num_nodes**2 * num_steps >= 2**63:
            raise ValueError(
                f"{num_nodes:,} nodes and {num_steps:,} steps are too many for a memory of pairs; "
                "set link.recency=false"
            )
        if undirected:
            src, dst, step = torch.cat([src, dst]), torch.cat([dst, src]), torch.cat([step, step])
        entry = edge_codes(src, dst, num_nodes=num_nodes) * num_steps + step.long()
        entry, count = entry.unique(return_counts=True)
        first = count.double()[:, None].expand(-1, len(decays))
        if count_steps:
            first, decays = torch.cat([torch.ones_like(first), first], 1), decays * 2
        return cls(num_nodes, num_steps, decays, entry, _decayed_sums(entry, first, num_steps, decays))

    def at(self, step: int, src: Tensor, dst: Tensor) -> Tensor:
        """The scores of some pairs at a step, its events included: (P,), (P,) -> (P, K) float32."""
        pair = edge_codes(src, dst, num_nodes=self.num_nodes)
        place = torch.searchsorted(self.entry, pair * self.num_steps + step, right=True) - 1
        found = place >= 0
        place = place.clamp_(min=0)
        if not self.entry.numel():
            return torch.zeros(pair.numel(), len(self.decays))
        entry = self.entry[place]
        found &= entry // self.num_steps == pair
        return torch.where(found[:, None], self._decayed(place, step), 0.0)

    def all_at(self, step: int) -> tuple[Csr, Tensor]:
        """All pairs with a past event at a step, row by row, targets ascending, and their scores, (E, K) float32."""
        when, pair = self.entry % self.num_steps, self.entry // self.num_steps
        last = when <= step
        last[:-1] &= (pair[1:] != pair[:-1]) | (when[1:] > step)
        place = last.nonzero()[:, 0]
        src, dst = pair[place] // self.num_nodes, pair[place] % self.num_nodes
        csr = native.build_csr(src.int(), dst.int(), num_rows=self.num_nodes)
        return csr, self._decayed(place, step)

    def by_node(self, pair_table: tuple[Csr, Tensor]) -> Tensor:
        """The logarithm of the sum over the pairs of each node, given the result of :meth:`all_at`: (N, K)."""
        csr, score = pair_table
        row = torch.arange(self.num_nodes).repeat_interleave(csr.indptr.diff())
        return torch.zeros(self.num_nodes, len(self.decays)).index_add_(0, row, score).log1p_()

    def _decayed(self, place: Tensor, step: int) -> Tensor:
        age = (step - self.entry[place] % self.num_steps).double()
        fade = torch.stack([(-decay * age).exp() for decay in self.decays], 1)
        return (self.value[place] * fade).float()


def _decayed_sums(entry: Tensor, value: Tensor, num_steps: int, decays: tuple[float, ...]) -> Tensor:
    """The value of each entry: its own, plus the decayed value of the pair's entry before, (M, K).

    Computed by doubling: after k rounds each entry includes the 2^k entries up to it.
    """
    pair, when = entry // num_steps, entry % num_steps
    reach = 1
    longest = int(torch.unique_consecutive(pair, return_counts=True)[1].max()) if pair.numel() else 0
    while reach < longest:
        same_pair = pair[reach:] == pair[:-reach]
        age = (when[reach:] - when[:-reach]).double()
        fade = torch.stack([(-decay * age).exp() for decay in decays], 1) * same_pair[:, None]
        value = torch.cat([value[:reach], value[reach:] + fade * value[:-reach]])
        reach *= 2
    return value
