"""A gate lets a reader pass exactly when all its sources are new enough; intervals cover each row once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranked import graph_of, parts_of

from siafu.comm import Comm
from siafu.comm.halo import Halo
from siafu.context import NO_EXCHANGE
from siafu.launch.local import run_threads
from siafu.methods.pipeline.intervals import Intervals, cut_intervals
from siafu.methods.pipeline.peer_messages import Message, MessageKind
from siafu.methods.pipeline.staleness_gate import StalenessGate


@given(
    reads=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5),
    slack=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=40),
    waits=st.lists(st.integers(1, 6), min_size=5, max_size=5),
)
def test_a_reader_passes_once_and_as_soon_as_its_sources_are_new_enough(
    reads: list[list[bool]], slack: list[int], steps: list[tuple[int, int]], waits: list[int]
) -> None:
    gate = StalenessGate(np.array(reads), slack=np.array(slack))
    version = np.zeros(4, dtype=int)

    def may_pass(reader: int) -> bool:
        needed = [max(1, waits[reader] - each) for each in slack]
        return all(version[source] >= needed[source] for source in range(4) if reads[reader][source])

    waiting = {reader for reader in range(len(reads)) if not gate.wait(reader, waits[reader])}
    assert waiting == {reader for reader in range(len(reads)) if not may_pass(reader)}
    for source, more in steps:
        version[source] += more
        passed = sorted(gate.advance(source, int(version[source])))
        assert passed == [(reader, waits[reader]) for reader in sorted(waiting) if may_pass(reader)]
        waiting -= {reader for reader, _ in passed}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_intervals_cover_all_rows_and_read_what_their_edges_name(ranks: int, count: int) -> None:
    parts = parts_of(graph_of(), ranks)

    def rank(comm: Comm) -> Intervals:
        part = parts[comm.rank]
        exchange = Halo(comm, part.route, num_own=part.own.num_nodes) if ranks > 1 else NO_EXCHANGE
        return cut_intervals(part.context(exchange), part.route, comm, count=count)

    found = run_threads(rank, ranks=ranks, threads=1)
    for part, cut in zip(parts, found, strict=True):
        own = part.own.num_nodes
        assert [row for rows in cut.rows for row in range(rows.start, rows.stop)] == list(range(own))
        assert sum(rows.stop - rows.start for _, rows in cut.halo.values()) == part.halo_id.numel()
        source_of = {row: number for number, rows in [*enumerate(cut.rows), *cut.halo.values()]
                     for row in range(rows.start, rows.stop)}  # fmt: skip
        for number, rows in enumerate(cut.rows):
            edges = part.own.indices[part.own.indptr[rows.start] : part.own.indptr[rows.stop]].tolist()
            assert set(np.flatnonzero(cut.reads[number])) == {source_of[row] for row in edges} | {number}
        for number, sends in enumerate(cut.sends):
            for sent in sends:
                _, rows = found[sent.peer].halo[part.number, number]
                theirs = parts[sent.peer]
                there = theirs.halo_id[
                    slice(rows.start - theirs.own.num_nodes, rows.stop - theirs.own.num_nodes)
                ]
                assert part.own.node_id is not None
                assert torch.equal(part.own.node_id[sent.index], there)


@given(
    st.sampled_from(MessageKind), st.integers(0, 2**30 - 1), st.integers(0, 255), st.integers(0, 2**22 - 1)
)
def test_a_message_is_identified_by_its_tag(kind: MessageKind, epoch: int, layer: int, interval: int) -> None:
    message = Message(kind, epoch, layer, interval)
    assert 0 <= message.tag < 2**63
    assert Message.from_tag(message.tag) == message
