"""Graphs and inputs of steps are kept while they fit, and made no more often than they are asked for."""

from collections.abc import Iterator

import pytest
import torch

from siafu.dynamic import DynamicGraph
from siafu.graph import Block
from siafu.methods.snapshots.timeline import Timeline

NODES, STEPS = 40, 6


def timeline_of(*, undirected: bool, keep_bytes: int) -> Timeline:
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(NODES, (2, 60 * STEPS), generator=draw)
    t = torch.arange(STEPS).repeat_interleave(60)
    x = torch.randn(NODES, 2, generator=draw)
    graph = DynamicGraph.from_events(src, dst, t, steps=STEPS, num_nodes=NODES, undirected=undirected, x=x)
    return Timeline(graph, edge_life=2, keep_bytes=keep_bytes)


@pytest.mark.parametrize("undirected", [True, False])
def test_what_is_kept_with_its_transposes_and_scales_fits(undirected: bool) -> None:
    line = timeline_of(undirected=undirected, keep_bytes=6_000)
    line.aggregated(range(STEPS))
    kept = 0
    for step in line._steps.values():
        held = [step.block.indptr, step.block.indices, step.scale(torch.float32)]
        if not undirected:
            held += [step.block.turned.indptr, step.block.turned.indices]
        kept += sum(each.nbytes for each in held)
    kept += sum(each.nbytes for each in [*line._aggregated.values(), *line._busy.values()])
    assert 0 < len(line._steps) < STEPS
    assert kept <= 6_000


def test_a_block_of_time_is_made_once_though_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    line = timeline_of(undirected=True, keep_bytes=0)
    made: list[int] = []
    walk = line._view.walk

    def counted(start: int, stop: int) -> Iterator[Block]:
        made.extend(range(start, stop))
        return walk(start, stop)

    monkeypatch.setattr(line._view, "walk", counted)
    some = range(1, 4)
    line.aggregated(some)
    line.steps(some)
    line.steps(range(4, 6))
    assert made == [1, 2, 3, 4, 5]


def test_steps_that_are_asked_for_again_beside_others_take_no_further_room() -> None:
    line = timeline_of(undirected=True, keep_bytes=100_000)
    line.steps(range(2))
    again = line.steps(range(3))
    assert again[0] is line._steps[0]
    other = timeline_of(undirected=True, keep_bytes=100_000)
    other.steps(range(3))
    assert line.keep_bytes == other.keep_bytes
