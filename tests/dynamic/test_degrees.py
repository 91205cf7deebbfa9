"""Degree features."""

import torch

from siafu.dynamic import DegreeFeatures, DynamicGraph, Snapshots

# Node 0 has an edge to 1 twice and to 2 in step 0, to 3 in step 1; node 3 has one to 0 in step 2.
EVENTS = [(0, 1, 0), (0, 1, 0), (0, 2, 0), (0, 3, 1), (3, 0, 2)]


def features(*, life: int, undirected: bool = False, most: int = 1024) -> tuple[DegreeFeatures, Snapshots]:
    src, dst, step = torch.tensor(EVENTS).T
    graph = DynamicGraph.from_events(src, dst, step, step=1, undirected=undirected)
    snapshots = Snapshots(graph, life=life)
    return DegreeFeatures(snapshots, most=most), snapshots


def test_a_row_is_one_in_the_column_of_its_out_degree() -> None:
    found, snapshots = features(life=2)
    assert found.num_features == 4  # the largest degree, of node 0 at step 1, is 3
    assert [found.columns(snapshots.block(t)).tolist() for t in range(3)] == [
        [2, 0, 0, 0],
        [3, 0, 0, 0],
        [1, 0, 0, 1],
    ]
    assert found.rows(snapshots.block(1)).tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]]


def test_in_an_undirected_graph_both_ends_count() -> None:
    found, snapshots = features(life=1, undirected=True)
    assert found.columns(snapshots.block(0)).tolist() == [2, 1, 1, 0]


def test_higher_degrees_share_the_last_column() -> None:
    found, snapshots = features(life=3, most=2)
    assert found.num_features == 2
    assert found.columns(snapshots.block(2)).tolist() == [1, 0, 0, 1]


def test_beyond_the_exact_ones_degrees_share_eight_columns_for_each_doubling() -> None:
    hub = torch.arange(1, 40)
    graph = DynamicGraph.from_events(torch.zeros(39, dtype=torch.int64), hub, torch.zeros(39), num_nodes=40)
    snapshots = Snapshots(graph, life=1)
    found = DegreeFeatures(snapshots, exact=16)
    assert found.num_features == 16 + 48
    columns = found.columns(snapshots.block(0))
    assert columns[0] == 16 + 10  # 39 is 1.28 doublings from 16
    assert not columns[1:].any()
