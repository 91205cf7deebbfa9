"""Temporal link prediction: ranking by memory before training, and live updates."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.dynamic import DynamicGraph, Protocol
from siafu.launch.local import run_threads
from siafu.methods.snapshots.build import build_predictor, build_task, build_timeline
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.links import TemporalLinkTask
from siafu.methods.snapshots.procedure import SnapshotsProcedure
from siafu.nn.config import ModelConfig
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.link.scores import rank_by_memory
from siafu.training.loop import Loop

NODES, STEPS, EVENTS = 14, 12, 150
pytestmark = pytest.mark.usefixtures("one_thread")


def graph_of(*, last: int | None = None) -> DynamicGraph:
    """Events at random; with ``last`` the sources of the last step are that node."""
    draw = torch.Generator().manual_seed(3)
    src, dst = torch.randint(NODES, (2, EVENTS), generator=draw)
    t = torch.arange(EVENTS) * STEPS // EVENTS
    if last is not None:
        src[t == STEPS - 1] = last
    return DynamicGraph.from_events(
        src, dst, t, steps=STEPS, num_nodes=NODES, undirected=True, protocol=Protocol(split=(0.6, 0.2, 0.2))
    )


def trainer_of(comm: Comm, graph: DynamicGraph, **link: Any) -> SnapshotsProcedure:
    config = SnapshotsConfig(edge_life=2, window=2)
    model, of_links = ModelConfig(kind="evolvegcn-h", hidden=4), LinkConfig(negatives=6, **link)
    line = build_timeline(graph, config, model)
    task = build_task(graph, TaskConfig("link", config, of_links, 5), comm)
    made = build_predictor(model, of_links, task="link", in_features=line.in_features, out_features=1)
    made.reset(torch.Generator().manual_seed(1))
    return SnapshotsProcedure(
        made, line, task, TrainConfig(lr=0.02), snapshots=config, seed=5, wire=CommConfig()
    )


def alone(graph: DynamicGraph, **link: Any) -> SnapshotsProcedure:
    (made,) = run_threads(lambda comm: trainer_of(comm, graph, **link), ranks=1, threads=1)
    return made


def test_an_untrained_head_ranks_as_its_memory_does() -> None:
    trainer = alone(graph_of(), recency=True)
    task = trainer.task
    assert isinstance(task, TemporalLinkTask)
    assert task.memory.pairs is not None
    counts = trainer.outputs().counts
    for row, sample in zip(counts, [*task.samples["val"], *task.samples["test"]], strict=True):
        code = task._edges(sample + 1).code
        by_memory = rank_by_memory(
            code // NODES, code % NODES, recency=task.memory.pairs.all_at(sample)
        ).scores()
        assert row[:2].tolist() == pytest.approx([by_memory.average_precision, by_memory.reciprocal_rank])


def test_the_best_weights_may_be_those_before_training() -> None:
    trainer = alone(graph_of(), recency=True)
    assert trainer.score_untrained
    loop = Loop(trainer, TrainConfig())
    loop.keep_best(0, 0.5, 1.0)
    loop.keep_best(1, 0.4, 0.5)
    assert (loop.state.best_epoch, loop.state.best_score) == (0, 0.5)


def test_live_scores_are_the_same_on_ranks_and_leave_the_weights() -> None:
    def rank(comm: Comm) -> tuple[torch.Tensor, bool]:
        trainer = trainer_of(comm, graph_of(), live=4)
        before = [each.detach().clone() for each in trainer.model.parameters()]
        counts = trainer.outputs().counts
        same = all(map(torch.equal, before, trainer.model.parameters()))
        return counts, same

    (one,), several = (run_threads(rank, ranks=ranks, threads=1) for ranks in (1, 2))
    assert one[1]
    assert all(same for _, same in several)
    torch.testing.assert_close(one[0], several[0][0], rtol=1e-4, atol=1e-5)


def test_live_updates_change_scores_and_read_no_later_links() -> None:
    still, live = (alone(graph_of(), live=steps).outputs().counts for steps in (0, 6))
    assert not torch.equal(still, live)
    other = alone(graph_of(last=2), live=6).outputs().counts
    assert torch.equal(live[:-1], other[:-1])
    assert not torch.equal(live[-1], other[-1])


def test_links_are_held_out_in_both_directions() -> None:
    task = alone(graph_of()).task
    assert isinstance(task, TemporalLinkTask)
    task = replace(task, seed=1)
    for step in range(STEPS):
        code = task._edges(step).code
        held, learned = (task.for_part(part)._edges_of_part(code) for part in ("held", "learned"))
        assert torch.equal(torch.cat([held, learned]).sort().values, code)
        turned = held % NODES * NODES + held // NODES
        assert torch.isin(turned, held).all()
