"""The plan of a run on snapshots: one room for blocks of time and for what is kept."""

import pytest
import torch

from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.build import build_timeline
from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.plan import Plan, plan_passes
from siafu.nn.config import ModelConfig
from siafu.nn.temporal import build_temporal

NODES, STEPS = 1000, 40


def plan_of(**snapshots: int) -> Plan:
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
def test_blocks_take_half_of_the_room_at_most_and_what_is_left_keeps_graphs(room: int) -> None:
    plan = plan_of(room_mb=room)
    peak = plan.need.peak(plan.lengths)
    assert peak <= room * 10**6 // 2
    assert peak + plan.keep_bytes == room * 10**6


def test_where_half_of_the_room_is_too_little_the_least_that_will_do_is_taken_of_all_of_it() -> None:
    least = plan_of(room_mb=1)
    peak = least.need.peak(least.lengths)
    assert least.keep_bytes == 0
    room = peak // 10**6 + 2
    plan = plan_of(room_mb=room)
    assert plan.lengths == least.lengths
    assert plan.keep_bytes == room * 10**6 - peak


def test_blocks_that_were_asked_for_leave_what_they_leave() -> None:
    plan = plan_of(room_mb=200, blocks=5)
    assert len(plan.lengths) == 5
    assert plan.keep_bytes == 200 * 10**6 - plan.need.peak(plan.lengths)
