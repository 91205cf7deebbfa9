"""Snapshots as views of an event log: each equals the one built from scratch, however it was reached."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.dynamic import DynamicGraph, Snapshots
from siafu.dynamic import snapshots as module
from siafu.graph import Block

pytestmark = pytest.mark.usefixtures("one_thread")
NODES, STEPS = 6, 9
Events = list[tuple[int, int, int]]  # source, target, step
logs = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.integers(0, STEPS - 1)),
    min_size=1,
    max_size=60,
)
anything = settings(max_examples=30, deadline=None)


def graph_of(events: Events, *, undirected: bool = False) -> DynamicGraph:
    src, dst, step = torch.tensor([*events, (0, 0, 0), (0, 0, STEPS - 1)]).T
    weight = torch.arange(len(src)) + 0.5
    return DynamicGraph.from_events(
        src, dst, step, step=1, weight=weight, num_nodes=NODES, undirected=undirected
    )


def edges_of(graph: DynamicGraph, block: Block) -> list[tuple[int, int]]:
    """The (destination, source) pairs of a block, in its order."""
    return list(zip(block.row_edge.tolist(), block.indices.tolist(), strict=True))


def expected(graph: DynamicGraph, step: int, life: int) -> list[tuple[int, int, float]]:
    """(Destination, source, weight) of what lives at a step, sorted by pair and then as it happened."""
    assert graph.weight is not None
    found = []
    for at in range(max(0, step - life + 1), step + 1):
        for event in range(int(graph.step_ptr[at]), int(graph.step_ptr[at + 1])):
            pair = int(graph.dst[event]), int(graph.src[event])
            weight = float(graph.weight[event])
            found.append((*pair, weight))
            if graph.undirected:
                found.append((pair[1], pair[0], weight))
    return sorted(found, key=lambda edge: edge[:2])


@anything
@given(
    events=logs,
    undirected=st.booleans(),
    weighted=st.booleans(),
    life=st.integers(1, STEPS + 1),
    start=st.integers(0, STEPS - 1),
)
def test_every_snapshot_of_a_walk_is_the_window_of_events(
    events: Events, undirected: bool, weighted: bool, life: int, start: int
) -> None:
    graph = graph_of(events, undirected=undirected)
    snapshots = Snapshots(graph, life=life, weighted=weighted)
    walked = list(snapshots.walk(start, STEPS))
    assert len(walked) == STEPS - start
    for step, block in enumerate(walked, start):
        wanted = expected(graph, step, life)
        assert edges_of(graph, block) == [edge[:2] for edge in wanted]
        if weighted:
            assert block.edge_weight is not None
            assert block.edge_weight.tolist() == [edge[2] for edge in wanted]
        else:
            assert block.edge_weight is None
        built = Snapshots(graph, life=life, weighted=weighted).block(step)
        assert torch.equal(block.indptr, built.indptr)
        assert torch.equal(block.indices, built.indices)


@anything
@given(events=logs, undirected=st.booleans(), life=st.integers(1, STEPS))
def test_degrees_and_activity_are_those_of_the_snapshot(events: Events, undirected: bool, life: int) -> None:
    graph = graph_of(events, undirected=undirected)
    snapshots = Snapshots(graph, life=life)
    for step in range(STEPS):
        block = snapshots.block(step)
        assert torch.equal(snapshots.degree(step), block.in_degree.float())
        touched = {node for edge in edges_of(graph, block) for node in edge}
        assert set(snapshots.active(step).nonzero()[:, 0].tolist()) == touched


def test_a_pair_that_happens_again_stands_as_often_as_it_lives() -> None:
    graph = graph_of([(1, 2, 0), (1, 2, 0), (1, 2, 3)])
    snapshots = Snapshots(graph, life=4)
    counts = [Counter(edges_of(graph, snapshots.block(step)))[2, 1] for step in range(STEPS)]
    assert counts == [2, 2, 2, 3, 1, 1, 1, 0, 0]


def test_steps_are_reached_from_key_frames_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEY_FRAME_INTERVAL", 2)
    graph = graph_of([(node % NODES, (2 * node) % NODES, node % STEPS) for node in range(50)])
    kept, fresh = Snapshots(graph, life=6), Snapshots(graph, life=6)
    for step in [8, 3, 4, 0, 7, 6, 8, 2]:
        assert edges_of(graph, kept.block(step)) == edges_of(graph, fresh.block(step))
        fresh = Snapshots(graph, life=6)


def test_invalid_arguments_are_refused() -> None:
    graph = graph_of([(0, 1, 0)])
    with pytest.raises(ValueError, match="an edge life of 0 steps; expected at least 1"):
        Snapshots(graph, life=0)
    with pytest.raises(IndexError, match="step 9 of 9"):
        Snapshots(graph, life=1).block(9)
    with pytest.raises(IndexError, match="step 9 of 9"):
        Snapshots(graph, life=1).walk(0, 10)
    unweighted = DynamicGraph.from_events([0], [1], [0])
    with pytest.raises(ValueError, match="weights were asked for"):
        Snapshots(unweighted, life=1, weighted=True)
