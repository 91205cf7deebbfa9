"""How lately and how often two nodes met: ``score(t) = sum over past edges of e^(-decay age)``. No learning."""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu import native
from siafu.native import Csr
from siafu.sampling.negatives import edge_codes

DECAY = 0.2


@dataclass(frozen=True, eq=False)
class Recency:
    """What is remembered of every pair at every step, one entry an event: 8 + 8 K bytes an event, for all time.

    A column counts events, or the steps that have one, and has a decay.

    An entry's value is the score just after its event; at a later step it has faded by ``e^(-decay age)``.

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
    def of_events(
        cls,
        src: Tensor,
        dst: Tensor,
        step: Tensor,
        *,
        num_nodes: int,
        num_steps: int,
        undirected: bool = False,
        decays: tuple[float, ...] = (DECAY,),
        steps_too: bool = False,
    ) -> "Recency":
        """Remember events (M,) in any order; ``undirected``: of both directions, an event counting in each.

        With ``steps_too`` there are columns that count steps with an event, one for each decay, before those that
        count events.
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
        if steps_too:
            first, decays = torch.cat([torch.ones_like(first), first], 1), decays * 2
        return cls(num_nodes, num_steps, decays, entry, _summed(entry, first, num_steps, decays))

    def at(self, step: int, src: Tensor, dst: Tensor) -> Tensor:
        """What is remembered of some pairs at a step, with its events: (P,), (P,) -> (P, K) float32."""
        pair = edge_codes(src, dst, num_nodes=self.num_nodes)
        place = torch.searchsorted(self.entry, pair * self.num_steps + step, right=True) - 1
        known = place >= 0
        place = place.clamp_(min=0)
        if not self.entry.numel():
            return torch.zeros(pair.numel(), len(self.decays))
        entry = self.entry[place]
        known &= entry // self.num_steps == pair
        return torch.where(known[:, None], self._faded(place, step), 0.0)

    def all_at(self, step: int) -> tuple[Csr, Tensor]:
        """All pairs that are remembered at a step, row by row, targets ascending, and their scores, (E, K) float32."""
        when, pair = self.entry % self.num_steps, self.entry // self.num_steps
        last = when <= step
        last[:-1] &= (pair[1:] != pair[:-1]) | (when[1:] > step)
        place = last.nonzero()[:, 0]
        src, dst = pair[place] // self.num_nodes, pair[place] % self.num_nodes
        csr = native.build_csr(src.int(), dst.int(), num_rows=self.num_nodes)
        return csr, self._faded(place, step)

    def of_nodes(self, known: tuple[Csr, Tensor]) -> Tensor:
        """How lately and how often each node met any, of what :meth:`all_at` gave: (N, K), logarithms."""
        csr, seen = known
        row = torch.arange(self.num_nodes).repeat_interleave(csr.indptr.diff())
        return torch.zeros(self.num_nodes, len(self.decays)).index_add_(0, row, seen).log1p_()

    def _faded(self, place: Tensor, step: int) -> Tensor:
        age = (step - self.entry[place] % self.num_steps).double()
        fade = torch.stack([(-decay * age).exp() for decay in self.decays], 1)
        return (self.value[place] * fade).float()


def _summed(entry: Tensor, value: Tensor, num_steps: int, decays: tuple[float, ...]) -> Tensor:
    """The value of each entry: that of the entry before, faded, where it is of the same pair, and its own, (M, K).

    Entries are added up by doubling: after k rounds each has what the 2^k entries up to it bring.
    """
    pair, when = entry // num_steps, entry % num_steps
    reach = 1
    longest = int(torch.unique_consecutive(pair, return_counts=True)[1].max()) if pair.numel() else 0
    while reach < longest:
        together = pair[reach:] == pair[:-reach]
        age = (when[reach:] - when[:-reach]).double()
        fade = torch.stack([(-decay * age).exp() for decay in decays], 1) * together[:, None]
        value = torch.cat([value[:reach], value[reach:] + fade * value[:-reach]])
        reach *= 2
    return value
