"""Tasks with a rare class: the metric, the positive class, the threshold, weights by hand, the focal loss; on ranks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.nn.loss import sum_of_losses
from siafu.training import metrics
from siafu.training import task as tasks
from siafu.training.config import TrainConfig
from siafu.training.scorer import NEED_ALL_ROWS
from siafu.training.task import SPLITS, Task, task_of

NODES = 300


def graph_of(y: Tensor, *, names: tuple[str, ...] | None = None) -> Graph:
    split = torch.arange(NODES) % 3
    masks = {f"{name}_mask": split == place for place, name in enumerate(SPLITS)}
    made = Graph.from_edges([[0], [1]], y=y, num_nodes=NODES, name="few", **masks)
    return replace(made, class_names=names)


def rare(*, rare_class: int = 1) -> Tensor:
    """Classes of which one has 5 % of every split."""
    return torch.where(torch.arange(NODES) // 3 % 20 == 0, rare_class, 1 - rare_class)


def outputs(columns: int = 2) -> Tensor:
    draw = torch.randn(NODES, columns, generator=torch.Generator().manual_seed(7))
    return (draw * 4).round() / 4  # many ties


def config(**settings: Any) -> TrainConfig:
    return TrainConfig.model_validate(settings)


def test_average_precision_selects_where_a_class_is_rare() -> None:
    task = task_of(graph_of(rare()), config())
    assert 0 < task.train_count[1] < 0.1 * sum(task.train_count)
    assert (task.metric, task.scorer.positive, task.rule) == ("average_precision", 1, "f1")
    swapped = task_of(graph_of(rare(rare_class=0)), config())
    assert (swapped.metric, swapped.scorer.positive) == ("average_precision", 0)


def test_two_balanced_classes_are_scored_by_accuracy_and_decided_at_one_half() -> None:
    task = task_of(graph_of(torch.arange(NODES) // 3 % 2), config())
    assert (task.metric, task.scorer.positive, task.rule) == ("accuracy", 1, None)
    found = task.final_results(outputs(), outputs()).metrics
    assert (found["threshold"], found["threshold_rule"]) == (None, None)
    assert not [key for key in found if "at_threshold" in key]


def test_a_class_without_a_training_label_is_not_rare() -> None:
    task = task_of(graph_of(torch.zeros(NODES, dtype=torch.int64)), config())
    assert (task.metric, task.rule) == ("accuracy", None)


@pytest.mark.parametrize("name", ["fraud", "1", 1])
def test_the_positive_class_is_named_by_name_or_number(name: str | int) -> None:
    task = task_of(graph_of(rare(), names=("fine", "fraud")), config(positive_class=name))
    assert task.scorer.positive == 1
    assert task.final_results(outputs(), outputs()).metrics["positive_class"] == "fraud"


def test_one_of_several_classes_can_be_the_positive_one() -> None:
    graph = graph_of(torch.arange(NODES) // 3 % 4)
    plain, named = task_of(graph, config()), task_of(graph, config(positive_class=3, metric="f1"))
    assert "f1" not in plain.scorer.names
    out = outputs(4)
    found, rows = named.scores(out, "test"), named.rows["test"]
    true, guess = named.y[rows] == 3, out[rows].argmax(1) == 3
    assert found["f1"] == pytest.approx(float(2 * (true & guess).sum() / (true.sum() + guess.sum())))
    assert named.score(out, "test") == found["f1"]
    assert "threshold" not in named.final_results(out, out).metrics, "thresholds are for two classes"


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        ("rare", {"positive_class": "fruad"}, "positive_class names fruad, .* did you mean fraud"),
        (
            "rare",
            {"class_weights": {"fraude": 2}},
            "class_weights names fraude, which is no class here; .* fine, fraud",
        ),
        ("rare", {"class_weights": {"7": 2}}, "class_weights names 7, which is no class"),
        ("rare", {"class_weights": [1, 2, 3]}, r"has 3 weights, but there are 2 classes; .*\{fraud = 20\}"),
        ("many", {"metric": "f1"}, "train.metric is f1, which scores one class, .*train.positive_class"),
        ("many", {"metric": "recall_at_k"}, "train.metric is recall_at_k, which scores one class"),
        (
            "many",
            {"threshold": "f1"},
            "train.threshold is f1, but a threshold is for two classes, .* 4 classes",
        ),
        ("several", {"threshold": 0.3}, "threshold is 0.3, but .* are several labels a node"),
        ("several", {"metric": "accuracy"}, "train.metric is accuracy, .* expected one of micro_f1"),
        ("numbers", {"threshold": "f1"}, "train.threshold is f1, but .* are numbers"),
        ("numbers", {"loss": "focal"}, "train.loss is focal, but the labels are numbers"),
        ("numbers", {"class_weights": [1, 2]}, "class_weights is given, but the labels are numbers"),
        ("numbers", {"positive_class": 1}, "positive_class is 1, but the labels are numbers"),
    ],
)
def test_settings_that_do_not_fit_the_labels_are_refused(
    labels: str, settings: dict[str, Any], message: str
) -> None:
    numbers = torch.randn(NODES, generator=torch.Generator().manual_seed(0))
    y = {
        "rare": rare(),
        "many": torch.arange(NODES) // 3 % 4,
        "several": torch.stack([rare(), 1 - rare()], 1).to(torch.uint8),
        "numbers": numbers,
    }[labels]
    with pytest.raises(ValueError, match=message):
        task_of(graph_of(y, names=("fine", "fraud") if labels == "rare" else None), config(**settings))


def test_a_threshold_that_validation_would_choose_needs_validation_labels() -> None:
    graph = replace(graph_of(rare()), val_mask=None)
    with pytest.raises(
        ValueError, match="threshold is f1, which is chosen on validation labels, but there are none"
    ):
        task_of(graph, config(threshold="f1"))
    assert task_of(graph, config()).rule is None
    assert (
        task_of(graph, config(threshold=0.2)).final_results(outputs(), outputs()).metrics["threshold"] == 0.2
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weights": "often"}, "none, balanced, a list of the weight of each class, or a table"),
        ({"class_weights": []}, "none, balanced, a list"),
        ({"class_weights": [1, 0]}, "weights that are numbers above 0"),
        ({"class_weights": {"a": -1}}, "weights that are numbers above 0"),
        ({"class_weights": [1, "2"]}, "weights that are numbers above 0"),
        ({"threshold": 1.5}, "a probability between 0 and 1"),
        ({"threshold": "best"}, "threshold"),
        ({"loss": "hinge"}, "loss"),
        ({"focal_gamma": -1}, "focal_gamma"),
        ({"at_k": 0}, "at_k"),
    ],
)
def test_values_that_no_labels_fit_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_a_config_with_weights_by_name_can_be_hashed() -> None:
    one, same = (config(class_weights=table) for table in ({"a": 2, "b": 3}, {"b": 3, "a": 2}))
    assert hash(one) == hash(same)
    assert one == same != config(class_weights={"a": 2})


@pytest.mark.parametrize("given", [[1, 20], {"fraud": 20}, {"1": 20}])
def test_weights_are_given_by_number_or_name(given: Any) -> None:
    task = task_of(graph_of(rare(), names=("fine", "fraud")), config(class_weights=given))
    assert task.class_weight is not None
    assert task.class_weight.tolist() == [1, 20]
    rows, out = task.rows["train"], outputs()
    wanted = torch.nn.functional.cross_entropy(out[rows], task.y[rows], weight=torch.tensor([1.0, 20.0]))
    torch.testing.assert_close(task.loss(out), wanted)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("weight", [None, [1.0, 3.0, 0.5]])
def test_the_focal_loss_of_classes_is_that_of_its_definition(
    gamma: float, weight: list[float] | None
) -> None:
    out, y = outputs(3)[:40].double().requires_grad_(), torch.arange(40) % 3
    weights = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    p = out.softmax(1)[torch.arange(40), y]
    each = -((1 - p) ** gamma) * p.log()
    wanted = (each if weights is None else each * weights[y]).sum()
    found = sum_of_losses("class", out, y, weights, gamma)
    torch.testing.assert_close(found, wanted)
    for loss in (found, wanted):
        loss.backward(retain_graph=True)
    assert out.grad is not None


def test_the_focal_loss_of_labels_is_that_of_its_definition() -> None:
    out, y = outputs(3)[:40].double(), (outputs(4)[:40, 1:] > 0).double()
    weight = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    p = torch.where(y > 0, out.sigmoid(), 1 - out.sigmoid())
    wanted = (-((1 - p) ** 2) * p.log() * torch.where(y > 0, weight, 1.0)).sum()
    torch.testing.assert_close(sum_of_losses("labels", out, y, weight, 2.0), wanted)


def test_the_focal_loss_of_rows_that_are_certain_has_a_gradient() -> None:
    out = torch.tensor([[100.0, 0.0]], requires_grad=True)
    sum_of_losses("class", out, torch.tensor([0]), None, 0.5).backward()
    assert out.grad is not None
    assert out.grad.isfinite().all()


def test_an_epoch_computes_the_chosen_metric_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, out = graph_of(rare()), outputs()
    chosen = {name: task_of(graph, config(metric=name)) for name in task_of(graph, config()).scorer.names}
    wanted = {name: task.scores(out, "val")[name] for name, task in chosen.items()}
    for name, task in chosen.items():
        assert task.evaluate(out)[0]["val"] == task.score(out, "val") == wanted[name], name

    def fail(*_: object, **__: object) -> None:
        pytest.fail("computed a metric that nobody asked for")

    for name in ("roc_auc", "precision_and_recall_at", "count_calibration", "count_classes"):
        monkeypatch.setattr(metrics, name, fail)
    assert chosen["average_precision"].evaluate(out)[0]["val"] == wanted["average_precision"]


def test_the_threshold_is_chosen_on_outputs_that_saw_no_validation_label() -> None:
    task, out = task_of(graph_of(rare()), config()), outputs()
    seen = out.clone()
    rows = task.rows["val"]
    seen[rows] = 9.0 * torch.nn.functional.one_hot(task.y[rows], 2)
    found, wanted = (task.final_results(each, out).metrics for each in (seen, out))
    assert found == wanted
    assert task.final_results(seen, seen).metrics["threshold"] != wanted["threshold"]


def test_probabilities_are_added_up_in_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, out = graph_of(rare()), outputs()
    whole = task_of(graph, config()).scores(out, "test")
    monkeypatch.setattr(tasks, "_MOST_AT_ONCE", 14)
    assert task_of(graph, config()).scores(out, "test") == pytest.approx(whole)


def on_ranks(
    y: Tensor,
    ranks: int,
    work: Callable[[Task, Tensor], Any],
    *,
    columns: int = 2,
    shares_labels: bool = True,
    **settings: Any,
) -> list[Any]:
    """Run some work on ranks that share the nodes."""
    graph, out = graph_of(y), outputs(columns)
    owner = torch.arange(NODES) * 7919 % 1009 % ranks

    def rank(comm: Comm) -> Any:
        mine = (owner == comm.rank).nonzero()[:, 0]
        masks = {f"{split}_mask": getattr(graph, f"{split}_mask")[mine] for split in SPLITS}
        comm.shares_labels = shares_labels
        part = Graph.from_edges(torch.empty(2, 0, dtype=torch.int64), y=y[mine], num_nodes=len(mine), **masks)
        return work(task_of(part, config(**settings), comm), out[mine])

    return run_threads(rank, ranks=ranks, threads=1)


@pytest.mark.parametrize("metric", ["auto", "roc_auc", "precision_at_k", "brier", "f1", "balanced_accuracy"])
def test_scores_and_thresholds_do_not_depend_on_ranks(metric: str) -> None:
    def work(task: Task, out: Tensor) -> Any:
        scores = {split: task.scores(out, split) for split in SPLITS}
        return task.evaluate(out)[0], scores, *task.final_results(out, out)

    (alone,) = on_ranks(rare(), 1, work, metric=metric, at_k=20)
    for found in on_ranks(rare(), 3, work, metric=metric, at_k=20):
        assert found[0] == pytest.approx(alone[0])
        for split in ("val", "test"):
            assert None not in found[1][split].values()
            assert found[1][split] == pytest.approx(alone[1][split])
        assert found[2] == pytest.approx(alone[2])
        assert found[3].keys() == alone[3].keys() >= {"pr", "roc", "calibration", "threshold", "confusion"}
        assert found[3]["pr"] == alone[3]["pr"]


def test_losses_do_not_depend_on_ranks() -> None:
    for settings in (
        {"loss": "focal", "class_weights": [1, 9]},
        {"loss": "focal"},
        {"class_weights": {"1": 5}},
    ):
        (alone,) = on_ranks(rare(), 1, lambda task, out: float(task.loss(out)), **settings)
        shares = on_ranks(rare(), 3, lambda task, out: float(task.loss(out)), **settings)
        assert sum(shares) == pytest.approx(alone)


def test_ranks_exchange_no_scores_of_many_classes_unless_they_select() -> None:
    y = torch.arange(NODES) // 3 % 4
    for found in on_ranks(y, 2, lambda task, out: task.scores(out, "test"), columns=4):
        assert found["roc_auc"] is found["average_precision"] is None
        assert found["brier"] is not None
    for found in on_ranks(
        y, 2, lambda task, out: task.scores(out, "test"), columns=4, metric="average_precision"
    ):
        assert found["average_precision"] is not None


def test_organisations_exchange_no_labels_and_are_scored_by_sums() -> None:
    def work(task: Task, out: Tensor) -> Any:
        assert (task.metric, task.rule) == ("macro_f1", None)
        found = task.scores(out, "test"), task.final_results(out, out).curves
        assert "labels" not in task.comm.meter.sent
        return found

    for scores, curves in on_ranks(rare(), 2, work, shares_labels=False):
        unknown = [name for name, value in scores.items() if value is None]
        assert unknown == [name for name in scores if name in NEED_ALL_ROWS]
        assert set(curves) == {"positive_class", "calibration"}
    with pytest.raises(ValueError, match="threshold is f1, which needs all labels in one place"):
        on_ranks(rare(), 2, work, shares_labels=False, threshold="f1")


def test_the_majority_is_scored_by_the_same_metric() -> None:
    task = task_of(graph_of(rare()), config(metric="accuracy"))
    found = task.final_results(outputs(), outputs()).metrics
    count = torch.bincount(task.y[task.rows["test"]])
    assert found["test_majority_score"] == pytest.approx(float(count[0] / count.sum()))
    assert (found["majority_class"], found["majority_share"]) == (
        "0",
        task.train_count[0] / sum(task.train_count),
    )
    untested = task_of(replace(graph_of(rare()), test_mask=None), config())
    assert untested.final_results(outputs(), outputs()).metrics["test_majority_score"] is None
