"""The task that labels pose: kinds, losses, scores, and labels that pose none."""

from dataclasses import replace
from math import log

import pytest
import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.training import metrics
from siafu.training.config import TrainConfig
from siafu.training.task import task_of

NAN = float("nan")
SPLIT = {"train_mask": [1, 1, 1, 0, 0], "val_mask": [0, 0, 0, 1, 0], "test_mask": [0, 0, 0, 0, 1]}


def graph_of(y: object, **changes: object) -> Graph:
    """Five nodes on a path, three of which train, one validates and one tests."""
    made = Graph.from_edges(
        [[0, 1, 2, 3], [1, 2, 3, 4]], x=torch.eye(5), y=y, **(SPLIT | changes), name="five"
    )
    assert made.y is not None
    return made


def bad(y: Tensor) -> Graph:
    """The same with labels that nobody has checked."""
    return replace(graph_of([0, 1, 1, 0, 1]), y=y)


def config(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate(settings)


def test_integers_are_one_class_a_node_and_minus_one_is_left_out() -> None:
    task = task_of(graph_of([0, -1, 2, 1, -1]), config())
    assert (task.kind, task.num_outputs, task.metric) == ("class", 3, "accuracy")
    assert task.rows["train"].tolist() == [0, 2]
    assert task.rows["test"].tolist() == []
    assert task.scores(torch.zeros(5, 3), "test") == dict.fromkeys(
        [
            *("accuracy", "balanced_accuracy", "macro_f1", "micro_f1"),
            *("roc_auc", "average_precision", "brier", "calibration_error"),
        ]
    )


def test_the_loss_of_a_split_reads_its_labelled_rows_alone() -> None:
    task = task_of(graph_of([0, -1, 1, 1, -1]), config())
    out = torch.full((5, 2), NAN)
    out[[0, 2]] = 0.0
    assert float(task.loss(out)) == pytest.approx(log(2))
    assert task.score(out, "train") == 0.5


def test_two_classes_are_the_least() -> None:
    assert task_of(graph_of([0, 0, 0, 0, 0]), config()).num_outputs == 2


def test_columns_of_zero_and_one_are_many_labels() -> None:
    task = task_of(graph_of([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0]]), config())
    assert (task.kind, task.num_outputs, task.metric) == ("labels", 2, "micro_f1")
    out = torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    assert task.score(out, "train") == 1.0
    assert task.score(out, "test") == 0.0
    assert float(task.loss(torch.zeros(5, 2))) == pytest.approx(2 * log(2)), "a label adds to the loss"


@pytest.mark.parametrize("targets", [1, 3])
def test_numbers_are_targets_and_nan_is_none(targets: int) -> None:
    y = torch.arange(5.0)[:, None].repeat(1, targets)
    y[1] = NAN
    task = task_of(graph_of(y[:, 0] if targets == 1 else y), config())
    assert (task.kind, task.num_outputs, task.metric) == ("regression", targets, "mae")
    assert not task.higher_is_better
    assert task.rows["train"].tolist() == [0, 2]
    assert float(task.loss(torch.zeros(5, targets))) == pytest.approx((0 + 4) / 2)
    assert task.score(torch.zeros(5, targets), "train") == pytest.approx((0 + 2) / 2)
    assert task.score(torch.zeros(5, targets), "test") == 4.0


def test_a_node_with_some_of_its_targets_trains_on_those() -> None:
    task = task_of(graph_of([[1.0, NAN], [NAN, NAN], [3.0, 5.0], [0.0, 0.0], [0.0, 0.0]]), config())
    assert task.rows["train"].tolist() == [0, 2]
    out = torch.zeros(5, 2, requires_grad=True)
    task.loss(out).backward()
    assert out.grad is not None
    assert out.grad[0].tolist() == [pytest.approx(-2 / 3), 0.0]
    assert task.score(out.detach(), "train") == pytest.approx((1 + 3 + 5) / 3)


def test_balanced_weights_make_rare_classes_count_as_much_as_frequent_ones() -> None:
    task = task_of(graph_of([0, 0, 1, 1, 1]), config(class_weights="balanced"))
    assert task.class_weight is not None
    assert task.class_weight.tolist() == [
        pytest.approx(3 / 4),
        pytest.approx(3 / 2),
    ]  # 3 nodes, 2 and 1 of them
    out = torch.zeros(5, 2)
    out[2, 1] = 100.0  # the rare class is right, so half of the weight has no loss
    assert float(task.loss(out)) == pytest.approx(log(2) / 2)


def test_balanced_weights_of_many_labels_weigh_the_positive_ones() -> None:
    y = [[1, 0], [0, 1], [0, 1], [0, 0], [0, 0]]
    task = task_of(graph_of(y), config(class_weights="balanced"))
    assert task.class_weight is not None
    assert task.class_weight.tolist() == [2.0, 0.5]


def test_balanced_weights_of_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"train\.class_weights is balanced, but the labels are numbers"):
        task_of(graph_of([0.5, 1.0, 2.0, 3.0, 4.0]), config(class_weights="balanced"))


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "micro_f1", "roc_auc"])
def test_the_metric_asked_for_is_the_score(metric: str) -> None:
    task = task_of(graph_of([0, 1, 1, 0, 1]), config(metric=metric))
    out = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert task.score(out, "train") == task.scores(out, "train")[metric]


@pytest.mark.parametrize(
    ("y", "metric"),
    [
        ([0, 1, 1, 0, 1], "accuracy"),
        ([0, 1, 1, 0, 1], "macro_f1"),
        ([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0]], "micro_f1"),
    ],
)
def test_an_epoch_computes_no_area_under_the_curve_unless_that_is_the_metric(
    monkeypatch: pytest.MonkeyPatch, y: object, metric: str
) -> None:
    task, out = task_of(graph_of(y), config(metric=metric)), torch.eye(5)[:, :2]
    before = {split: task.scores(out, split)[metric] for split in ("train", "val", "test")}
    monkeypatch.setattr(metrics, "roc_auc", lambda *_: pytest.fail("computed an area that nobody asked for"))
    assert task.evaluate(out)[0] == before
    assert task.score(out, "val") == before["val"]


def test_an_epoch_computes_the_area_where_it_is_the_metric() -> None:
    task = task_of(graph_of([0, 1, 1, 0, 1]), config(metric="roc_auc"))
    out = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert task.evaluate(out)[0] == {"train": 0.5, "val": None, "test": None}


def test_a_metric_that_does_not_fit_the_labels_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"train\.metric is mae, .* expected one of accuracy, balanced_accuracy"
    ):
        task_of(graph_of([0, 1, 1, 0, 1]), config(metric="mae"))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (replace(graph_of([0, 1, 1, 0, 1]), y=None), "five: no labels to train on; give y .* or --labels"),
        (graph_of([0, 1, 1, 0, 1], train_mask=None), "five: no training node has a label; .* or --split"),
        (graph_of([-1, -1, -1, 0, 1]), "five: no training node has a label"),
        (graph_of([NAN, NAN, NAN, 1.0, 1.0]), "five: no training node has a label"),
        (
            bad(torch.tensor([0, 1, 10**12, 0, 1])),
            r"five: y\[2\] is 1000000000000, more than there are nodes",
        ),
        (
            bad(torch.tensor([0.0, float("inf"), 0.0, 0.0, 0.0])),
            r"five: y\[1, 0\] is inf; expected a number, or NaN",
        ),
    ],
)
def test_labels_that_pose_no_task_are_refused_with_the_place(graph: Graph, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_of(graph, config())


def test_class_names_say_how_many_classes_there_are() -> None:
    graph = replace(graph_of([0, 1, 1, 0, 1]), class_names=("a", "b", "c"))
    assert task_of(graph, config()).num_outputs == 3
