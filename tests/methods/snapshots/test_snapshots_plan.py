"""The plan of a run on snapshots: one memory budget for segments and for the cache."""

import pytest
import torch

from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.build import build_timeline
from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.plan import PassPlan, plan_passes
from siafu.nn.config import ModelConfig
from siafu.nn.temporal import build_temporal

NODES, STEPS = 1000, 40


def plan_of(**snapshots: int) -> PassPlan:
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(NODES, (2, 4 * STEPS), generator=draw)
    t = torch.arange(STEPS).repeat_interleave(4)
    x = torch.randn(NODES, 64, generator=draw)
    graph = DynamicGraph.from_events(src, dst, t, steps=STEPS, num_nodes=NODES, x=x)
    config = SnapshotsConfig(**({"edge_life": 2, "window": 0} | snapshots))
    model = ModelConfig(kind="cd-gcn", hidden=64, layers=1)
    line = build_timeline(graph, config, model)
    temporal = build_temporal(model, in_features=64)
    return plan_passes(temporal, line, config, train=range(STEPS), ranks=1)


@pytest.mark.parametrize("room", [30, 60, 200])
def test_segments_take_at_most_half_of_the_budget_and_the_cache_gets_the_rest(room: int) -> None:
    plan = plan_of(room_mb=room)
    peak = plan.memory.peak(plan.lengths)
    assert peak <= room * 10**6 // 2
    assert peak + plan.cache_bytes == room * 10**6


def test_if_half_of_the_budget_is_too_little_segments_take_the_least_that_works() -> None:
    least = plan_of(room_mb=1)
    peak = least.memory.peak(least.lengths)
    assert least.cache_bytes == 0
    room = peak // 10**6 + 2
    plan = plan_of(room_mb=room)
    assert plan.lengths == least.lengths
    assert plan.cache_bytes == room * 10**6 - peak


def test_with_a_given_number_of_segments_the_cache_gets_the_rest() -> None:
    plan = plan_of(room_mb=200, blocks=5)
    assert len(plan.lengths) == 5
    assert plan.cache_bytes == 200 * 10**6 - plan.memory.peak(plan.lengths)
