"""A small graph with every field, and a partition of it on disk."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from known_parts import OWNERS, cut_up

from siafu.graph import Graph
from siafu.partition.cut import Part, cut
from siafu.partition.parts import Partition, write_partition


@pytest.fixture
def graph() -> Graph:
    """Eight nodes in three parts, weighted edges, one loop, one repeated edge; node 7 has no edge."""
    made = Graph.from_edges(
        [[0, 1, 2, 3, 4, 5, 6, 0, 2, 1, 1], [1, 2, 3, 4, 5, 6, 0, 3, 2, 4, 4]],
        x=torch.arange(24, dtype=torch.float32).view(8, 3) / 7,
        y=[0, 1, -1, 2, 0, 1, 2, 0],
        train_mask=[1, 1, 0, 0, 0, 0, 0, 1],
        val_mask=[0, 0, 1, 1, 0, 0, 0, 0],
        test_mask=[0, 0, 0, 0, 1, 1, 1, 0],
        edge_weight=[0.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        num_nodes=8,
        name="eight",
    )
    return replace(made, class_names=("a", "b", "c")).reordered(torch.tensor([7, 2, 4, 0, 6, 1, 3, 5]))


@pytest.fixture
def parts(graph: Graph) -> list[Part]:
    """The same parts as on disk."""
    return cut_up(graph)


@pytest.fixture
def partition(graph: Graph, tmp_path: Path) -> Partition:
    """The graph in three parts, on disk."""
    cuts = cut(graph, torch.tensor(OWNERS, dtype=torch.int32), parts=3)
    return write_partition(tmp_path / "parts", graph, cuts, fingerprint="f", by="hash")
