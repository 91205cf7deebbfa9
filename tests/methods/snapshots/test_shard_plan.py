"""Ranks that hold only their shard of a dynamic graph end with the same bits as ranks that hold all of it."""

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph, Protocol
from siafu.launch.local import run_threads
from siafu.methods.snapshots.build import build_predictor, build_task, build_timeline
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.procedure import SnapshotsProcedure
from siafu.methods.snapshots.shard_plan import plan_shards
from siafu.nn.config import TEMPORAL, ModelConfig
from siafu.partition.distribute_log import distribute_log
from siafu.store import write_dynamic
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.procedure import train_epoch

NODES, STEPS, EVENTS, RANKS = 11, 20, 180, 2
Found = tuple[list[float], Tensor, Tensor]
pytestmark = pytest.mark.usefixtures("one_thread")


def graph_of(features: str, *, undirected: bool = True) -> DynamicGraph:
    draw = torch.Generator().manual_seed(3)
    src, dst = torch.randint(NODES - 1, (2, EVENTS), generator=draw)
    shapes = {"none": None, "static": (NODES, 3), "by step": (STEPS, NODES, 3)}
    shape = shapes[features]
    return DynamicGraph.from_events(
        src,
        dst,
        torch.randint(STEPS, (EVENTS,), generator=draw),
        steps=STEPS,
        num_nodes=NODES,
        undirected=undirected,
        x=None if shape is None else torch.randn(shape, generator=draw),
        y=torch.randint(-1, 3, (STEPS, NODES), generator=draw),
        edge_y=torch.randint(3, (EVENTS,), generator=draw),
        weight=torch.rand(EVENTS, generator=draw),
        protocol=Protocol(split=(0.6, 0.2, 0.2)),
    )


def settings_of(
    kind: str, task: str, link: dict[str, Any], snapshots: dict[str, Any]
) -> tuple[ModelConfig, TaskConfig]:
    config = SnapshotsConfig(**({"edge_life": 3, "window": 0} | snapshots))
    return ModelConfig(kind=kind, hidden=4, layers=2, band=3), TaskConfig(
        task, config, LinkConfig(**({"negatives": 3} | link)), 5
    )


def trained(comm: Comm, graph: DynamicGraph, model: ModelConfig, target: TaskConfig) -> Found:
    """The loss of an epoch, the weights after it, and the counts of all samples."""
    line, task = build_timeline(graph, target.snapshots, model), build_task(graph, target, comm)
    how: dict[str, Any] = {"task": target.task, "in_features": line.in_features}
    made = build_predictor(model, target.link, out_features=task.num_outputs, **how)
    made.reset(torch.Generator().manual_seed(1))
    trainer = SnapshotsProcedure(made, line, task, TrainConfig(lr=0.05), snapshots=target.snapshots, seed=5)
    losses = [train_epoch(trainer, 1)]
    weights = torch.cat([each.detach().reshape(-1) for each in made.parameters()])
    trainer._evaluate_splits(["val"])
    return losses, weights, trainer.outputs().counts


def held(
    graph: DynamicGraph, folder: Path, model: ModelConfig, target: TaskConfig
) -> tuple[list[DynamicGraph], list[Found]]:
    """The shard of each rank, sent to all but the first, and what training on it gives."""
    write_dynamic(graph, folder / "store")
    shares = partial(plan_shards, model=model, target=target, ranks=RANKS)

    def rank(comm: Comm) -> tuple[DynamicGraph, Found]:
        mine = distribute_log(comm, folder / ("elsewhere" if comm.rank else "store"), shares)
        return mine, trained(comm, mine, model, target)

    graphs, found = zip(*run_threads(rank, ranks=RANKS, threads=1, deadline_s=60), strict=True)
    return list(graphs), list(found)


def check_same(
    graph: DynamicGraph, folder: Path, model: ModelConfig, target: TaskConfig
) -> list[DynamicGraph]:
    whole = run_threads(lambda comm: trained(comm, graph, model, target), ranks=RANKS, threads=1)
    graphs, found = held(graph, folder, model, target)
    for one, other in zip(whole, found, strict=True):
        assert one[0] == other[0]
        assert torch.equal(one[1], other[1])
        assert torch.equal(one[2], other[2])
    return graphs


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.mark.parametrize("kind", TEMPORAL)
@pytest.mark.parametrize("features", ["none", "by step"])
def test_every_model_ends_with_the_same_bits(tmp_path: Path, kind: str, features: str) -> None:
    graph = graph_of(features)
    graphs = check_same(graph, tmp_path, *settings_of(kind, "link", {}, {}))
    assert graphs[0].whole_ptr is None
    assert all(each.num_events < 0.8 * graph.num_events for each in graphs[1:])


@pytest.mark.parametrize(
    ("kind", "task", "link", "snapshots"),
    [
        ("gcn-gru", "link", {"recency": True}, {}),
        ("mingru", "link", {"sampling": "uniform"}, {"edge_life": 1}),
        ("gcn-gru", "link", {"evaluation": 4}, {"blocks": 2}),
        ("evolvegcn-h", "link", {"live": 1}, {}),
        ("evolvegcn-o", "link", {}, {"window": 4, "batch": 2}),
        ("cd-gcn", "link", {"live": 1, "recency": True}, {"window": 4}),
        ("gcn-gru", "edge", {}, {}),
        ("tm-gcn", "node", {}, {"weighted": True}),
    ],
)
def test_every_task_ends_with_the_same_bits(
    tmp_path: Path, kind: str, task: str, link: dict[str, Any], snapshots: dict[str, Any]
) -> None:
    graph = graph_of("static", undirected=task != "node")
    check_same(graph, tmp_path, *settings_of(kind, task, link, snapshots))


def test_static_labels_are_learned_from_a_shard(tmp_path: Path) -> None:
    graph = replace(graph_of("none"), y=torch.arange(NODES) % 3)
    check_same(graph, tmp_path, *settings_of("cd-gcn", "node", {}, {"edge_life": 4}))
