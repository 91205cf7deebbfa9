"""The partitioner and its counts without the compiled core.

The partitioner is linear deterministic greedy streaming (Stanton and Kliot 2012) in Python, not the algorithm of the
compiled one: it keeps its promises (every node assigned, no part empty, the same balance, the same result again) and
cuts more edges.
"""

import torch
from torch import Tensor

from siafu.native.values import Csr

_EDGE_PERCENT, _TRAIN_PERCENT = 105, 110  # of the mean, what a part may hold


def assign_bytes(num_nodes: int, *, parts: int) -> int:
    """About what lists of Python take; see :func:`siafu.native.assign_bytes`."""
    return 96 * num_nodes + 64 * parts


def assign_parts(csr: Csr, train: Tensor | None, *, parts: int, seed: int) -> Tensor:
    """Assign nodes greedily; see :func:`siafu.native.assign_parts`. The seed has no say in it."""
    stream = _Stream(csr, train, parts)
    for v in stream.edges_of.argsort(descending=True, stable=True).tolist():
        stream.place(v)
    while stream.settle_train() or stream.settle_edges():
        pass
    return torch.tensor(stream.part, dtype=torch.int32)


class _Stream:
    """The state of a stream of nodes, the heaviest first, so that light ones even out what heavy ones left."""

    def __init__(self, csr: Csr, train: Tensor | None, parts: int) -> None:
        self.csr, self.parts = csr, parts
        self.edges_of = csr.indptr.diff()
        self.train = [True] * self.edges_of.numel() if train is None else train.tolist()
        self.weight = self.edges_of.tolist()
        self.part = [-1] * len(self.weight)
        self.edges, self.trained, self.nodes = [0] * parts, [0] * parts, [0] * parts
        self.edge_cap = _cap(sum(self.weight), parts, _EDGE_PERCENT)
        self.train_cap = _cap(sum(self.train), parts, _TRAIN_PERCENT)
        self.unplaced = len(self.weight)

    def place(self, v: int) -> None:
        """Put a node where most of its edges come from, weighed by the room that is left there."""
        empty = self.nodes.count(0)
        if self.unplaced <= empty:
            return self.put(v, self.nodes.index(0))
        ties = [0] * self.parts
        for u in self.csr.indices[self.csr.indptr[v] : self.csr.indptr[v + 1]].tolist():
            if self.part[u] >= 0 and u != v:
                ties[self.part[u]] += 1

        def score(p: int) -> tuple[bool, bool, float, int]:
            train_fits = self.trained[p] + self.train[v] <= self.train_cap
            edges_fit = self.edges[p] + self.weight[v] <= self.edge_cap
            room = 1 - self.edges[p] / max(1, self.edge_cap)
            return train_fits, edges_fit, ties[p] * room if edges_fit else 0.0, -self.edges[p]

        return self.put(v, max(range(self.parts), key=score))

    def put(self, v: int, p: int) -> None:
        """Count a node as the part's."""
        self.part[v] = p
        self.unplaced -= 1
        self._count(v, p, 1)

    def settle_train(self) -> bool:
        """Move a training node out of a part that has too many; False where there is none."""
        source = max(range(self.parts), key=self.trained.__getitem__)
        if self.trained[source] <= self.train_cap:
            return False
        room = [p for p in range(self.parts) if self.trained[p] < self.train_cap]
        self._send(self._lightest(source), min(room, key=self.edges.__getitem__))
        return True

    def settle_edges(self) -> bool:
        """Move a node from the part with the most edges to that with the fewest, or exchange two; False at the end."""
        source = max(range(self.parts), key=self.edges.__getitem__)
        target = min(range(self.parts), key=self.edges.__getitem__)
        gap = self.edges[source] - self.edges[target]
        if self.edges[source] <= self.edge_cap:
            return False
        kinds = [False, True] if self.trained[target] < self.train_cap else [False]
        for kind in kinds:
            if (v := self._heaviest(source, kind, above=0, below=gap)) >= 0:
                self._send(v, target)
                return True
        light = self._lightest(target)
        if light < 0:
            return False
        above = self.weight[light]
        if (v := self._heaviest(source, True, above=above, below=above + gap)) < 0:
            return False
        self._send(light, source)
        self._send(v, target)
        return True

    def _lightest(self, p: int) -> int:
        """The training node of a part with the fewest edges, or -1."""
        found = [v for v, at in enumerate(self.part) if at == p and self.train[v]]
        return min(found, key=self.weight.__getitem__, default=-1)

    def _heaviest(self, p: int, train: bool, *, above: int, below: int) -> int:
        """The node of a part with the most edges between two bounds, or -1."""
        found = [
            v
            for v, at in enumerate(self.part)
            if at == p and bool(self.train[v]) == train and above < self.weight[v] < below
        ]
        return max(found, key=self.weight.__getitem__, default=-1)

    def _send(self, v: int, p: int) -> None:
        self._count(v, self.part[v], -1)
        self._count(v, p, 1)
        self.part[v] = p

    def _count(self, v: int, p: int, sign: int) -> None:
        self.edges[p] += sign * self.weight[v]
        self.trained[p] += sign * self.train[v]
        self.nodes[p] += sign


def _cap(total: int, parts: int, percent: int) -> int:
    return max(total * percent // 100 // parts, -(-total // parts))


def count_parts(
    csr: Csr, train: Tensor | None, part_of_node: Tensor, *, parts: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Count what parts hold; see :func:`siafu.native.count_parts`."""
    part = part_of_node.long()
    num_nodes = part.numel()
    dst_edge = part.repeat_interleave(csr.indptr.diff())  # (E,) the part that each edge belongs to
    src_edge = part[csr.indices.long()]
    cut = dst_edge != src_edge
    halo = torch.unique(dst_edge[cut] * num_nodes + csr.indices[cut]) // num_nodes

    def count(values: Tensor) -> Tensor:
        return torch.bincount(values, minlength=parts)

    trained = part[:0] if train is None else part[train]
    return count(part), count(dst_edge), count(trained), count(dst_edge[~cut]), count(halo)
