"""Temporal tasks on labels use the metric and the class weights of the config, or refuse them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import Comm, single_rank_comm
from siafu.dynamic import DynamicGraph, Protocol
from siafu.launch.local import run_threads
from siafu.methods.snapshots.build import build_predictor, build_task, build_timeline
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.labels import RowCollector, TemporalEdgeTask, TemporalNodeTask
from siafu.methods.snapshots.procedure import SnapshotsProcedure
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.link import LinkHead
from siafu.training import metrics
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.procedure import train_epoch

STEPS, NODES = 5, 4
LABELS = torch.tensor([[0, 0, 0, 1], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]])


def graph_of(y: Tensor | None = LABELS) -> DynamicGraph:
    """An event a node and step, to the next node, whose class is the node's label."""
    src = torch.arange(NODES).repeat(STEPS)
    return DynamicGraph.from_events(
        src,
        (src + 1) % NODES,
        torch.arange(STEPS).repeat_interleave(NODES),
        y=y,
        edge_y=LABELS.reshape(-1),
        num_nodes=NODES,
        protocol=Protocol(split=(0.6, 0.2, 0.2)),
    )


def config_of(task: str, **how: Any) -> TaskConfig:
    return TaskConfig(
        task, SnapshotsConfig(edge_life=1, window=0), LinkConfig(evaluation=2), 0, TrainConfig(**how)
    )


def test_rare_classes_weigh_more_in_the_loss_of_nodes() -> None:
    task = build_task(graph_of(), config_of("node", class_weights="balanced"), single_rank_comm())
    plain = build_task(graph_of(), config_of("node"), single_rank_comm())
    assert isinstance(task, TemporalNodeTask)
    train = [LABELS[step][LABELS[step] >= 0] for step in task.samples["train"]]
    count = torch.bincount(torch.cat(train), minlength=2).float()
    assert task.class_weight is not None
    assert task.class_weight.tolist() == pytest.approx((count.sum() / (2 * count)).tolist())
    head = Dense(3, 2)
    head.reset(torch.Generator().manual_seed(0))
    h = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(1))
    out, y = h @ head.weight + head.bias, LABELS[0]
    loss = torch.nn.functional.cross_entropy(out, y, weight=task.class_weight)
    torch.testing.assert_close(task.sample_loss(head, 0, h, epoch=1), loss)
    torch.testing.assert_close(
        plain.sample_loss(head, 0, h, epoch=1), torch.nn.functional.cross_entropy(out, y)
    )


def test_static_labels_are_weighed_too() -> None:
    y = torch.tensor([0, 0, 0, 1, 0, 0, 0, 1, 0, 0])
    graph = DynamicGraph.from_events([0, 1, 2], [1, 2, 3], [0, 1, 2], y=y, num_nodes=10)
    task = build_task(graph, config_of("node", class_weights="balanced"), single_rank_comm())
    assert isinstance(task, TemporalNodeTask)
    assert task.rows is not None
    assert task.class_weight is not None
    count = torch.bincount(y[task.rows["train"]], minlength=2).float()
    assert task.class_weight.tolist() == pytest.approx((6 / (2 * count.clamp(min=1))).tolist())


def test_rare_classes_weigh_more_in_the_loss_of_events() -> None:
    task = build_task(graph_of(), config_of("edge", class_weights="balanced"), single_rank_comm())
    assert isinstance(task, TemporalEdgeTask)
    assert task.class_weight is not None
    head = LinkHead(3, 4, classes=2)
    head.reset(torch.Generator().manual_seed(0))
    h, src = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(1)), torch.arange(NODES)
    wanted_loss = torch.nn.functional.cross_entropy(
        head(h, src, (src + 1) % NODES), LABELS[0], weight=task.class_weight
    )
    torch.testing.assert_close(task.sample_loss(head, 0, h, epoch=1), wanted_loss)


def test_class_weights_are_the_same_on_all_ranks() -> None:
    def rank(comm: Comm) -> Tensor:
        y = (
            LABELS if comm.rank == 0 else torch.zeros_like(LABELS)
        )  # labels that a rank does not hold read as 0
        task = build_task(graph_of(y), config_of("node", class_weights="balanced"), comm)
        assert isinstance(task, TemporalNodeTask)
        assert task.class_weight is not None
        return task.class_weight

    one, other = run_threads(rank, ranks=2, threads=1)
    assert torch.equal(one, other)
    assert one[1] > one[0]


@pytest.mark.parametrize(
    ("task", "metric"), [("node", "macro_f1"), ("edge", "accuracy"), ("edge", "macro_f1"), ("link", "mrr")]
)
def test_the_metric_that_a_run_asks_for_selects_the_weights(task: str, metric: Any) -> None:
    found = build_task(graph_of(), config_of(task, metric=metric), single_rank_comm())
    assert found.metric == metric
    assert metric in found.scores_from_counts(torch.zeros(1, found.num_counts + 1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("task", "how", "match"),
    [
        (
            "node",
            {"metric": "mae"},
            "task node over time: train.metric is mae, .*expected one of accuracy, balanced_accuracy",
        ),
        ("edge", {"metric": "map"}, "train.metric is map, .*expected one of micro_f1"),
        ("link", {"metric": "accuracy"}, "train.metric is accuracy, .*expected one of map, mrr"),
        ("link", {"class_weights": "balanced"}, "with task link leave it at none"),
    ],
)
def test_metrics_and_weights_that_do_not_fit_are_refused(task: str, how: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        build_task(graph_of(), config_of(task, **how), single_rank_comm())


def test_numbers_have_no_classes_to_weigh() -> None:
    with pytest.raises(ValueError, match="labels are numbers, not classes; set it to none"):
        build_task(graph_of(LABELS.float()), config_of("node", class_weights="balanced"), single_rank_comm())


def rare_graph(*, static: bool = False) -> DynamicGraph:
    """300 events over 15 steps, and labels of nodes, with 8 % of the second class."""
    draw = torch.Generator().manual_seed(3)
    nodes, steps, events = 100, 15, 300
    edge_y = torch.arange(events) % 13 == 0
    y = torch.arange(nodes) % 13 == 0 if static else (torch.arange(steps * nodes) % 13 == 0).view(steps, -1)
    return DynamicGraph.from_events(
        torch.randint(nodes, (events,), generator=draw),
        torch.randint(nodes, (events,), generator=draw),
        torch.arange(steps).repeat_interleave(events // steps),
        y=y.long(),
        edge_y=edge_y.long(),
        num_nodes=nodes,
        protocol=Protocol(split=(0.6, 0.2, 0.2)),
    )


def trainer_of(graph: DynamicGraph, task: str, comm: Comm, **train: Any) -> SnapshotsProcedure:
    snapshots, settings = SnapshotsConfig(edge_life=2, window=0), TrainConfig(**train)
    built = build_task(graph, TaskConfig(task, snapshots, LinkConfig(), 0, settings), comm)
    model = ModelConfig(kind="mingru", hidden=4, layers=2)
    line = build_timeline(graph, snapshots, model)
    made = build_predictor(
        model, LinkConfig(), task=task, in_features=line.in_features, out_features=built.num_outputs
    )
    made.reset(torch.Generator().manual_seed(1))
    return SnapshotsProcedure(made, line, built, settings, snapshots=snapshots, seed=0)


def trained(graph: DynamicGraph, task: str, ranks: int, **train: Any) -> list[dict[str, Any]]:
    """The losses, scores and further results of each rank after two epochs."""

    def rank(comm: Comm) -> dict[str, Any]:
        trainer = trainer_of(graph, task, comm, lr=0.05, **train)
        built = trainer.task
        losses = [train_epoch(trainer, epoch) for epoch in (1, 2)]
        chosen, results = trainer.evaluate(2).scores["val"], trainer.outputs()
        found, curves = built.final_results(results, results)
        return {
            "task": built,
            "losses": losses,
            "chosen": chosen,
            "scores": {split: built.scores(results, split) for split in ("val", "test")},
            "metrics": {key: value for key, value in found.items() if isinstance(value, float)},
            "curves": curves,
            "samples": built.scores_by_sample(results)["score"],
            "rows": results.rows,
        }

    return run_threads(rank, ranks=ranks, threads=1)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("task", ["node", "edge"])
def test_scores_of_rare_classes_are_those_of_all_rows_on_any_ranks(task: str, static: bool) -> None:
    settings: dict[str, Any] = {"loss": "focal", "class_weights": [1, 9], "at_k": 10}
    (alone,) = trained(rare_graph(static=static), task, 1, **settings)
    assert (alone["task"].metric, alone["task"].rule) == ("average_precision", "f1")
    out, y, _ = alone["rows"]["test"]
    score = out[:, 1] - out[:, 0]
    found = alone["scores"]["test"]
    assert found["average_precision"] == metrics.average_precision(score, y == 1)
    assert found["precision_at_k"] == metrics.precision_and_recall_at(score, y == 1, top=10)[0]
    assert found["brier"] == pytest.approx(float((out.softmax(1)[:, 1] - y).square().mean()), rel=1e-4)
    assert found["accuracy"] == pytest.approx(float((out.argmax(1) == y).double().mean()))
    assert alone["chosen"] == alone["scores"]["val"]["average_precision"]
    assert 0 <= alone["metrics"]["threshold"] < 1
    assert set(alone["curves"]) == {"positive_class", "calibration", "pr", "roc", "threshold", "confusion"}
    for several in trained(rare_graph(static=static), task, 2, **settings):
        assert several["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert several["chosen"] == pytest.approx(alone["chosen"], rel=1e-4)
        assert several["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)
        assert several["samples"] == pytest.approx(alone["samples"], rel=1e-4)


@pytest.mark.parametrize("task", ["node", "edge"])
def test_only_ranked_metrics_collect_rows_after_an_epoch(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("collected rows that the chosen metric does not need")

    procedure = trainer_of(rare_graph(), task, single_rank_comm(), metric="macro_f1")
    monkeypatch.setattr(RowCollector, "add", fail)
    procedure.evaluate(1)


@pytest.mark.parametrize("task", ["node", "edge"])
def test_the_focal_loss_and_weights_by_hand_are_those_of_their_definition(task: str) -> None:
    built = build_task(graph_of(), config_of(task, loss="focal", class_weights={"1": 4}), single_rank_comm())
    h = torch.randn(NODES, 3, generator=torch.Generator().manual_seed(1))
    head: Dense | LinkHead = Dense(3, 2) if task == "node" else LinkHead(3, 4, classes=2)
    head.reset(torch.Generator().manual_seed(0))
    src = torch.arange(NODES)
    out = h @ head.weight + head.bias if isinstance(head, Dense) else head(h, src, (src + 1) % NODES)
    y, weight = LABELS[0], torch.tensor([1.0, 4.0])
    p = out.softmax(1)[src, y]
    wanted = (-((1 - p) ** 2) * p.log() * weight[y]).sum() / weight[y].sum()
    torch.testing.assert_close(built.sample_loss(head, 0, h, epoch=1), wanted)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"loss": "focal"}, "train.loss is for classes of nodes or events; with task link leave it at cross"),
        ({"positive_class": 1}, "train.positive_class is for classes .* with task link leave it out"),
        ({"threshold": 0.3}, "train.threshold is for two classes .* with task link leave it at auto"),
        ({"class_weights": [1, 2]}, "train.class_weights is for classes .* with task link leave it at none"),
    ],
)
def test_links_have_no_settings_of_classes(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_task(graph_of(), config_of("link", **how), single_rank_comm())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"loss": "focal"}, "train.loss is focal, but the labels are numbers"),
        ({"class_weights": [1.0]}, "train.class_weights is given, but the labels are numbers"),
        ({"threshold": "f1"}, "train.threshold is f1, but .* are numbers"),
        ({"positive_class": 0}, "train.positive_class is 0, but the labels are numbers"),
        ({"metric": "f1"}, "task node over time: train.metric is f1, .*expected one of mae"),
    ],
)
def test_numbers_have_no_settings_of_classes(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_task(graph_of(LABELS.float()), config_of("node", **how), single_rank_comm())
