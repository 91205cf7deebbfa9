"""What a head over time reads beside rows: how lately and how often nodes, and pairs of them, met."""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.dynamic import DynamicGraph
from siafu.native import Csr
from siafu.training.link.recency import Recency


@dataclass(frozen=True, eq=False)
class Memory:
    """What is known of nodes and pairs at a step, of the events up to it.

    Attributes:
        graph: whose events they are.
        pairs: how lately and how often pairs met; None where the head does not read that.
        decays: how fast nodes are forgotten, a column each; empty where the head does not read them.
        lately: how many steps back nodes are remembered where pairs are not.
    """

    graph: DynamicGraph
    pairs: Recency | None
    decays: tuple[float, ...]
    lately: int

    def pair_table(self, step: int) -> tuple[Csr, Tensor] | None:
        """All pairs that are remembered at a step, and what of them."""
        return None if self.pairs is None else self.pairs.all_at(step)

    def of_pairs(self, step: int, src: Tensor, dst: Tensor) -> Tensor | None:
        """What is remembered of some pairs at a step."""
        return None if self.pairs is None else self.pairs.at(step, src, dst)

    def beside(self, h: Tensor, step: int, known: tuple[Csr, Tensor] | None) -> Tensor:
        """Rows with what is remembered of their nodes; ``known`` is what :meth:`pair_table` gave.

        (N, H) -> (N, H + K).
        """
        if self.pairs is not None and known is not None:
            return torch.cat([h, self.pairs.of_nodes(known).to(h.dtype)], 1)
        return torch.cat([h, self._activity(step).to(h.dtype)], 1) if self.decays else h

    def _activity(self, step: int) -> Tensor:
        """The logarithm of the events of each node of late, faded by age: (N, K).

        Events are counted before they are weighed, so that their order within a step does not matter.
        """
        found = torch.zeros(self.graph.num_nodes, len(self.decays), dtype=torch.float64)
        decays = torch.tensor(self.decays, dtype=torch.float64)
        for age in range(min(self.lately, step + 1)):
            found += self._events(step - age)[:, None] * (-decays * age).exp()
        return found.log1p().float()

    def _events(self, step: int) -> Tensor:
        """In how many events of a step each node is, (N,)."""
        graph, events = self.graph, self.graph.events(step, step + 1)
        src, dst = (
            torch.bincount(ends[events], minlength=graph.num_nodes) for ends in (graph.src, graph.dst)
        )
        return src + dst
