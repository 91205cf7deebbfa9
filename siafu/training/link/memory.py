"""The memory of a temporal link head: recency and frequency of the contacts of nodes and of pairs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu.dynamic import DynamicGraph
from siafu.native import Csr
from siafu.training.link.recency import Recency


@dataclass(frozen=True, eq=False)
class LinkMemory:
    """The memory of nodes and pairs at a step, from the events up to it.

    Attributes:
        graph: the dynamic graph.
        pairs: the memory of pairs; None if the head does not read it.
        decays: decay rates of the activity of nodes, a column each; empty if the head does not read it.
        num_recent_steps: number of steps that count for the activity of nodes.
    """

    graph: DynamicGraph
    pairs: Recency | None
    decays: tuple[float, ...]
    num_recent_steps: int

    def pair_table(self, step: int) -> tuple[Csr, Tensor] | None:
        """All pairs with a memory at a step, and their values; None without a memory of pairs."""
        return None if self.pairs is None else self.pairs.all_at(step)

    def pair_features(self, step: int, src: Tensor, dst: Tensor) -> Tensor | None:
        """The memory of some pairs at a step; None without a memory of pairs."""
        return None if self.pairs is None else self.pairs.at(step, src, dst)

    def append_node_features(self, h: Tensor, step: int, pair_table: tuple[Csr, Tensor] | None) -> Tensor:
        """Append the memory of nodes to their embeddings; ``pair_table`` is the result of :meth:`pair_table`.

        (N, H) -> (N, H + K).
        """
        if self.pairs is not None and pair_table is not None:
            return torch.cat([h, self.pairs.by_node(pair_table).to(h.dtype)], 1)
        return torch.cat([h, self._activity(step).to(h.dtype)], 1) if self.decays else h

    def _activity(self, step: int) -> Tensor:
        """The logarithm of the number of recent events of each node, decayed by age: (N, K).

        Events are counted before they are weighed, so that their order within a step does not matter.
        """
        found = torch.zeros(self.graph.num_nodes, len(self.decays), dtype=torch.float64)
        decays = torch.tensor(self.decays, dtype=torch.float64)
        for age in range(min(self.num_recent_steps, step + 1)):
            found += self._events(step - age)[:, None] * (-decays * age).exp()
        return found.log1p().float()

    def _events(self, step: int) -> Tensor:
        """The number of events of each node in a step, (N,)."""
        graph, events = self.graph, self.graph.events(step, step + 1)
        src, dst = (
            torch.bincount(ends[events], minlength=graph.num_nodes) for ends in (graph.src, graph.dst)
        )
        return src + dst
