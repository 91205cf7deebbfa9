"""Graphs and inputs of steps are cached while they fit, and built once."""

from collections.abc import Iterator

import pytest
import torch

from siafu.dynamic import DynamicGraph
from siafu.graph import Block
from siafu.methods.snapshots.timeline import Timeline

NODES, STEPS = 40, 6


def timeline_of(*, undirected: bool, cache_bytes: int) -> Timeline:
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(NODES, (2, 60 * STEPS), generator=draw)
    t = torch.arange(STEPS).repeat_interleave(60)
    x = torch.randn(NODES, 2, generator=draw)
    graph = DynamicGraph.from_events(src, dst, t, steps=STEPS, num_nodes=NODES, undirected=undirected, x=x)
    return Timeline(graph, edge_life=2, cache_bytes=cache_bytes)


@pytest.mark.parametrize("undirected", [True, False])
def test_the_cache_with_transposes_and_scales_fits_its_memory(undirected: bool) -> None:
    line = timeline_of(undirected=undirected, cache_bytes=6_000)
    line.aggregated_inputs(range(STEPS))
    kept = 0
    for step in line._steps.values():
        held = [step.block.indptr, step.block.indices, step.scale(torch.float32)]
        if not undirected:
            held += [step.block.turned.indptr, step.block.turned.indices]
        kept += sum(each.nbytes for each in held)
    kept += sum(each.nbytes for each in [*line._aggregated.values(), *line._active.values()])
    assert 0 < len(line._steps) < STEPS
    assert kept <= 6_000


def test_consecutive_steps_are_built_once_even_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    line = timeline_of(undirected=True, cache_bytes=0)
    made: list[int] = []
    walk = line._view.walk

    def counted(start: int, stop: int) -> Iterator[Block]:
        made.extend(range(start, stop))
        return walk(start, stop)

    monkeypatch.setattr(line._view, "walk", counted)
    some = range(1, 4)
    line.aggregated_inputs(some)
    line.steps(some)
    line.steps(range(4, 6))
    assert made == [1, 2, 3, 4, 5]


def test_cached_steps_take_no_memory_twice() -> None:
    line = timeline_of(undirected=True, cache_bytes=100_000)
    line.steps(range(2))
    again = line.steps(range(3))
    assert again[0] is line._steps[0]
    other = timeline_of(undirected=True, cache_bytes=100_000)
    other.steps(range(3))
    assert line.cache_bytes == other.cache_bytes
