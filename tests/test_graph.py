"""Graphs from edges: what is taken, what is refused and why, and rows in another order."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import siafu
from siafu.graph import Block, Graph
from siafu.user_input import MAX_NODES

SRC, DST = [0, 0, 1, 3], [1, 2, 2, 0]
X = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]


def edges_of(graph: Graph | Block) -> list[tuple[int, int]]:
    """(source, destination) pairs, by destination."""
    dst = torch.arange(graph.indptr.numel() - 1).repeat_interleave(graph.indptr.diff())
    return list(zip(graph.indices.tolist(), dst.tolist(), strict=True))


def weighted_edges(graph: Graph) -> dict[tuple[int, int], float]:
    assert graph.edge_weight is not None
    return dict(zip(edges_of(graph), graph.edge_weight.tolist(), strict=True))


@pytest.mark.parametrize(
    "as_given",
    [
        lambda rows: rows,
        np.array,
        torch.tensor,
        lambda rows: tuple(np.array(row) for row in rows),
        lambda rows: np.array(rows).T.copy().T,  # columns side by side
        lambda rows: torch.tensor(rows, dtype=torch.int32),
        lambda rows: np.array(rows, dtype=np.uint64),
        lambda rows: np.array(rows, dtype=">i4"),
        lambda rows: torch.tensor(rows, dtype=torch.uint8),
        lambda rows: torch.tensor(rows).to(torch.uint16),
    ],
    ids=["lists", "array", "tensor", "tuple", "strided", "int32", "uint64", "big-endian", "uint8", "uint16"],
)
def test_edges_are_taken_as_lists_arrays_and_tensors(as_given: Callable[[Any], Any]) -> None:
    graph = Graph.from_edges(as_given([SRC, DST]))
    assert (graph.num_nodes, graph.num_edges) == (4, 4)
    assert edges_of(graph) == [(3, 0), (0, 1), (0, 2), (1, 2)]
    assert graph.indptr.dtype == torch.int64
    assert graph.indices.dtype == torch.int32
    assert graph.x is graph.y is graph.edge_weight is graph.node_id is graph.train_mask is None


@pytest.mark.parametrize("as_given", [list, np.array, torch.tensor], ids=["lists", "arrays", "tensors"])
def test_what_is_known_of_nodes_is_taken_as_lists_arrays_and_tensors(as_given: Callable[[Any], Any]) -> None:
    graph = Graph.from_edges(
        [SRC, DST],
        x=as_given(X),
        y=as_given([0, 2, -1, 1]),
        train_mask=as_given([True, False, False, False]),
        val_mask=as_given([0, 1, 0, 0]),
        test_mask=as_given([False, False, True, False]),
        edge_weight=as_given([1.0, 2.0, 3.0, 4.0]),
        name="mine",
    )
    assert graph.name == "mine"
    assert graph.x is not None
    assert graph.y is not None
    assert graph.val_mask is not None
    assert torch.equal(graph.x, torch.tensor(X))
    assert graph.x.dtype == torch.float32
    assert graph.y.tolist() == [0, 2, -1, 1]
    assert graph.y.dtype == torch.int64
    assert graph.val_mask.tolist() == [False, True, False, False]
    assert weighted_edges(graph) == {(0, 1): 1.0, (0, 2): 2.0, (1, 2): 3.0, (3, 0): 4.0}


def test_the_number_of_nodes_is_told_or_that_of_the_rows_or_that_of_the_edges() -> None:
    assert Graph.from_edges([SRC, DST], num_nodes=9).num_nodes == 9
    assert Graph.from_edges([SRC, DST], y=[0] * 6).num_nodes == 6
    assert Graph.from_edges([SRC, DST], train_mask=[1, 0, 0, 0, 0]).num_nodes == 5
    assert Graph.from_edges([SRC, DST]).num_nodes == 4


@pytest.mark.parametrize(
    "nothing", [[[], []], np.zeros((2, 0), np.int64), torch.zeros(2, 0, dtype=torch.int32)]
)
def test_a_graph_without_edges_is_a_graph(nothing: Any) -> None:
    graph = Graph.from_edges(nothing, x=X, edge_weight=[])
    assert (graph.num_nodes, graph.num_edges) == (4, 0)
    assert graph.block.in_degree.tolist() == [0, 0, 0, 0]
    assert graph.block.missing_loop.tolist() == [1, 1, 1, 1]


def test_an_undirected_graph_has_each_edge_both_ways_and_once() -> None:
    graph = Graph.from_edges([[0, 1, 0, 2, 2], [1, 0, 1, 2, 1]], undirected=True)
    assert edges_of(graph) == [(1, 0), (0, 1), (2, 1), (1, 2), (2, 2)]


def test_of_repeated_edges_an_undirected_graph_keeps_the_first_weight() -> None:
    graph = Graph.from_edges([[0, 0, 1, 2], [1, 1, 2, 1]], edge_weight=[1.0, 2.0, 3.0, 4.0], undirected=True)
    assert weighted_edges(graph) == {(0, 1): 1.0, (1, 0): 1.0, (1, 2): 3.0, (2, 1): 4.0}


def test_a_directed_graph_keeps_repeated_edges() -> None:
    graph = Graph.from_edges([[0, 0, 0], [1, 1, 0]], edge_weight=[1.0, 2.0, 3.0])
    assert edges_of(graph) == [(0, 0), (0, 1), (0, 1)]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [3.0, 1.0, 2.0]


@settings(max_examples=60, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40),
    undirected=st.booleans(),
)
def test_each_edge_is_there_as_often_as_it_was_given(edges: list[tuple[int, int]], undirected: bool) -> None:
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    found = edges_of(Graph.from_edges(pairs, num_nodes=7, undirected=undirected))
    if undirected:
        assert Counter(found) == Counter({*edges, *((dst, src) for src, dst in edges)})
    else:
        assert Counter(found) == Counter(edges)
    assert found == sorted(found, key=lambda edge: (edge[1], edge[0]))


def test_features_and_labels_come_to_their_types() -> None:
    def y_of(y: Any) -> Tensor:
        found = Graph.from_edges([SRC, DST], y=y).y
        assert found is not None
        return found

    assert y_of([[1, 0], [0, 1], [1, 1], [0, 0]]).dtype == torch.uint8
    assert y_of([[1], [0], [3], [0]]).tolist() == [1, 0, 3, 0]
    assert y_of([True, False, True, True]).dtype == torch.int64
    assert y_of([0.5, float("nan"), 1.0, 2.0]).dtype == torch.float32
    assert y_of(np.zeros((4, 3))).shape == (4, 3)
    for x, dtype in [
        (np.ones((4, 2), np.float64), torch.float32),
        (np.ones((4, 2), np.int64), torch.float32),
        (np.ones((4, 2), bool), torch.float32),
        (torch.ones(4, 2, dtype=torch.bfloat16), torch.bfloat16),
        (torch.ones(4, requires_grad=True), torch.float32),
    ]:
        found = Graph.from_edges([SRC, DST], x=x).x
        assert found is not None
        assert found.dtype == dtype
        assert found.ndim == 2
        assert found.is_contiguous()
        assert not found.requires_grad


def test_an_array_that_may_not_be_written_to_is_taken_without_a_copy() -> None:
    x = np.ones((4, 2), np.float32)
    x.flags.writeable = False
    graph = Graph.from_edges([SRC, DST], x=x)
    assert graph.x is not None
    assert graph.x.data_ptr() == x.ctypes.data


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        (
            {"edge_index": [[0, 7], [1, 0]]},
            r"mine: edge_index names node 7, but there are 4 nodes \(0 to 3\)",
        ),
        ({"edge_index": [[0, -2], [1, 0]]}, "mine: edge_index holds -2; node ids start at 0"),
        (
            {"edge_index": [[0.0, 1.0], [1.0, 0.0]]},
            r"edge_index is \(2, 2\) torch.float64; expected two rows",
        ),
        (
            {"edge_index": [[True, False], [True, True]]},
            r"edge_index is \(2, 2\) torch.bool; expected two rows",
        ),
        (
            {"edge_index": torch.zeros(2, 2, dtype=torch.complex64)},
            r"edge_index is .*complex64; expected two",
        ),
        ({"edge_index": [[0, 1], [1, 2], [2, 3]]}, r"edge_index is \(3, 2\) torch.int64; expected two rows"),
        ({"edge_index": [0, 1]}, r"edge_index is \(2,\)"),
        ({"edge_index": [["a", "b"], ["b", "a"]]}, "edge_index is an array of <U1; expected numbers"),
        ({"edge_index": np.array([[0, None], [1, 2]])}, "edge_index is an array of object; expected numbers"),
        ({"edge_index": [[], []], "x": None}, "mine: the graph has no node; expected at least one"),
        ({"num_nodes": 0}, "mine: the graph has no node; expected at least one"),
        ({"num_nodes": MAX_NODES + 1}, "mine: 2147483648 nodes; at most 2147483647 fit one graph"),
        ({"num_nodes": 5}, "mine: x has 4 rows; expected 5, one for each node"),
        ({"x": [[1.0], [float("nan")], [0.0], [1.0]]}, "mine: x: row 1, column 0 is nan; expected a finite"),
        ({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, -float("inf")], [0, 0]]}, "x: row 2, column 1 is -inf"),
        ({"x": np.full((4, 2), 1e300)}, "x: row 0, column 0 is inf"),
        ({"x": torch.full((4, 2), float("nan"), dtype=torch.bfloat16)}, "x: row 0, column 0 is nan"),
        ({"x": np.zeros((4, 2, 2))}, r"x is \(4, 2, 2\); expected a row of features for each node"),
        ({"x": 1.0}, "x is one number; expected a row for each node"),
        ({"x": [["a"], ["b"], ["c"], ["d"]]}, "x is an array of <U1; expected numbers"),
        ({"y": [0, 1]}, "mine: y has 2 rows; expected 4, one for each node"),
        ({"y": [0, 1, -2, 0]}, r"mine: y\[2\] is -2; expected a class from 0, or -1 for none"),
        ({"y": [0.5, float("inf"), 0.0, 0.0]}, r"mine: y\[1\] is infinite; expected a finite number, or NaN"),
        ({"y": [[0, 1], [0, 2], [1, 0], [0, 0]]}, r"y\[1, 1\] is 2; expected 0 or 1 in each column"),
        ({"y": [[0, 1], [0, 0], [1, -1], [0, 0]]}, r"y\[2, 1\] is -1; expected 0 or 1 in each column"),
        ({"y": np.zeros((4, 2, 2), int)}, r"y is \(4, 2, 2\); expected one value a node"),
        ({"train_mask": [True] * 3}, "mine: train_mask has 3 rows; expected 4, one for each node"),
        (
            {"val_mask": np.ones((4, 10), bool)},
            r"val_mask is \(4, 10\); expected one value a node \(pick one",
        ),
        ({"test_mask": [0, 1, 2, 3]}, r"test_mask\[2\] is 2; expected True or False for each node, not row"),
        (
            {"train_mask": [1, 1, 0, 0], "test_mask": [0, 1, 0, 1]},
            "mine: node 1 is in test_mask and in another mask; splits must be disjoint",
        ),
        ({"edge_weight": [1.0, 2.0]}, r"mine: edge_weight is \(2,\); expected \(4,\)"),
        ({"edge_weight": [[1.0], [2.0], [3.0], [4.0]]}, r"mine: edge_weight is \(4, 1\); expected \(4,\)"),
        ({"edge_weight": [1.0, 2.0, 3.0, float("nan")]}, r"mine: edge_weight\[3\] is nan; expected a finite"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(given_values: dict[str, Any], message: str) -> None:
    settings_ = {"edge_index": [SRC, DST], "x": X, "name": "mine", **given_values}
    with pytest.raises(ValueError, match=message):
        Graph.from_edges(settings_.pop("edge_index"), **settings_)


def test_the_package_gives_out_its_values() -> None:
    assert siafu.Graph is Graph
    assert siafu.Block is Block


def full_graph() -> Graph:
    return Graph.from_edges(
        [[0, 0, 1, 3, 2], [1, 2, 2, 0, 2]],
        x=X,
        y=[0, 1, -1, 2],
        train_mask=[1, 0, 0, 0],
        val_mask=[0, 1, 0, 0],
        test_mask=[0, 0, 0, 1],
        edge_weight=[1.0, 2.0, 3.0, 4.0, 5.0],
    )


FIELDS = ["indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask", "edge_weight"]


def test_a_reordered_graph_names_its_rows_by_their_old_numbers() -> None:
    graph, order = full_graph(), torch.tensor([2, 0, 3, 1])
    moved = graph.reordered(order)
    assert moved.node_id is not None
    assert moved.node_id.tolist() == order.tolist()
    renamed = {(int(order[s]), int(order[d])): w for (s, d), w in weighted_edges(moved).items()}
    assert renamed == weighted_edges(graph)
    for field in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(moved, field), getattr(graph, field)[order])
    assert moved.block.node_id is moved.node_id


@settings(max_examples=30, deadline=None)
@given(first=st.permutations(range(4)), second=st.permutations(range(4)))
def test_orders_follow_each_other_and_lead_back(first: list[int], second: list[int]) -> None:
    graph = full_graph()
    twice = graph.reordered(torch.tensor(first)).reordered(torch.tensor(second))
    assert twice.node_id is not None
    assert twice.node_id.tolist() == [first[row] for row in second]
    back = twice.reordered(twice.node_id.argsort())
    assert back.node_id is not None
    assert back.node_id.tolist() == [0, 1, 2, 3]
    for field in FIELDS:
        assert torch.equal(getattr(back, field), getattr(graph, field))


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 1, 2, 2], [1, 2, 3, 4], [0, 1, 2, -1]])
def test_an_order_that_is_none_is_refused(order: list[int]) -> None:
    with pytest.raises(ValueError, match=r"order.*expected"):
        full_graph().reordered(torch.tensor(order))


def test_a_block_knows_its_degrees_loops_and_transpose() -> None:
    block = Graph.from_edges([[0, 0, 1, 3, 2], [1, 2, 2, 0, 2]]).block
    assert (block.num_dst, block.num_src, block.num_edges) == (4, 4, 5)
    assert block.in_degree.tolist() == [1, 1, 3, 0]
    assert block.missing_loop.tolist() == [1, 1, 0, 1]
    assert block.row_edge.tolist() == [0, 1, 2, 2, 2]
    assert edges_of(Block(*block.transposed[:2], 4)) == [(1, 0), (2, 0), (2, 1), (2, 2), (0, 3)]
    assert full_graph().block.in_degree.tolist() == [4, 1, 10, 0]


def test_a_turned_block_knows_where_edges_stood_only_where_they_have_weights() -> None:
    block, weighted = Graph.from_edges([[0, 0, 1, 3, 2], [1, 2, 2, 0, 2]]).block, full_graph().block
    assert [torch.equal(*pair) for pair in zip(block.turned[:2], block.transposed[:2], strict=True)] == [
        True
    ] * 2
    assert block.turned.origin is None
    assert weighted.edge_weight is not None
    assert weighted.turned is weighted.transposed


def test_of_several_loops_all_but_the_last_are_too_many() -> None:
    edges, weight = [[1, 0, 1, 1, 0], [1, 1, 1, 0, 0]], [1.0, 2.0, 3.0, 4.0, 5.0]
    assert Graph.from_edges(edges, edge_weight=weight).block.missing_loop.tolist() == [0.0, -1.0]
    assert Graph.from_edges(edges).block.missing_loop.tolist() == [0.0, -1.0]


def test_what_a_block_keeps_is_computed_once_and_not_by_its_copy() -> None:
    block, calls = full_graph().block, []

    def compute() -> Tensor:
        calls.append(1)
        return torch.ones(1)

    assert block.keep("a", compute) is block.keep("a", compute)
    assert len(calls) == 1
    replace(block, node_id=None).keep("a", compute)
    assert len(calls) == 2
