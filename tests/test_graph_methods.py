"""Methods of graphs that users call: counts, degrees, subgraphs, edges, stores, and short reprs."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import siafu
from siafu.dynamic import DynamicGraph
from siafu.graph import Block, Graph

EDGES = [[0, 0, 1, 3, 4, 2], [1, 2, 2, 0, 3, 2]]
TRAIN = [True, False, False, True, False]


def small(**fields: Any) -> Graph:
    """Five nodes, six edges, one of them a loop."""
    x = torch.arange(10.0).reshape(5, 2)
    return Graph.from_edges(
        EDGES, **{"x": x, "y": [0, 1, 2, 1, -1], "name": "small", "train_mask": TRAIN} | fields
    )


def test_the_repr_of_a_graph_counts_what_it_holds() -> None:
    assert repr(small()) == (
        "Graph('small', num_nodes=5, num_edges=6, num_features=2, num_classes=3, train=2)"
    )
    bare = Graph.from_edges(EDGES)
    assert repr(bare) == "Graph('graph', num_nodes=5, num_edges=6, num_features=0)"


def test_the_repr_of_a_block_names_its_row_sets() -> None:
    assert repr(small().block) == "Block(5 destinations, 5 sources, 6 edges)"
    block = Block(torch.tensor([0, 2]), torch.tensor([0, 2], dtype=torch.int32), 3)
    assert repr(block) == "Block(1 destinations, 3 sources, 2 edges)"


def test_the_repr_of_a_dynamic_graph_counts_events_and_steps() -> None:
    graph = DynamicGraph.from_events([0, 1, 2], [1, 2, 0], [0, 0, 1], undirected=True, name="calls")
    assert repr(graph) == (
        "DynamicGraph('calls', num_nodes=3, num_events=3, num_steps=2, num_features=0, undirected)"
    )


@pytest.mark.parametrize(
    ("fields", "features", "classes"),
    [
        ({}, 2, 3),
        ({"x": None, "y": None}, 0, 0),
        ({"y": [0.5, 1.0, 2.0, 0.0, 0.1]}, 2, 0),
        ({"y": torch.eye(5, 4, dtype=torch.uint8)}, 2, 4),
        ({"y": [-1] * 5}, 2, 0),
    ],
)
def test_features_and_classes_are_counted(fields: dict[str, Any], features: int, classes: int) -> None:
    graph = small(**fields)
    assert (graph.num_features, graph.num_classes) == (features, classes)


def test_named_classes_count_also_where_no_node_has_the_last() -> None:
    graph = siafu.load("karate")
    named = Graph(graph.indptr, graph.indices, y=graph.y, class_names=("a", "b", "c", "d", "e", "f"))
    assert named.num_classes == 6


def test_edge_index_has_the_edges_that_were_given() -> None:
    edges = small().edge_index
    assert edges.dtype == torch.int64
    assert sorted(zip(*edges.tolist(), strict=True)) == sorted(zip(*EDGES, strict=True))
    assert torch.equal(Graph.from_edges(edges, num_nodes=5).indices, small().indices)


def test_degrees_are_counted_in_either_direction() -> None:
    assert small().degree().tolist() == [1, 1, 3, 1, 0]
    assert small().degree("out").tolist() == [2, 1, 1, 1, 1]
    with pytest.raises(ValueError, match="direction is 'both'; expected 'in' or 'out'"):
        small().degree("both")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given", [[2, 0, 4], np.array([2, 0, 4]), torch.tensor([2, 0, 4], dtype=torch.int32)]
)
def test_a_subgraph_has_the_nodes_in_the_order_given(given: Any) -> None:
    weight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    sub = small(edge_weight=weight, edge_split=[0, 1, 2, 0, 1, 2]).subgraph(given)
    assert sub.edge_weight is not None
    assert sub.edge_split is not None
    found = zip(*sub.edge_index.tolist(), sub.edge_weight.tolist(), sub.edge_split.tolist(), strict=True)
    assert sorted(found) == [(0, 0, 6.0, 2), (1, 0, 2.0, 1)]  # 2 -> 2 and 0 -> 2
    assert isinstance(sub.x, torch.Tensor)
    assert sub.x.tolist() == [[4.0, 5.0], [0.0, 1.0], [8.0, 9.0]]
    assert sub.y is not None
    assert sub.y.tolist() == [2, 0, -1]
    assert sub.train_mask is not None
    assert sub.train_mask.tolist() == [False, True, False]
    assert sub.node_names.to_pylist() == [2, 0, 4]


def test_a_subgraph_of_a_mask_of_a_reordered_graph_keeps_the_ids_of_the_user() -> None:
    graph = small().reordered(torch.tensor([4, 3, 2, 1, 0]))
    sub = graph.subgraph(np.array([True, False, True, False, True]))
    assert sub.node_id is None
    assert sub.node_names.to_pylist() == [4, 2, 0]
    assert sorted(zip(*sub.edge_index.tolist(), strict=True)) == [(1, 1), (2, 1)]
    again = sub.subgraph([1])
    assert again.node_names.to_pylist() == [2]
    assert again.edge_index.tolist() == [[0], [0]]


def test_a_subgraph_of_all_nodes_is_the_graph() -> None:
    graph = siafu.load("karate")
    sub = graph.subgraph(torch.arange(graph.num_nodes))
    assert torch.equal(sub.indptr, graph.indptr)
    assert torch.equal(sub.indices, graph.indices)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([0, 5], "small: nodes names node 5; expected 0 to 4"),
        ([-1], "small: nodes names node -1; expected 0 to 4"),
        ([1, 1], "small: nodes names node 1 twice; expected each node once"),
        ([True, False], "small: nodes is a mask of 2 rows; expected 5, one value a node"),
        ([0.5], r"small: nodes is \(1,\) torch.float64; expected a list of rows, or a mask"),
        ([[0]], r"small: nodes is \(1, 1\) torch.int64; expected a list of rows, or a mask"),
    ],
)
def test_nodes_of_a_subgraph_that_cannot_be_are_refused(nodes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small().subgraph(nodes)


def test_an_empty_subgraph_has_no_nodes_and_no_edges() -> None:
    sub = small().subgraph(np.zeros(5, dtype=bool))
    assert (sub.num_nodes, sub.num_edges, sub.num_features) == (0, 0, 2)


def test_a_saved_graph_is_loaded_again(tmp_path: Path) -> None:
    small().subgraph([2, 0]).save(tmp_path / "my.store")
    loaded = siafu.load(tmp_path / "my.store")
    assert isinstance(loaded, Graph)
    assert loaded.num_nodes == 2
    assert loaded.node_names.equals(pa.array([2, 0]))
    with pytest.raises(FileExistsError, match="exists already"):
        small().save(str(tmp_path / "my.store"))


def test_a_saved_dynamic_graph_is_loaded_again(tmp_path: Path) -> None:
    graph = DynamicGraph.from_events([0, 1, 2], [1, 2, 0], [0, 0, 1])
    graph.save(tmp_path / "calls")
    loaded = siafu.load(tmp_path / "calls")
    assert isinstance(loaded, DynamicGraph)
    assert loaded.fingerprint == graph.fingerprint


def accounts() -> Graph:
    """A graph of tables: four accounts with a country and an age."""
    nodes = pa.table(
        {"id": list("abcd"), "country": ["KE", "TZ", "KE", "UG"], "age": [20.0, 30.0, 40.0, 50.0]}
    )
    return Graph.from_tables(
        nodes=nodes, edges=pa.table({"src": list("abc"), "dst": list("bcd")}), name="accounts"
    )


def test_columns_of_nodes_go_with_them_into_a_subgraph_and_a_store(tmp_path: Path) -> None:
    graph = accounts()
    assert "num_features=0, num_columns=2" in repr(graph)
    graph.subgraph([2, 1]).save(tmp_path / "two.store")
    loaded = siafu.load(tmp_path / "two.store")
    assert isinstance(loaded, Graph)
    assert loaded.node_names.to_pylist() == ["c", "b"]
    assert loaded.columns is not None
    ages = next(column for column in loaded.columns if column.type.name == "age")
    assert ages.values.tolist() == [40.0, 30.0]
