"""Scores of the rows of one split: which fit a kind of labels, and from which counts or scores each follows.

Counts add up over ranks. Ranked metrics need the scores of all rows in one place.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from siafu import native
from siafu.training import metrics

Scores = dict[str, float | None]
OF_LABELS = {
    "class": ("accuracy", "balanced_accuracy", "macro_f1", "micro_f1"),
    "labels": ("micro_f1", "macro_f1"),
    "regression": ("mae",),
}
OF_POSITIVES = ("f1",)
OF_PROBABILITIES = ("brier", "calibration_error")
RANKED = ("roc_auc", "average_precision")
RANKED_POSITIVES = ("precision_at_k", "recall_at_k")
NEED_ALL_ROWS = (*RANKED, *RANKED_POSITIVES)
LOWER_IS_BETTER = ("mae", "brier", "calibration_error")


@dataclass(frozen=True)
class Scorer:
    """Computes the scores of labelled rows.

    Attributes:
        kind: one class a row, several labels a row, or numbers.
        num_outputs: C.
        positive: the class or label that is the positive one; None if none is singled out.
        at_k: the rows that precision and recall at k count.
    """

    kind: Literal["class", "labels", "regression"]
    num_outputs: int
    positive: int | None = None
    at_k: int = 100

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that fit these labels."""
        if self.kind == "regression":
            return OF_LABELS[self.kind]
        single = self.positive is not None
        of_positives, ranked_positives = (OF_POSITIVES, RANKED_POSITIVES) if single else ((), ())
        return (*OF_LABELS[self.kind], *of_positives, *RANKED, *ranked_positives, *OF_PROBABILITIES)

    def count(self, out: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """Count right and wrong predictions, by outputs (D, C) of all rows and labels of some: float64, flat."""
        match self.kind:
            case "class":
                guess = native.argmax_rows(out, rows)
                return metrics.count_classes(guess, y, self.num_outputs).reshape(-1)
            case "labels":
                return metrics.count_labels(out[rows], y).reshape(-1)
            case "regression":
                off = (out[rows] - y).abs()
                return torch.stack([off.nansum(dtype=torch.float64), (~off.isnan()).sum().double()])

    def of_counts(self, count: Tensor) -> Scores:
        """The scores that follow from :meth:`count`, at next to no cost."""
        if self.kind == "regression":
            mae = float(count[0] / count[1])
            return {"mae": mae if isfinite(mae) else None}
        table = count.view(3, -1)
        found = metrics.of_classes(table) if self.kind == "class" else metrics.of_labels(table)
        return (
            found
            if self.positive is None
            else found | {"f1": metrics.f1_of(*table[:, self.positive].tolist())}
        )

    def add_up(self, out: Tensor, y: Tensor) -> Tensor:
        """Add up what the scores of probabilities follow from: (R, C) and labels -> flat, float64."""
        if self.kind == "labels":
            p, positive = out.double().sigmoid(), y > 0
            if self.positive is not None:
                p, positive = p[:, self.positive], positive[:, self.positive]
            squares = (p - positive.double()).square().sum()
            return _joined(squares, p.numel(), p.reshape(-1), positive.reshape(-1))
        p = out.double().softmax(1)
        if self.positive is not None:
            positive = y == self.positive
            squares = (p[:, self.positive] - positive.double()).square().sum()
            return _joined(squares, y.numel(), p[:, self.positive], positive)
        # sum over classes of (p - [class is y])^2
        squares = p.square().sum() - 2 * p.gather(1, y[:, None]).sum() + y.numel()
        best, guess = p.max(1)
        return _joined(squares, y.numel(), best, guess == y)

    def of_sums(self, sums: Tensor) -> Scores:
        """The scores that follow from :meth:`add_up`."""
        squares, rows = sums[:2].tolist()
        return {
            "brier": squares / rows if rows else None,
            "calibration_error": metrics.calibration_error(sums[2:].view(3, -1)),
        }

    def columns(self, out: Tensor) -> Tensor:
        """The scores by which rows are ranked: of the positive class, else of each: (R, C) -> (R, K).

        The positive class is ranked by its log-odds, which do not saturate as probabilities do.
        """
        if self.kind == "labels":
            return out if self.positive is None else out[:, self.positive, None]
        return out.softmax(1) if self.positive is None else self.log_odds(out)[:, None]

    def log_odds(self, out: Tensor) -> Tensor:
        """The log-odds of the positive class: (R, C) -> (R,)."""
        assert self.positive is not None
        if self.kind == "labels":
            return out[:, self.positive]
        others = [place for place in range(self.num_outputs) if place != self.positive]
        rest = out[:, others[0]] if len(others) == 1 else out[:, others].logsumexp(1)
        return out[:, self.positive] - rest

    def outcomes(self, y: Tensor) -> Tensor:
        """Which rows are positive in each of the columns: (R, K) bool."""
        if self.kind == "labels":
            return (y if self.positive is None else y[:, self.positive, None]) > 0
        if self.positive is not None:
            return (y == self.positive)[:, None]
        return y[:, None] == torch.arange(self.num_outputs)

    def ranked(self, columns: Tensor, outcomes: Tensor, names: tuple[str, ...] = NEED_ALL_ROWS) -> Scores:
        """Ranked scores, of those in ``names`` that fit, from the columns and outcomes of all rows: (R, K), (R, K)."""
        found: Scores = {}
        if "roc_auc" in names:
            found["roc_auc"] = metrics.roc_auc(columns, outcomes)
        if "average_precision" in names:
            found["average_precision"] = metrics.mean_average_precision(columns, outcomes)
        if self.positive is not None and set(RANKED_POSITIVES) & set(names):
            values = metrics.precision_and_recall_at(columns[:, 0], outcomes[:, 0], top=self.at_k)
            found |= dict(zip(RANKED_POSITIVES, values, strict=True))
        return found

    def of_constant(self, true: Tensor, guess: int) -> Scores:
        """The scores of always predicting one class, by the rows of each class: (C,) -> scores.

        Ranked scores are those of equal scores for all rows.
        """
        assert self.kind == "class"
        hit, guessed = torch.zeros_like(true), torch.zeros_like(true)
        hit[guess], guessed[guess] = true[guess], true.sum()
        found = self.of_counts(torch.stack([hit, true, guessed]).reshape(-1))
        there = true[true > 0] if self.positive is None else true[self.positive, None]
        total = float(true.sum())
        if not total or not bool(there.all()):
            return found
        share = float((there / total).mean())
        found |= {"roc_auc": 0.5, "average_precision": share}
        if self.positive is not None:
            found |= {"precision_at_k": share, "recall_at_k": min(1.0, self.at_k / total)}
        return found


def _joined(squares: Tensor, rows: int, p: Tensor, positive: Tensor) -> Tensor:
    counts = metrics.count_calibration(p, positive).reshape(-1)
    return torch.cat([squares.reshape(1), squares.new_tensor([rows]), counts])
