"""Results about the final outputs besides the scores of splits: the threshold, the majority's score, curves."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from siafu.training.classes import LabelNames
from siafu.training.scorer import Scorer
from siafu.training.thresholds import ThresholdCounts, ThresholdRule, find_threshold, scores_at


class FinalResults(NamedTuple):
    """Further results of a run.

    Attributes:
        metrics: the threshold with its scores, and the score of the majority class.
        curves: the curves of the test rows, for the report; empty where no class is singled out.
    """

    metrics: dict[str, Any]
    curves: dict[str, Any]


class ClassTask(Protocol):
    """A task of one class a row, node or event; ``out`` is what its procedure's ``outputs`` returned."""

    @property
    def metric(self) -> str:
        """The chosen metric."""

    @property
    def scorer(self) -> Scorer:
        """Computes the metrics."""

    @property
    def labels(self) -> LabelNames:
        """The names of the classes."""

    @property
    def train_count(self) -> tuple[int, ...]:
        """The training labels of each class."""

    @property
    def rule(self) -> ThresholdRule | None:
        """How the threshold between two classes is found; None: the more probable class is predicted."""

    def test_classes(self, out: Any) -> Tensor | None:
        """The test rows of each class, (C,); None without any. Collective."""

    def positive_rows(self, out: Any, split: str) -> tuple[Tensor, Tensor] | None:
        """The log-odds and outcomes of all rows of a split, (R,) and (R,) bool; None if unknown. Collective."""

    def confusion_at(self, out: Any, split: str, threshold: float) -> Tensor:
        """Counts of others and positives as the threshold predicts them, (2, 2). Collective."""

    def calibration(self, out: Any) -> Tensor:
        """The counts of test rows by the bin of their probability, (3, BINS). Collective."""


def final_results(task: ClassTask, out: Any, selecting: Any) -> FinalResults:
    """Compute the results of a task of classes; ``selecting`` are outputs that saw no validation label. Collective."""
    test_classes = task.test_classes(out)
    found = _majority_results(task, test_classes)
    if task.scorer.positive is None:
        return FinalResults(found, {})
    name = task.labels.name(task.scorer.positive)
    found |= {"positive_class": name, "at_k": task.scorer.at_k}
    curves: dict[str, Any] = {"positive_class": name}
    if test_classes is not None:
        curves["calibration"] = task.calibration(out).tolist()
        rows = task.positive_rows(out, "test")
        curves |= {} if rows is None else ThresholdCounts.of(*rows).curves()
    if len(task.train_count) != 2:
        return FinalResults(found, curves)
    threshold = _threshold(task, selecting)
    found |= {"threshold": threshold, "threshold_rule": None if threshold is None else _rule_name(task.rule)}
    if threshold is not None:
        outputs = {"val": selecting, "test": out}
        tables = {split: task.confusion_at(each, split, threshold) for split, each in outputs.items()}
        for split, table in tables.items():
            found |= {f"{split}_{metric}": value for metric, value in scores_at(table).items()}
        curves |= {"threshold": threshold, "confusion": tables["test"].tolist()}
    return FinalResults(found, curves)


def _majority_results(task: ClassTask, test_classes: Tensor | None) -> dict[str, Any]:
    """The most frequent class of training labels, its share, and the test score of always predicting it."""
    count = task.train_count
    most = max(range(len(count)), key=lambda place: (count[place], -place))
    scores = {} if test_classes is None else task.scorer.of_constant(test_classes.double(), most)
    return {
        "majority_class": task.labels.name(most),
        "majority_share": count[most] / max(1, sum(count)),
        "test_majority_score": scores.get(task.metric),
    }


def _threshold(task: ClassTask, out: Any) -> float | None:
    """Find the threshold by the rule, on all validation rows. Collective."""
    if task.rule is None or isinstance(task.rule, float):
        return task.rule
    rows = task.positive_rows(out, "val")
    return None if rows is None else find_threshold(*rows, task.rule)


def _rule_name(rule: ThresholdRule | None) -> str | None:
    return "given" if isinstance(rule, float) else rule
