"""A small graph with every field, and a comparison of two graphs."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from siafu.graph import Graph
from siafu.store import write_store


def assert_same(one: Graph, other: Graph) -> None:
    for field in fields(Graph):
        if field.name == "checked":  # the arrays themselves
            continue
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True, msg=field.name)
        elif isinstance(a, pa.Array):
            assert a.to_pylist() == b.to_pylist(), field.name
        else:
            assert a == b, field.name


@pytest.fixture
def same() -> Callable[[Graph, Graph], None]:
    return assert_same


@pytest.fixture
def graph() -> Graph:
    """Five nodes, seven weighted edges, of which one is a loop; node 4 has no edge."""
    made = Graph.from_edges(
        [[0, 1, 2, 3, 0, 2, 1], [1, 2, 3, 0, 2, 2, 0]],
        x=torch.arange(15, dtype=torch.float32).reshape(5, 3) / 7,
        y=[0, 1, -1, 2, 0],
        train_mask=[1, 0, 0, 0, 0],
        val_mask=[0, 1, 0, 0, 0],
        test_mask=[0, 0, 0, 1, 1],
        edge_weight=[0.5, 1, 2, 3, 4, 5, 6],
        name="five",
    )
    names = pa.array(["ant", "bee", "", "żuk", "蟻"])
    return replace(made, node_names=names, class_names=("a", "b", "c"), node_id=torch.tensor([4, 3, 2, 1, 0]))


@pytest.fixture
def store_path(graph: Graph, tmp_path: Path) -> Path:
    write_store(graph, tmp_path / "five", provenance={"edges": "five.csv"})
    return tmp_path / "five"
