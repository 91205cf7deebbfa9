"""Packed snapshots: unpacking restores them, and damaged bytes are refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.dynamic import Chunk, DynamicGraph, Snapshots, events_of, unpack

pytestmark = pytest.mark.usefixtures("one_thread")
NODES, STEPS = 6, 8
logs = st.lists(
    st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.integers(0, STEPS - 1)),
    min_size=1,
    max_size=50,
)


def snapshots_of(
    events: list[tuple[int, int, int]], *, life: int, undirected: bool, weighted: bool
) -> Snapshots:
    src, dst, step = torch.tensor([*events, (0, 0, 0), (0, 0, STEPS - 1)]).T
    weight = torch.arange(len(src)) + 0.5
    graph = DynamicGraph.from_events(
        src, dst, step, step=1, weight=weight, num_nodes=NODES, undirected=undirected
    )
    return Snapshots(graph, life=life, weighted=weighted)


@settings(max_examples=40, deadline=None)
@given(
    events=logs,
    life=st.integers(1, STEPS),
    undirected=st.booleans(),
    weighted=st.booleans(),
    bounds=st.tuples(st.integers(0, STEPS - 1), st.integers(0, STEPS - 1)).map(sorted),
)
def test_unpacking_restores_the_packed_snapshots(
    events: list[tuple[int, int, int]], life: int, undirected: bool, weighted: bool, bounds: list[int]
) -> None:
    snapshots = snapshots_of(events, life=life, undirected=undirected, weighted=weighted)
    start, stop = bounds[0], bounds[1] + 1
    chunk = snapshots.pack(start, stop)
    data = chunk.to_bytes()
    assert data.numel() == chunk.num_bytes
    found = unpack(Chunk.from_bytes(data))
    blocks = zip(found.walk(start, stop), snapshots.walk(start, stop), strict=True)
    for step, (block, wanted) in enumerate(blocks, start):
        assert torch.equal(block.indptr, wanted.indptr)
        assert torch.equal(block.indices, wanted.indices)
        assert (block.edge_weight is None) == (not weighted)
        if block.edge_weight is not None:
            assert torch.equal(block.edge_weight, wanted.edge_weight)
        assert torch.equal(found.block(step).indices, wanted.indices)
    with pytest.raises(IndexError, match=f"step {stop} of"):
        found.block(stop)


def test_with_an_edge_life_only_events_are_sent() -> None:
    events = [(node % NODES, (node + 1) % NODES, node % STEPS) for node in range(48)]
    chunk = snapshots_of(events, life=3, undirected=False, weighted=False).pack(4, 6)
    assert chunk.first == 2
    assert chunk.counts[:, 0].tolist() == [6] * 4
    assert chunk.counts[:, 1].tolist() == [0] * 4


def test_snapshots_that_hardly_change_are_sent_as_their_differences() -> None:
    base = [(src, dst) for src in range(NODES) for dst in range(NODES) if src != dst]
    events = [(*pair, step) for step in range(STEPS) for pair in base if pair != (0, 1 + step % 4)]
    chunk = snapshots_of(events, life=1, undirected=False, weighted=False).pack(1, STEPS - 1)
    assert chunk.counts[0].tolist() == [29, 0]
    assert chunk.counts[1:].tolist() == [[1, 1]] * (STEPS - 3)


@settings(max_examples=50, deadline=None)
@given(place=st.integers(0, 10_000), flipped=st.integers(1, 255), cut=st.booleans())
def test_damaged_bytes_are_refused(place: int, flipped: int, cut: bool) -> None:
    events = [(node % NODES, (node * 5 + 1) % NODES, node % STEPS) for node in range(40)]
    data = snapshots_of(events, life=2, undirected=False, weighted=True).pack(0, STEPS).to_bytes()
    data = data[: place % data.numel()] if cut else data.clone()
    if not cut:
        data[place % data.numel()] ^= flipped
    with pytest.raises(ValueError, match="packed snapshots: the checksum of"):
        Chunk.from_bytes(data)


@settings(max_examples=40, deadline=None)
@given(events=logs, undirected=st.booleans(), deltas=st.booleans(), weighted=st.booleans())
def test_the_events_of_a_chunk_are_those_of_the_log(
    events: list[tuple[int, int, int]], undirected: bool, deltas: bool, weighted: bool
) -> None:
    snapshots = snapshots_of(events, life=1, undirected=undirected, weighted=weighted)
    chunk = Chunk.from_bytes(snapshots.pack(1, STEPS, deltas=deltas).to_bytes())
    assert chunk.as_deltas == (deltas and not weighted)
    graph = snapshots.graph
    for step, (src, dst) in enumerate(events_of(chunk), 1):
        there = graph.events(step, step + 1)
        ends = torch.stack([graph.src[there], graph.dst[there]])
        ends = ends.sort(0).values if undirected else ends
        wanted = sorted(zip(*ends.tolist(), strict=True), key=lambda pair: pair[::-1])
        assert list(zip(src.tolist(), dst.tolist(), strict=True)) == wanted
    assert step == STEPS - 1
