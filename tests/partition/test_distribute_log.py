"""Each rank gets its shard of a dynamic graph, from the folder or over the network in few bytes."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph, Snapshots
from siafu.launch.local import run_threads
from siafu.partition import log_shard as sharing
from siafu.partition.distribute_log import distribute_log
from siafu.partition.log_shard import LogShard, split_steps
from siafu.store import write_dynamic

NODES, STEPS, EVENTS = 9, 10, 120


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def graph_of(*, undirected: bool = True, by_step: bool = True) -> DynamicGraph:
    draw = torch.Generator().manual_seed(2)
    src, dst = torch.randint(NODES, (2, EVENTS), generator=draw)
    return DynamicGraph.from_events(
        src,
        dst,
        torch.randint(STEPS, (EVENTS,), generator=draw),
        steps=STEPS,
        num_nodes=NODES,
        undirected=undirected,
        weight=torch.rand(EVENTS, generator=draw),
        x=torch.randn((STEPS, NODES, 3) if by_step else (NODES, 3), generator=draw),
        y=torch.randint(4, (STEPS, NODES) if by_step else (NODES,), generator=draw),
        edge_y=torch.randint(5, (EVENTS,), generator=draw),
    )


def delivered(
    graph: DynamicGraph, path: Path, shares: Sequence[LogShard]
) -> tuple[list[DynamicGraph], list[dict[str, int]]]:
    """The graph that each rank got, and its bytes sent by label; only rank 0 can read the store."""
    write_dynamic(graph, path / "store")

    def rank(comm: Comm) -> tuple[DynamicGraph, dict[str, int]]:
        found = distribute_log(comm, path / ("elsewhere" if comm.rank else "store"), lambda _: shares)
        return found, dict(comm.meter.sent)

    graphs, sent = zip(*run_threads(rank, ranks=len(shares), threads=1, deadline_s=10), strict=True)
    assert list((path / "temporary").iterdir()) == []
    return list(graphs), list(sent)


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("life", [1, 3])
@pytest.mark.parametrize("most", [1, 30, 1 << 22])
def test_snapshots_of_a_share_are_those_of_the_log(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undirected: bool,
    weighted: bool,
    life: int,
    most: int,
) -> None:
    monkeypatch.setattr(sharing.split_steps, "__kwdefaults__", {"most": most})
    graph = graph_of(undirected=undirected)
    share = LogShard((1, 2, 3, 4, 7, 8, 9), weighted=weighted)
    found = delivered(graph, tmp_path, [share, share])[0][1]
    assert found.num_events == sum(graph.count(step, step + 1) for step in share.events)
    one, other = (Snapshots(each, life=life, weighted=weighted) for each in (graph, found))
    for step in (3, 4, 9):
        block, wanted = other.block(step), one.block(step)
        assert torch.equal(block.indptr, wanted.indptr)
        assert torch.equal(block.indices, wanted.indices)
        assert (block.edge_weight is None) == (not weighted)
        if block.edge_weight is not None:
            assert torch.equal(block.edge_weight, wanted.edge_weight)
        assert torch.equal(other.active(step), one.active(step))


def test_events_outside_a_shard_cannot_be_read_but_can_be_counted(tmp_path: Path) -> None:
    graph = graph_of()
    found = delivered(graph, tmp_path, [LogShard(()), LogShard((4, 5, 6))])[0][1]
    for start, stop in ((3, 5), (6, 8), (0, STEPS)):
        with pytest.raises(IndexError, match="a part of the log"):
            found.events(start, stop)
    assert [found.count(step, step + 2) for step in range(STEPS - 1)] == [
        graph.count(step, step + 2) for step in range(STEPS - 1)
    ]


def test_events_come_as_they_were_given_where_that_is_read(tmp_path: Path) -> None:
    graph = graph_of()
    share = LogShard((0, 1, 6), weighted=True, as_given=True, classes=5)
    (_, found), sent = delivered(graph, tmp_path, [share, share])
    for step in share.events:
        here, there = found.events(step, step + 1), graph.events(step, step + 1)
        for name in ("src", "dst", "weight", "edge_y"):
            assert torch.equal(getattr(found, name)[here], getattr(graph, name)[there])
    assert found.class_names == ("0", "1", "2", "3", "4")
    assert sent[0]["graph events"] >= 20 * found.num_events
    assert "graph deltas" not in sent[0]


@pytest.mark.parametrize("by_step", [True, False])
def test_rows_of_the_steps_that_are_read_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_step: bool
) -> None:
    monkeypatch.setattr(sharing, "_MAX_NUMBERS", 7)
    graph = graph_of(by_step=by_step)
    steps = ((2, 5), (5,)) if by_step else (None, None)
    share = LogShard((5,), *steps)
    found = delivered(graph, tmp_path, [share, share])[0][1]
    assert found.x is not None
    assert found.y is not None
    if not by_step:
        assert torch.equal(found.x, graph.x)
        assert torch.equal(found.y, graph.y)
        return
    assert found.x.shape == graph.x.shape
    assert torch.equal(found.x[[2, 5]], graph.x[[2, 5]])
    assert torch.equal(found.y[5], graph.y[5])
    assert not found.x[3].any()
    found.x.mul_(2)
    assert torch.equal(found.x[2], 2 * graph.x[2])


def test_steps_that_have_much_in_common_come_as_differences(tmp_path: Path) -> None:
    base = torch.randperm(60 * 60)[:1500]
    steps = [base[each : 1400 + each] for each in range(10)]
    code = torch.cat(steps)
    t = torch.arange(10).repeat_interleave(1400)
    graph = DynamicGraph.from_events(code // 60, code % 60, t, num_nodes=60)
    sent = {}
    for number, given in enumerate((graph, replace(graph, src=graph.src[torch.randperm(14_000)]))):
        folder = tmp_path / str(number)
        (folder / "temporary").mkdir(parents=True)
        share = LogShard(tuple(range(10)))
        found, bytes_sent = delivered(given, folder, [share, share])
        for step in range(10):
            codes = []
            for each in (given, found[1]):
                events = each.events(step, step + 1)
                codes.append((each.src[events].long() * 60 + each.dst[events]).sort().values)
            assert torch.equal(*codes)
        sent[number] = bytes_sent[0]["graph deltas"]
        assert sent[number] < 8 * 14_000 / 4
    assert sent[0] < sent[1] / 4


def test_a_piece_has_consecutive_steps_and_few_events() -> None:
    graph = graph_of()
    cut = split_steps(graph, [0, 1, 2, 5, 6, 9], most=20)
    assert [step for each in cut for step in each] == [0, 1, 2, 5, 6, 9]
    assert all(len(each) == 1 or graph.count(each.start, each.stop) <= 20 for each in cut)
    assert split_steps(graph, [0, 1, 2, 5, 6, 9]) == [range(0, 3), range(5, 7), range(9, 10)]
