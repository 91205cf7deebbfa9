"""Changes from step to step, counted from the log, compared with the snapshots."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.dynamic import DynamicGraph, Snapshots, change_of

pytestmark = pytest.mark.usefixtures("one_thread")


def graph_of(events: list[tuple[int, int, int]], *, undirected: bool = False) -> DynamicGraph:
    src, dst, step = torch.tensor(events).T
    return DynamicGraph.from_events(src, dst, step, step=1, num_nodes=5, undirected=undirected)


def test_edges_and_nodes_added_and_removed_by_a_step() -> None:
    graph = graph_of([(0, 1, 0), (1, 2, 0), (0, 1, 1), (3, 1, 3)])
    change = change_of(graph, life=2)
    assert change.edges == [2, 3, 1, 1]
    assert change.added == [2, 1, 0, 1]
    assert change.removed == [0, 0, 2, 1]
    assert change.active == [3, 3, 2, 2]
    assert change.arrived == [3, 0, 0, 1]


def test_a_single_step_brings_all_its_events() -> None:
    graph = graph_of([(0, 1, 0)])
    assert change_of(graph, life=1).edges == [1]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=30),
    st.integers(1, 8),
    st.booleans(),
)
def test_it_counts_what_the_snapshots_hold(
    events: list[tuple[int, int, int]], life: int, undirected: bool
) -> None:
    graph = graph_of(events, undirected=undirected)
    snapshots, change = Snapshots(graph, life=life), change_of(graph, life=life)
    for step, block in enumerate(snapshots.walk(0, graph.num_steps)):
        assert change.edges[step] * (2 if undirected else 1) == block.indices.numel()
        assert change.active[step] == int(snapshots.active(step).sum())
        before = change.edges[step - 1] if step else 0
        assert change.edges[step] == before + change.added[step] - change.removed[step]
