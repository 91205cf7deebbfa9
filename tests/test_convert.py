"""Conversion of graphs from other libraries and back."""

import warnings
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu.graph import Graph

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric.data import Data, HeteroData


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    return sorted(zip(graph.indices.tolist(), graph.block.row_edge.tolist(), strict=True))


def pyg_data(**changes: object) -> Data:
    fields = {
        "edge_index": torch.tensor([[0, 1, 2, 3], [1, 2, 0, 0]]),
        "x": torch.arange(8.0).reshape(4, 2),
        "y": torch.tensor([0, 1, 0, 1]),
        "train_mask": torch.tensor([True, True, False, False]),
        "test_mask": torch.tensor([False, False, True, True]),
        "edge_weight": torch.tensor([0.5, 1.5, 2.5, 3.5]),
    }
    return Data(**(fields | changes))


def test_a_pyg_data_keeps_edges_features_labels_masks_and_weights() -> None:
    data = pyg_data()
    graph = Graph.from_pyg(data, name="four")
    assert edges_of(graph) == [(0, 1), (1, 2), (2, 0), (3, 0)]
    ends = zip(graph.indices.tolist(), graph.block.row_edge.tolist(), strict=True)
    weight = dict(zip(ends, graph.edge_weight.tolist(), strict=True))
    assert weight == {(0, 1): 0.5, (1, 2): 1.5, (2, 0): 2.5, (3, 0): 3.5}
    assert torch.equal(graph.x, data.x)
    assert torch.equal(graph.y, data.y)
    assert torch.equal(graph.test_mask, data.test_mask)
    assert graph.val_mask is None
    assert graph.name == "four"


@settings(deadline=None)
@given(
    num_nodes=st.integers(1, 8),
    pairs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20),
    order_seed=st.integers(0, 5),
)
def test_pyg_and_back_is_the_same_graph_also_after_a_reordering(
    num_nodes: int, pairs: list[tuple[int, int]], order_seed: int
) -> None:
    pairs = [(src % num_nodes, dst % num_nodes) for src, dst in pairs]
    data = Data(
        edge_index=torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T,
        x=torch.arange(float(num_nodes))[:, None],
        edge_weight=torch.tensor([10.0 * src + dst for src, dst in pairs]),
    )
    graph = Graph.from_pyg(data)
    order = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(order_seed))
    for same in (graph, graph.reordered(order)):
        back = same.to_pyg()
        found = [tuple(edge) for edge in back.edge_index.T.tolist()]
        assert sorted(found) == sorted(pairs)
        assert back.edge_weight.tolist() == [10.0 * src + dst for src, dst in found]
        assert torch.equal(back.x, data.x)
        assert back.num_nodes == num_nodes


def test_a_fold_picks_a_column_of_pyg_masks() -> None:
    two = torch.tensor([[True, False], [False, True], [False, False], [False, False]])
    graph = Graph.from_pyg(pyg_data(train_mask=two), fold=1)
    assert graph.train_mask.tolist() == [False, True, False, False]
    assert graph.test_mask.tolist() == [False, False, True, True]
    with pytest.raises(ValueError, match=r"fold 2 was asked for, but it has 2 \(0 to 1\)"):
        Graph.from_pyg(pyg_data(train_mask=two), fold=2)


def test_sparse_pyg_features_become_dense() -> None:
    x = torch.eye(4)
    assert torch.equal(Graph.from_pyg(pyg_data(x=x.to_sparse())).x, x)


def test_a_hetero_graph_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"HeteroData has no edge_index.*to_homogeneous"):
        Graph.from_pyg(HeteroData())


class DglGraph(SimpleNamespace):
    """What a DGL graph answers: `edges()`, `num_nodes()`, `ndata`, `edata`, `is_homogeneous`."""

    is_homogeneous = True

    def edges(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])

    def num_nodes(self) -> int:
        return 4


def test_a_dgl_graph_keeps_edges_and_node_data() -> None:
    ndata = {
        "feat": torch.eye(4),
        "label": torch.tensor([0, 1, 1, -1]),
        "train_mask": torch.tensor([1, 0, 0, 0]),
    }
    graph = Graph.from_dgl(DglGraph(ndata=ndata, edata={"weight": torch.tensor([1.0, 2.0, 3.0])}))
    assert edges_of(graph) == [(0, 1), (1, 2), (2, 0)]
    assert graph.num_nodes == 4
    assert torch.equal(graph.x, torch.eye(4))
    assert graph.y.tolist() == [0, 1, 1, -1]
    assert graph.train_mask.tolist() == [True, False, False, False]
    assert graph.edge_weight.tolist() == [3.0, 1.0, 2.0]  # by destination


def test_dgl_node_data_of_other_names_can_be_named() -> None:
    graph = Graph.from_dgl(DglGraph(ndata={"h": torch.eye(4)}, edata={}), x="h")
    assert graph.x is not None
    assert graph.y is None


def test_a_heterogeneous_dgl_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="to_homogeneous"):
        Graph.from_dgl(DglGraph(is_homogeneous=False))


def test_a_networkx_graph_keeps_the_order_and_the_names_of_its_nodes() -> None:
    friends = nx.Graph()
    friends.add_node("carol", x=[1.0, 0.0], y=1)
    friends.add_node("alice", x=[0.0, 1.0])
    friends.add_node("bob", x=[0.0, 0.0], y=0, train_mask=True)
    friends.add_edge("alice", "bob", weight=2.0)
    friends.add_edge("carol", "bob")
    graph = Graph.from_networkx(friends)
    assert graph.node_names.to_pylist() == ["carol", "alice", "bob"]
    assert edges_of(graph) == [(0, 2), (1, 2), (2, 0), (2, 1)]
    assert graph.edge_weight.tolist() == [1.0, 2.0, 1.0, 2.0]
    assert graph.y.tolist() == [1, -1, 0]
    assert graph.train_mask.tolist() == [False, False, True]


def test_a_directed_networkx_graph_stays_directed() -> None:
    graph = Graph.from_networkx(nx.DiGraph([(0, 1), (2, 1)]))
    assert edges_of(graph) == [(0, 1), (2, 1)]
    assert graph.node_names is None  # the names are the row numbers
    assert graph.edge_weight is None
    assert graph.x is None


def test_a_networkx_node_without_features_is_named() -> None:
    some = nx.Graph([("a", "b")])
    some.nodes["a"]["x"] = [1.0]
    with pytest.raises(ValueError, match="node 'b' has no attribute x"):
        Graph.from_networkx(some)


def test_a_scipy_adjacency_has_sources_in_its_rows() -> None:
    adjacency = sp.csr_array(np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]]))
    graph = Graph.from_scipy(adjacency, x=sp.csr_array(np.eye(3)), y=[0, 1, 0])
    assert edges_of(graph) == [(0, 1), (1, 2)]
    assert graph.edge_weight is None
    assert torch.equal(graph.x, torch.eye(3))
    assert graph.y.tolist() == [0, 1, 0]


def test_scipy_entries_other_than_one_are_weights_and_zeros_are_no_edges() -> None:
    adjacency = sp.coo_array(([2.0, 0.0, 3.0], ([0, 1, 2], [1, 2, 0])), shape=(3, 3))
    graph = Graph.from_scipy(adjacency)
    assert edges_of(graph) == [(0, 1), (2, 0)]
    assert graph.edge_weight.tolist() == [3.0, 2.0]


def test_a_scipy_matrix_that_is_not_square_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\); expected as many rows as columns"):
        Graph.from_scipy(sp.csr_array((2, 3)))
