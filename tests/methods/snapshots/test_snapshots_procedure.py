"""Training on snapshots: several ranks and segments give the losses, gradients and weights of one."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.dynamic import DynamicGraph, Protocol
from siafu.launch.local import run_threads
from siafu.methods.snapshots import activity, transpose
from siafu.methods.snapshots.build import build_predictor, build_task, build_timeline
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.distributed_comm import DistributedTemporalComm
from siafu.methods.snapshots.procedure import SnapshotsProcedure
from siafu.nn.config import TEMPORAL, ModelConfig
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.procedure import train_epoch

NODES, STEPS, EVENTS = 11, 12, 90
pytestmark = pytest.mark.usefixtures("one_thread")


def graph_of(*, undirected: bool = True, by_step: bool = False) -> DynamicGraph:
    """Events at random, none of them in step 4."""
    draw = torch.Generator().manual_seed(3)
    src, dst = torch.randint(NODES - 1, (2, EVENTS), generator=draw)
    t = torch.randint(STEPS, (EVENTS,), generator=draw)
    t = torch.where(t == 4, 5, t)
    shape = (STEPS, NODES, 3) if by_step else (NODES, 3)
    made = DynamicGraph.from_events(
        src,
        dst,
        t,
        steps=STEPS,
        num_nodes=NODES,
        undirected=undirected,
        x=torch.randn(shape, generator=draw),
        y=torch.randint(-1, 3, (STEPS, NODES), generator=draw),
        edge_y=torch.randint(3, (EVENTS,), generator=draw),
        protocol=Protocol(split=(0.6, 0.2, 0.2)),
    )
    assert made.x is not None
    return replace(made, x=made.x.double())


def trainer_of(
    comm: Comm, graph: DynamicGraph, *, kind: str, task: str = "link", **snapshots: Any
) -> SnapshotsProcedure:
    config = SnapshotsConfig(**({"edge_life": 3, "window": 0} | snapshots))
    model = ModelConfig(kind=kind, hidden=4, layers=2, band=3)
    link = LinkConfig(negatives=3, recency=task == "link")
    line = build_timeline(graph, config, model)
    built = build_task(graph, TaskConfig(task, config, link, 5), comm)
    made = build_predictor(
        model, link, task=task, in_features=line.in_features, out_features=built.num_outputs
    )
    made.reset(torch.Generator().manual_seed(1))
    made = made if graph.x is None else made.to(graph.x.dtype)
    return SnapshotsProcedure(
        made, line, built, TrainConfig(lr=0.05), snapshots=config, seed=5, wire=CommConfig()
    )


def after(
    graph: DynamicGraph, *, ranks: int, epochs: int = 2, **asked: Any
) -> tuple[list[float], Tensor, Tensor]:
    """LossEvaluator of some epochs, weights after them, and the counts of all samples."""

    def rank(comm: Comm) -> tuple[list[float], Tensor, Tensor]:
        trainer = trainer_of(comm, graph, **asked)
        losses = [train_epoch(trainer, epoch + 1) for epoch in range(epochs)]
        weights = torch.cat([each.detach().reshape(-1) for each in trainer.model.parameters()])
        return losses, weights, trainer.outputs().counts

    found = run_threads(rank, ranks=ranks, threads=1)
    assert all(torch.equal(found[0][1], each[1]) for each in found)
    return found[0]


def agree(one: Any, other: Any) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-10)
    assert torch.allclose(one[1], other[1], rtol=1e-9, atol=1e-11)
    assert torch.allclose(one[2], other[2], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", TEMPORAL)
@pytest.mark.parametrize(("ranks", "blocks"), [(1, 3), (2, 1), (2, 3), (3, 2)])
def test_ranks_and_segments_change_nothing(kind: str, ranks: int, blocks: int) -> None:
    graph = graph_of(by_step=kind in ("tm-gcn", "cd-gcn"))
    agree(after(graph, ranks=1, kind=kind), after(graph, ranks=ranks, kind=kind, blocks=blocks))


@pytest.mark.parametrize("kind", ["cd-gcn", "gcn-gru"])
@pytest.mark.parametrize(("ranks", "blocks"), [(2, 1), (3, 2)])
def test_transposing_in_chunks_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: str, ranks: int, blocks: int
) -> None:
    graph = graph_of(by_step=blocks == 1)
    one, two = (after(graph, ranks=number, kind=kind, blocks=blocks) for number in (1, ranks))
    monkeypatch.setattr(transpose, "_MIN_ROWS", 1)
    several = after(graph, ranks=ranks, kind=kind, blocks=blocks)
    agree(one, several)
    agree(two, several)


@pytest.mark.parametrize("scored", [False, True], ids=["not-scored", "scored"])
@pytest.mark.parametrize(("ranks", "blocks"), [(1, 3), (2, 3), (3, 2)])
def test_the_compiled_recurrence_that_overwrites_buffers_gives_the_same(
    monkeypatch: pytest.MonkeyPatch, ranks: int, blocks: int, scored: bool
) -> None:
    """The kernel exists in single precision alone."""
    monkeypatch.setattr(transpose, "_MIN_ROWS", 1)
    graph = graph_of(by_step=True)
    assert graph.x is not None

    def gradients(comm: Comm, graph: DynamicGraph, *, blocks: int, scored: bool) -> Tensor:
        trainer = trainer_of(comm, graph, kind="cd-gcn", task="node", blocks=blocks)
        if scored:
            trainer.evaluate(0)
        trainer.optimizer.zero_grad()
        trainer.optimizer.add_gradients(trainer._train_samples(list(trainer.task.samples["train"]), 1))
        found = [each.grad for each in trainer.model.parameters()]
        return torch.cat([each.reshape(-1).double() for each in found if each is not None])

    wide = partial(gradients, graph=graph, blocks=1, scored=False)
    (expected,) = run_threads(wide, ranks=1, threads=1)
    single = partial(gradients, graph=replace(graph, x=graph.x.float()), blocks=blocks, scored=scored)
    for found in run_threads(single, ranks=ranks, threads=1):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", TEMPORAL)
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_epoch_after_a_score_recomputes_no_segment_and_trains_the_same(
    monkeypatch: pytest.MonkeyPatch, kind: str, ranks: int
) -> None:
    graph = graph_of(by_step=kind == "cd-gcn")
    begun: list[str] = []
    begin = DistributedTemporalComm.begin_segment

    def recorded(temporal_comm: DistributedTemporalComm, segment: int, mode: Any) -> None:
        begun.append(mode)
        begin(temporal_comm, segment, mode)

    monkeypatch.setattr(DistributedTemporalComm, "begin_segment", recorded)

    def learned(comm: Comm, *, scored: bool) -> list[Tensor]:
        trainer = trainer_of(comm, graph, kind=kind, blocks=3)
        for epoch in (1, 2):
            if scored:
                trainer.evaluate(epoch - 1)
            train_epoch(trainer, epoch)
        return list(trainer.model.parameters())

    runs = []
    for scored in (False, True):
        begun.clear()
        runs.append(run_threads(partial(learned, scored=scored), ranks=ranks, threads=1)[0])
        assert begun.count("recompute") == begun.count("forward") == (0 if scored else 2 * 2 * ranks)
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


def test_cached_states_of_other_weights_are_not_used() -> None:
    graph = graph_of()

    def learned(comm: Comm) -> list[Tensor]:
        trainer = trainer_of(comm, graph, kind="cd-gcn", blocks=3)
        other = {name: value + 0.1 for name, value in trainer.model.state_dict().items()}
        trainer.evaluate(0)
        trainer.model.load_state_dict(other)
        train_epoch(trainer, 1)
        found = list(trainer.model.parameters())
        trainer = trainer_of(comm, graph, kind="cd-gcn", blocks=3)
        trainer.model.load_state_dict(other)
        train_epoch(trainer, 1)
        assert all(torch.equal(*pair) for pair in zip(found, trainer.model.parameters(), strict=True))
        return found

    run_threads(learned, ranks=1, threads=1)


@pytest.mark.parametrize("kind", ["evolvegcn-o", "evolvegcn-h", "cd-gcn", "tm-gcn", "mingru"])
def test_samples_with_a_window_are_the_same_on_ranks(kind: str) -> None:
    graph, asked = graph_of(undirected=False), {"kind": kind, "window": 3, "batch": 2}
    agree(after(graph, ranks=1, **asked), after(graph, ranks=2, **asked))


@pytest.mark.parametrize("task", ["edge", "node"])
def test_other_tasks_are_the_same_on_ranks(task: str) -> None:
    asked = {"kind": "gcn-gru", "task": task}
    agree(after(graph_of(), ranks=1, **asked), after(graph_of(), ranks=2, blocks=2, **asked))


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize(("kind", "window"), [("cd-gcn", 0), ("gcn-gru", 0), ("cd-gcn", 3)])
def test_degree_inputs_are_sent_once_by_the_owner_of_a_step(kind: str, window: int, undirected: bool) -> None:
    graph = replace(graph_of(undirected=undirected), x=None)
    asked = {"kind": kind, "window": window}
    one, two = (after(graph, ranks=ranks, **asked) for ranks in (1, 2))
    assert one[0] == pytest.approx(two[0], rel=1e-5)  # degrees are in single precision
    assert torch.allclose(one[2][:, -1], two[2][:, -1], rtol=1e-4)

    def bytes_sent(comm: Comm) -> int:
        trainer = trainer_of(comm, graph, **asked)
        counts = []
        for epoch in (1, 2):
            train_epoch(trainer, epoch)
            trainer.outputs()
            counts.append(comm.meter.sent["marks"])
        assert counts[0] == counts[1]
        return counts[0]

    sent, messages = sum(run_threads(bytes_sent, ranks=2, threads=1)), 2 * STEPS
    assert (STEPS - 1) * NODES / 2 <= sent <= STEPS * NODES + 200 * messages


def test_negatives_do_not_depend_on_the_order_of_events_within_a_step() -> None:
    graph = graph_of()
    turned = torch.cat([torch.arange(*graph.step_ptr[t : t + 2].tolist()).flip(0) for t in range(STEPS)])
    other = replace(graph, src=graph.dst[turned], dst=graph.src[turned])
    one, two = (after(each, ranks=1, kind="evolvegcn-o") for each in (graph, other))
    assert one[0] == two[0]
    assert torch.equal(one[1], two[1])


@pytest.mark.parametrize("kind", ["evolvegcn-o", "gcn-gru"])
def test_a_window_may_be_cut_into_segments(kind: str) -> None:
    asked = {"kind": kind, "window": 3}
    agree(after(graph_of(), ranks=1, blocks=1, **asked), after(graph_of(), ranks=1, blocks=2, **asked))


@pytest.mark.parametrize("kind", ["cd-gcn", "evolvegcn-h", "mingru"])
def test_fewer_steps_may_be_scored_than_there_are_ranks(kind: str) -> None:
    graph = replace(graph_of(), protocol=Protocol(split=(0.75, 0.15, 0.1)))

    def counts(comm: Comm) -> Tensor:
        trainer = trainer_of(comm, graph, kind=kind)
        assert trainer.task.count == {"train": 8, "val": 1, "test": 2}
        return trainer._evaluate_splits(["val"]).counts

    (alone,), several = (run_threads(counts, ranks=ranks, threads=1) for ranks in (1, 4))
    assert torch.allclose(alone, several[0], rtol=1e-6)


@pytest.mark.parametrize("mostly_active", [False, True])
def test_rows_of_inactive_nodes_are_not_sent_where_they_are_many(
    mostly_active: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_MIN_INACTIVE", 0.9 if mostly_active else 0.1)

    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, graph_of(), kind="cd-gcn", task="node", edge_life=1)
        train_epoch(trainer, 1)
        (cut,) = trainer._plan.segments(0, trainer.task.samples["train"].stop)
        active = trainer.timeline.active(range(cut.stop))
        assert 0.1 < int((~active).sum()) / active.numel() < 0.9
        active = active | mostly_active
        mine = torch.zeros(NODES, dtype=torch.bool)
        mine[cut.nodes_of(comm.rank)] = True
        own = torch.zeros(cut.stop, 1, dtype=torch.bool)
        own[list(cut.steps_of(comm.rank))] = True
        # To the owners of nodes, and back to the owners of steps: two layers, and the head reads all rows.
        there, back = own & ~mine, ~own & mine
        rows = 2 * int((active & there).sum()) + int((active & back).sum()) + int(back.sum())
        width, messages = 4 * 8, 4
        assert 0 < comm.meter.sent["rows"] - rows * width <= messages * 100

    run_threads(rank, ranks=2, threads=1)


@pytest.mark.parametrize("kind", ["cd-gcn", "gcn-gru"])
def test_sending_all_rows_where_few_are_inactive_changes_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_MIN_INACTIVE", 0.9)
    agree(*(after(graph_of(), ranks=ranks, kind=kind, blocks=2) for ranks in (1, 2)))


def test_memory_of_segments_and_scores_of_samples_are_reported() -> None:
    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, graph_of(), kind="gcn-gru", task="node", blocks=3)
        train_epoch(trainer, 1)
        memory = trainer._segment_memory()
        assert sum(memory["steps"]) == trainer.task.samples["train"].stop
        assert len(memory["planned_bytes"]) == len(memory["rss_bytes"]) == len(memory["steps"]) == 3
        assert min(memory["rss_bytes"]) > 0
        scores_by_sample = trainer.task.scores_by_sample(trainer.outputs())
        assert scores_by_sample["step"] == [*trainer.task.samples["val"], *trainer.task.samples["test"]]
        assert (
            len(scores_by_sample["score"]) == len(scores_by_sample["split"]) == len(scores_by_sample["step"])
        )

    run_threads(rank, ranks=1, threads=1)
