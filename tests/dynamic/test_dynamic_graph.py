"""Event logs: cutting time into steps, node lifetimes, and invalid input."""

from itertools import pairwise
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

from siafu.dynamic import DynamicGraph, Protocol, find_steps

pytestmark = pytest.mark.usefixtures("one_thread")


def unpack_log(graph: DynamicGraph) -> list[list[tuple[int, int]]]:
    """The events of each step."""
    pairs = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    bounds = graph.step_ptr.tolist()
    return [pairs[start:stop] for start, stop in pairwise(bounds)]


def test_events_in_any_order_stand_by_step_and_within_it_as_given() -> None:
    graph = DynamicGraph.from_events(
        [0, 1, 2, 3], [1, 2, 3, 0], [35, 2, 30, 1], step=10, weight=[1, 2, 3, 4], edge_y=[0, 1, -1, 0]
    )
    assert unpack_log(graph) == [[(1, 2), (3, 0)], [], [(2, 3)], [(0, 1)]]
    assert graph.weight.tolist() == [2, 4, 3, 1]
    assert graph.edge_y.tolist() == [1, 0, -1, 0]
    assert graph.step_time.tolist() == [1, 11, 21, 31]
    assert graph.protocol.step == 10


@pytest.mark.parametrize(
    ("times", "how", "wanted"),
    [
        ([0, 1, 2, 3, 4, 5], {"step": 2}, [0, 0, 1, 1, 2, 2]),
        ([0, 1, 2, 3, 4, 5], {"steps": 2}, [0, 0, 0, 1, 1, 1]),
        ([0, 5, 10], {"step": 10}, [0, 0, 1]),  # what happens as a step ends belongs to the next
        ([7, 7], {"steps": 3}, [0, 0]),
        ([-3, 8, 8, 100], {}, [0, 1, 1, 2]),
        ([0.25, 0.5, 0.75], {"step": 0.25}, [0, 1, 2]),
        ([2**60, 2**60 + 1, 2**60 + 5], {"step": 2}, [0, 0, 2]),  # beyond what a float tells apart
    ],
)
def test_time_is_cut(times: list[float], how: dict[str, float], wanted: list[int]) -> None:
    given = torch.tensor(times)
    assert find_steps(given, **how).of(given).tolist() == wanted


def test_too_many_distinct_times_need_a_step() -> None:
    times = np.arange(1001)
    with pytest.raises(ValueError, match=r"1001 distinct times from 0 to 1000.*step=.*steps="):
        DynamicGraph.from_events(times * 0, times * 0 + 1, times)
    assert DynamicGraph.from_events(times[1:] * 0, times[1:] * 0 + 1, times[1:]).num_steps == 1000


def test_nodes_come_and_go() -> None:
    graph = DynamicGraph.from_events([0, 1, 2], [1, 2, 1], [0, 2, 3], step=1, num_nodes=4)
    assert graph.first_step.tolist() == [0, 0, 2, 4]
    assert graph.last_step.tolist() == [0, 3, 3, -1]
    assert graph.present(1).tolist() == [False, True, False, False]
    assert graph.seen(1).tolist() == [True, True, False, False]


def test_features_may_change_or_not() -> None:
    still, moving = torch.rand(2, 3), torch.rand(2, 2, 3)
    graphs = [DynamicGraph.from_events([0, 1], [1, 0], [0, 1], x=x) for x in (still, moving)]
    assert torch.equal(graphs[0].features(1), still)
    assert torch.equal(graphs[1].features(1), moving[1])
    assert [graph.num_nodes for graph in graphs] == [2, 2]


def test_a_fingerprint_tells_graphs_apart() -> None:
    one = DynamicGraph.from_events([0, 1], [1, 0], [0, 1])
    same = DynamicGraph.from_events(np.array([0, 1]), np.array([1, 0]), np.array([0.0, 1.0]))
    assert one.fingerprint == same.fingerprint
    for changed in ({"undirected": True}, {"num_nodes": 3}, {"weight": [1, 2]}):
        assert DynamicGraph.from_events([0, 1], [1, 0], [0, 1], **changed).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"src": [0, -1]}, "holds -1; node ids start at 0"),
        ({"num_nodes": 1}, "names node 1, but there are 1 nodes"),
        ({"src": [0.5, 1]}, "src is .* expected .* integers"),
        ({"t": [0, float("nan")]}, r"t\[1\] is nan; expected a finite number"),
        ({"t": ["a", "b"]}, "expected numbers"),
        ({"t": [0]}, r"t is \(1,\); expected \(2,\)"),
        ({"weight": [1, float("nan")]}, r"edge_weight\[1\] is nan; expected a finite"),
        ({"edge_y": [0, -2]}, "edge_y holds -2; expected a class from 0"),
        ({"x": torch.rand(3, 2, 1)}, r"x is \(3, 2, 1\); expected \(2, F\), or \(2, 2, F\) a step"),
        ({"y": [0.5, 1.0]}, r"y is \(2,\) torch.float32; expected \(2, 2\)"),
        ({"y": [0, -3]}, "y holds -3; expected a class from 0"),
        ({"step": -1}, "a step of -1; expected a positive length of time"),
        ({"step": 1, "steps": 2}, "both a step"),
        ({"src": [], "dst": [], "t": []}, "expected"),
    ],
)
def test_invalid_arguments_are_refused(changed: dict[str, object], message: str) -> None:
    given = {"src": [0, 1], "dst": [1, 0], "t": [0, 1], "num_nodes": 2} | changed
    with pytest.raises(ValueError, match=message):
        DynamicGraph.from_events(given.pop("src"), given.pop("dst"), given.pop("t"), **given)


def test_a_protocol_cuts_steps_as_the_published_one_does() -> None:
    published = {138: (95, 14, 28), 137: (95, 13, 28)}  # EvolveGCN's table: Bitcoin OTC and Alpha
    for steps, wanted in published.items():
        val, test = Protocol().bounds(steps)
        assert (val, test - val, steps - 1 - test) == wanted
    with pytest.raises(ValueError, match="expected three shares that add up to 1"):
        Protocol(split=(0.5, 0.1, 0.1))


SNAPSHOTS = [[(0, 1), (1, 2)], [], [(2, 0)], []]


def test_snapshots_of_other_kinds_become_a_log_and_empty_ones_are_kept() -> None:
    arrays = [np.array(pairs, dtype=np.int64).reshape(-1, 2).T for pairs in SNAPSHOTS]
    matrices = [sp.coo_matrix((np.ones(p.shape[1]), p), shape=(3, 3)) for p in arrays]
    graphs = []
    for pairs in SNAPSHOTS:
        graphs.append(nx.DiGraph(pairs))
        graphs[-1].add_nodes_from(range(3))
    for snapshots in (arrays, matrices, graphs):
        found = DynamicGraph.from_snapshots(snapshots, num_nodes=3)
        assert unpack_log(found) == SNAPSHOTS
        assert not found.undirected
        assert found.weight is None


def test_weights_and_directions_of_snapshots_are_kept() -> None:
    weighted = nx.Graph()
    weighted.add_edge(0, 1, weight=2.5)
    found = DynamicGraph.from_snapshots([weighted, nx.Graph([(1, 2)])])
    assert found.undirected
    assert found.weight.tolist() == [2.5, 1]
    assert found.num_nodes == 3
    with pytest.raises(ValueError, match="some of the snapshots are directed"):
        DynamicGraph.from_snapshots([nx.Graph(), nx.DiGraph()])
    with pytest.raises(ValueError, match="has the node 'ann'"):
        DynamicGraph.from_snapshots([nx.Graph([("ann", "bob")])])
    with pytest.raises(ValueError, match="no snapshot"):
        DynamicGraph.from_snapshots([])


def test_temporal_data_of_pyg_becomes_a_log() -> None:
    given = {"src": torch.tensor([0, 1]), "dst": torch.tensor([1, 0]), "t": torch.tensor([9, 4])}
    data = SimpleNamespace(**given, msg=torch.tensor([[0.5], [1.5]]))
    found = DynamicGraph.from_pyg_temporal(data, step=5)
    assert unpack_log(found) == [[(1, 0)], [(0, 1)]]
    assert found.weight.tolist() == [1.5, 0.5]
    wide = SimpleNamespace(**given, msg=torch.zeros(2, 3))
    assert DynamicGraph.from_pyg_temporal(wide).weight is None
    with pytest.raises(ValueError, match="has no src; expected a PyG TemporalData"):
        DynamicGraph.from_pyg_temporal(SimpleNamespace())
