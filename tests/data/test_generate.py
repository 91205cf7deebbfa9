"""Graph generators: edges, labels and features have the promised properties, and a seed gives one graph."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from siafu import native
from siafu.data import community, random_labels, rmat
from siafu.data.random_stream import RandomStream
from siafu.graph import Graph, check


@pytest.fixture(scope="module")
def graph() -> Graph:
    return community(8000, degree=20, classes=12, features=16, seed=3)


def fingerprint(graph: Graph) -> str:
    state = hashlib.sha256()
    for tensor in (graph.indptr, graph.indices, graph.x, graph.y, graph.train_mask):
        if tensor is not None:
            state.update(tensor.numpy().tobytes())
    return state.hexdigest()[:16]


def test_a_community_graph_is_undirected_without_loops_or_repeats(graph: Graph) -> None:
    check(graph)
    csr = graph.block.csr
    back = native.transpose(csr, num_cols=graph.num_nodes)
    assert torch.equal(back.indptr, csr.indptr)
    assert torch.equal(back.indices, csr.indices)
    assert native.deduplicate(csr).indices.numel() == graph.num_edges
    assert not (graph.block.row_edge == graph.indices).any()


@pytest.mark.parametrize(("nodes", "degree"), [(2000, 4.0), (8000, 20.0), (20000, 25.0), (3000, 40.5)])
def test_a_community_graph_has_as_many_edges_as_asked_for_within_two_per_cent(
    nodes: int, degree: float
) -> None:
    graph = community(nodes, degree=degree, classes=4, features=0)
    assert graph.num_edges == pytest.approx(nodes * degree, rel=0.02)
    assert graph.x is None


@settings(deadline=None)
@given(
    num_nodes=st.integers(8, 120),
    degree=st.floats(0.1, 2),
    classes=st.integers(1, 3),
    inside=st.floats(0, 1),
    seed=st.integers(0, 100),
)
def test_small_community_graphs_are_made_as_asked_for(
    num_nodes: int, degree: float, classes: int, inside: float, seed: int
) -> None:
    assume(classes * 8 <= num_nodes)  # a community has four nodes for each neighbour, degrees rounded up
    graph = community(num_nodes, degree=degree, classes=classes, features=1, inside=inside, seed=seed)
    check(graph)
    assert abs(graph.num_edges - num_nodes * degree) <= max(2, 0.02 * num_nodes * degree)
    assert native.deduplicate(graph.block.csr).indices.numel() == graph.num_edges


def test_most_edges_join_nodes_of_one_class_and_degrees_spread_wide(graph: Graph) -> None:
    same = (graph.y[graph.block.row_edge] == graph.y[graph.indices.long()]).float().mean()
    assert 0.72 < same < 0.9  # 0.87 inside, less where one of the labels is wrong
    assert graph.block.in_degree.max() > 8 * graph.block.in_degree.mean()
    assert graph.y.unique().tolist() == list(range(12))


def test_neighbours_are_not_near_each_other_in_the_order_of_nodes(graph: Graph) -> None:
    distance = (graph.block.row_edge - graph.indices.long()).abs().double().mean()
    assert distance == pytest.approx(graph.num_nodes / 3, rel=0.1)  # as of two nodes at random


def test_half_of_the_nodes_train_and_a_quarter_each_validate_and_test(graph: Graph) -> None:
    assert [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [
        4000,
        2000,
        2000,
    ]


def test_neighbours_tell_the_class_better_than_a_node_s_own_features(graph: Graph) -> None:
    def nearest_mean(x: torch.Tensor) -> float:
        rows = [x[graph.train_mask & (graph.y == label)].mean(0) for label in range(12)]
        found = torch.cdist(x, torch.stack(rows)).argmin(1)
        return float((found == graph.y)[graph.test_mask].float().mean())

    summed = native.spmm(graph.block.csr, graph.x) / graph.block.in_degree.clamp(min=1)[:, None]
    assert nearest_mean(summed) > nearest_mean(graph.x) + 0.2
    assert nearest_mean(graph.x) > 1.5 / 12


def test_a_seed_means_the_same_graph_on_every_machine() -> None:
    small = {"degree": 6, "classes": 3, "features": 5}
    assert fingerprint(community(600, seed=0, **small)) == "ce6be88d2505b4cf"
    assert fingerprint(rmat(300, 2000, features=4, classes=3, seed=0)) == "683618f2223ae75f"
    assert fingerprint(community(600, seed=1, **small)) != fingerprint(community(600, seed=0, **small))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 1}, "1 nodes; expected 2"),
        ({"num_nodes": 1000, "classes": 47}, "10 communities, fewer than the 47 classes"),
        ({"num_nodes": 1000, "degree": 500}, "degree is 500; expected more than 0, at most a quarter"),
        ({"num_nodes": 1000, "classes": 0}, "classes is 0"),
        ({"num_nodes": 1000, "classes": 2, "inside": 1.5}, "inside is 1.5"),
        ({"num_nodes": 1000, "classes": 2, "seed": -1}, "seed is -1"),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        community(**arguments)


@settings(deadline=None)
@given(num_nodes=st.integers(1, 70), num_edges=st.integers(0, 300), seed=st.integers(0, 3))
def test_rmat_has_exactly_the_edges_asked_for_among_the_nodes(
    num_nodes: int, num_edges: int, seed: int
) -> None:
    graph = rmat(num_nodes, num_edges, seed=seed)
    assert (graph.num_nodes, graph.num_edges) == (num_nodes, num_edges)
    check(graph)
    if num_edges:
        assert 0 <= int(graph.indices.min()) <= int(graph.indices.max()) < num_nodes


def test_rmat_quarters_are_as_likely_as_asked_for() -> None:
    """Of two nodes every quarter is one entry; the shuffle may exchange the nodes."""
    graph = rmat(2, 100_000, a=0.5, b=0.3, c=0.15)
    share = torch.zeros(2, 2)
    share.index_put_((graph.indices.long(), graph.block.row_edge), torch.tensor(1e-5), accumulate=True)
    wanted = torch.tensor([[0.5, 0.3], [0.15, 0.05]])
    assert min((share - wanted).abs().max(), (share - wanted.flip(0, 1)).abs().max()) < 0.01


def test_rmat_degrees_are_skewed() -> None:
    degree = rmat(4096, 60_000).block.in_degree
    assert degree.max() > 20 * degree.mean()


def test_chances_above_one_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        rmat(4, 4, a=0.9, b=0.2)


def test_random_labels_leave_the_unlabelled_alone_and_tell_nothing(graph: Graph) -> None:
    noisy = random_labels(graph, seed=1)
    assert float((noisy.y == graph.y).float().mean()) == pytest.approx(1 / 12, abs=0.02)
    some = Graph.from_edges([[0], [1]], y=[2, -1, 0])
    assert random_labels(some).y[1] == -1
    many = Graph.from_edges([[0], [1]], y=np.eye(40, dtype=np.uint8))
    assert random_labels(many).y.sum() == 40
    assert not torch.equal(random_labels(many).y, many.y)
    with pytest.raises(ValueError, match="no labels to replace"):
        random_labels(Graph.from_edges([[0], [1]]))


def test_draws_have_the_moments_they_promise() -> None:
    draws = RandomStream(0, "test")
    noise = draws.noise(1000, 200)
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert float(noise.std()) == pytest.approx(1, abs=0.01)
    assert draws.below(7, 10_000).tolist() != draws.below(7, 10_000).tolist()
    assert set(draws.below(7, 10_000).tolist()) == set(range(7))
    assert float(draws.chance(0.3, 100_000).mean()) == pytest.approx(0.3, abs=0.01)
    assert sorted(draws.order(100).tolist()) == list(range(100))
