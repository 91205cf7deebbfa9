"""Temporal tasks on labels use the metric and the class weights of the config, or refuse them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import Comm, single_rank_comm
from siafu.dynamic import DynamicGraph, Protocol
from siafu.launch.local import run_threads
from siafu.methods.snapshots.build import build_task
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.labels import TemporalEdgeTask, TemporalNodeTask
from siafu.nn.dense import Dense
from siafu.nn.link import LinkHead
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig

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
