"""Thresholds of a score: the counts at each, the curves that they draw, and the best threshold for a goal."""

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

ThresholdRule = Literal["f1", "balanced_accuracy"] | float  # a goal, or a probability given by hand
_MOST_POINTS = 400  # of a curve that is drawn


@dataclass(frozen=True, eq=False)
class ThresholdCounts:
    """Counts at each distinct score, from the highest to the lowest.

    Attributes:
        score: (T,) distinct, descending.
        predicted: (T,) float64, rows that score at least as high.
        hits: (T,) float64, positives among them.
    """

    score: Tensor
    predicted: Tensor
    hits: Tensor

    @classmethod
    def of(cls, score: Tensor, positive: Tensor) -> "ThresholdCounts":
        """Count rows by their scores: (R,), (R,) bool."""
        score, order = score.sort(descending=True)
        distinct, count = score.unique_consecutive(return_counts=True)
        last = count.cumsum(0) - 1
        hits = positive[order].double().cumsum(0)
        return cls(distinct, (last + 1).double(), hits[last])

    @property
    def num_positives(self) -> float:
        """The number of positives."""
        return float(self.hits[-1]) if self.hits.numel() else 0.0

    @property
    def num_rows(self) -> float:
        """The number of rows."""
        return float(self.predicted[-1]) if self.predicted.numel() else 0.0

    def best(self, goal: Literal["f1", "balanced_accuracy"]) -> float | None:
        """The threshold with the best F1 of the positives, or the best balanced accuracy; None if it is undefined.

        It lies in the middle between two scores that occur, so that rounding moves no row to its other side. Among
        equally good thresholds the highest is chosen.
        """
        true, others = self.num_positives, self.num_rows - self.num_positives
        if not true or not others:
            return None
        gain = (
            2 * self.hits / (self.predicted + true)
            if goal == "f1"
            else self.hits / true - (self.predicted - self.hits) / others
        )
        place = int(gain.argmax())
        if place + 1 == self.score.numel():
            return -inf
        return float((self.score[place].double() + self.score[place + 1].double()) / 2)

    def curves(self) -> dict[str, Any]:
        """The points of the precision-recall and the ROC curve, at most a few hundred of each."""
        true, others = self.num_positives, self.num_rows - self.num_positives
        if not true or not others:
            return {}
        some = _spread(self.score.numel())
        hits, predicted = self.hits[some], self.predicted[some]
        recall = hits / true
        return {
            "pr": {"recall": recall.tolist(), "precision": (hits / predicted).tolist()},
            "roc": {
                "fpr": [0.0, *((predicted - hits) / others).tolist()],
                "tpr": [0.0, *recall.tolist()],
            },
        }


def _spread(count: int) -> Tensor:
    """Up to a few hundred of so many places, with the first and the last; denser at the beginning."""
    if count <= _MOST_POINTS:
        return torch.arange(count)
    steps = torch.linspace(0, 1, _MOST_POINTS, dtype=torch.float64)
    return (steps**3 * (count - 1)).round().long().unique()


def find_threshold(score: Tensor, positive: Tensor, rule: ThresholdRule) -> float | None:
    """Find the threshold of a rule, as a probability, on log-odds of rows: (R,), (R,) bool."""
    if isinstance(rule, float):
        return rule
    best = ThresholdCounts.of(score, positive).best(rule)
    return None if best is None else float(torch.tensor(best, dtype=torch.float64).sigmoid())


def is_predicted(log_odds: Tensor, threshold: float) -> Tensor:
    """Rows whose probability of the positive class is at least the threshold: (R,) -> (R,) bool."""
    return log_odds.double().sigmoid() >= threshold


def confusion_at(log_odds: Tensor, positive: Tensor, threshold: float) -> Tensor:
    """Counts, (2, 2) int64: rows others and positives, columns predicted so; they add up over parts."""
    code = 2 * positive.long() + is_predicted(log_odds, threshold).long()
    return torch.bincount(code, minlength=4).view(2, 2)


def scores_at(confusion: Tensor) -> dict[str, float | None]:
    """Scores of the predictions by a threshold, from the counts of :func:`confusion_at`."""
    (right_others, false), (missed, hit) = confusion.double().tolist()
    true, guessed, total = hit + missed, hit + false, float(confusion.sum())
    recalls = [part / whole for part, whole in ((hit, true), (right_others, total - true)) if whole]
    return {
        "accuracy_at_threshold": (hit + right_others) / total if total else None,
        "balanced_accuracy_at_threshold": sum(recalls) / len(recalls) if recalls else None,
        "f1_at_threshold": 2 * hit / (true + guessed) if true + guessed else None,
        "precision_at_threshold": hit / guessed if guessed else None,
        "recall_at_threshold": hit / true if true else None,
    }
