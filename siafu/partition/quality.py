"""Measures of a partition: edge cut, halo sizes and balance."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Graph

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Quality:
    """Measures of a partition. Tuples have one entry per part.

    Attributes:
        cut: the share of edges whose ends are in different parts, 0 to 1.
        nodes: that a part owns.
        edges: into its nodes; its work.
        train: training nodes that it owns.
        halo: rows that it reads and does not own.
    """

    cut: float
    nodes: tuple[int, ...]
    edges: tuple[int, ...]
    train: tuple[int, ...]
    halo: tuple[int, ...]

    @property
    def node_balance(self) -> float:
        """The largest number of nodes of a part, divided by the mean; 1 is perfect balance."""
        return _balance(self.nodes)

    @property
    def edge_balance(self) -> float:
        """The largest number of edges of a part, divided by the mean."""
        return _balance(self.edges)

    @property
    def train_balance(self) -> float:
        """The largest number of training nodes of a part, divided by the mean."""
        return _balance(self.train)


class PartLoads(NamedTuple):
    """The nodes, edges and training nodes of each part; one number per part."""

    nodes: list[int]
    edges: list[int]
    train: list[int]


def quality(graph: Graph, part_of_node: Tensor, parts: int) -> Quality:
    """Measure a partition, (N,) int32; reads every edge once and holds 5 bytes per node."""
    _check(graph, part_of_node, parts)
    found = native.count_parts(graph.block.csr, graph.train_mask, part_of_node.to(torch.int32), parts=parts)
    inside = int(found.inside.sum())
    return Quality(
        cut=1 - inside / graph.num_edges if graph.num_edges else 0.0,
        nodes=tuple(found.nodes.tolist()),
        edges=tuple(found.edges.tolist()),
        train=tuple(found.train.tolist()),
        halo=tuple(found.halo.tolist()),
    )


def part_loads(graph: Graph, part_of_node: Tensor, *, parts: int) -> PartLoads:
    """Count the nodes, in-edges and training nodes of each part, without reading the edges."""
    counts = torch.zeros(3, parts, dtype=torch.int64)
    for start in range(0, graph.num_nodes, _CHUNK):
        rows = slice(start, min(start + _CHUNK, graph.num_nodes))
        part = part_of_node[rows].long()
        counts[0].index_add_(0, part, torch.ones_like(part))
        counts[1].index_add_(0, part, graph.indptr[rows.start : rows.stop + 1].diff())
        if graph.train_mask is not None:
            counts[2].index_add_(0, part, graph.train_mask[rows].long())
    return PartLoads(*counts.tolist())


def _check(graph: Graph, part_of_node: Tensor, parts: int) -> None:
    if part_of_node.shape != (graph.num_nodes,):
        raise ValueError(
            f"{graph.name}: parts of {tuple(part_of_node.shape)} nodes; expected ({graph.num_nodes},), one a node"
        )
    low, high = (int(part_of_node.min()), int(part_of_node.max())) if graph.num_nodes else (0, 0)
    if low < 0 or high >= parts:
        raise ValueError(f"{graph.name}: parts from {low} to {high}; expected 0 to {parts - 1}")


def _balance(counts: tuple[int, ...]) -> float:
    return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0
