"""Scores of predictions against labels, as fractions between 0 and 1; None where the labels leave a score undefined."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BINS = 15  # of calibration


def count_classes(guess: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Rows right, rows there and rows guessed of each class, which add up over parts: (R,), (R,) -> (3, C)."""
    each = [y[guess == y], y, guess]
    return torch.stack([torch.bincount(rows, minlength=num_classes) for rows in each]).double()


def count_labels(out: Tensor, y: Tensor) -> Tensor:
    """Labels right, there and guessed, which add up over parts: (R, C), (R, C) -> (3, C)."""
    guess, there = out > 0, y > 0
    return torch.stack([(guess & there).sum(0), there.sum(0), guess.sum(0)]).double()


def of_classes(counts: Tensor) -> dict[str, float | None]:
    """Scores of one class a row, from what :func:`count_classes` counted.

    Balanced accuracy is the mean recall of the classes that have rows.
    """
    hit, true, guessed = counts
    if not bool(true.any()):
        return dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "micro_f1"))
    present = (true + guessed) > 0
    f1 = 2 * hit / (true + guessed).clamp(min=1)
    accuracy = float(hit.sum() / true.sum())
    return {
        "accuracy": accuracy,
        "balanced_accuracy": float((hit / true)[true > 0].mean()),
        "macro_f1": float(f1[present].mean()),
        "micro_f1": accuracy,
    }


def f1_of(hit: float, true: float, guessed: float) -> float | None:
    """F1 of one class from its rows right, there and guessed; None if the class is neither there nor guessed."""
    return 2 * hit / (true + guessed) if true + guessed else None


def count_calibration(p: Tensor, positive: Tensor) -> Tensor:
    """Count rows by the bin of their probability: (R,), (R,) bool -> (3, BINS) float64, which add up over parts.

    The rows of the result: how many, the sum of their probabilities, how many are positive. Bins have equal widths;
    a probability of 1 falls into the last.
    """
    bins = (p.double() * BINS).long().clamp(0, BINS - 1)
    sums = [torch.bincount(bins, weights, BINS) for weights in (None, p.double(), positive.double())]
    return torch.stack([each.double() for each in sums])


def calibration_error(counts: Tensor) -> float | None:
    """Expected calibration error: the mean over rows of the distance between probability and share, by bin.

    ``counts`` are those of :func:`count_calibration`.
    """
    rows, p, positive = counts
    total = float(rows.sum())
    return float((p - positive).abs().sum()) / total if total else None


def of_labels(counts: Tensor) -> dict[str, float | None]:
    """Scores of many labels a row, from what :func:`count_labels` counted."""
    hit, both = counts[0], counts[1] + counts[2]
    f1 = 2 * hit / both.clamp(min=1)
    return {
        "micro_f1": float(2 * hit.sum() / both.sum().clamp(min=1)),
        "macro_f1": float(f1[both > 0].mean()) if bool((both > 0).any()) else 0.0,
    }


def confusion(guess: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Counts, (C, C) int64: rows are the true classes, columns the predicted ones."""
    return torch.bincount(y * num_classes + guess, minlength=num_classes**2).view(num_classes, num_classes)


def roc_auc(score: Tensor, y: Tensor) -> float | None:
    """Area under the ROC curve, the mean over columns that have both outcomes; ties count one half.

    Args:
        score: (R, C), finite.
        y: (R, C), above 0 where the outcome is positive.
    """
    score = score if score.dtype == torch.float64 else score.float()  # NumPy has no bfloat16
    columns = [
        (column.numpy(), positive.numpy()) for column, positive in zip(score.T, (y > 0).T, strict=True)
    ]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        return _mean_of_known(threads.map(lambda each: _area(*each), columns))


def mean_average_precision(score: Tensor, y: Tensor) -> float | None:
    """The mean of average precision over columns that have positives: (R, C), (R, C) bool."""
    columns = [(column.contiguous(), positive) for column, positive in zip(score.T, y.T, strict=True)]
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        return _mean_of_known(threads.map(lambda each: average_precision(*each), columns))


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _area(score: NDArray[Any], positive: NDArray[np.bool_]) -> float | None:
    """The area of one column, from the ranks of its positives; equal scores share the mean of their ranks."""
    high = score[positive]
    num_pos, num_neg = high.size, score.size - high.size
    if not num_pos or not num_neg:
        return None
    high.sort()  # ascending queries stay in the cache
    ordered = np.sort(score)
    below, up_to = (np.searchsorted(ordered, high, side) for side in ("left", "right"))
    twice_ranks = int(below.sum()) + int(up_to.sum()) + num_pos  # whole numbers, so the area is exact
    return (twice_ranks - num_pos * (num_pos + 1)) / (2 * num_pos * num_neg)


def average_precision(score: Tensor, y: Tensor) -> float | None:
    """The mean over positives of the precision among all that score at least as high: (R,), (R,) bool."""
    if not bool(y.any()):
        return None
    every, positive = score.sort().values, score[y].sort().values  # sorted: the sum has one order
    at_least = [each.numel() - torch.searchsorted(each, positive) for each in (positive, every)]
    return float((at_least[0].double() / at_least[1]).mean())


def precision_and_recall_at(score: Tensor, y: Tensor, *, top: int) -> tuple[float | None, float | None]:
    """Precision and recall among the ``top`` rows with the highest scores, or among all if there are fewer.

    Rows that tie with the last of them count by their share of positives, the mean over all orders of the ties:
    (R,), (R,) bool. Precision is None without rows, recall without positives.
    """
    top = min(top, score.numel())
    if not top:
        return None, None
    least = score.topk(top).values[-1]
    above, tied = score > least, score == least
    share = float(y[tied].sum()) / float(tied.sum())
    hits = float(y[above].sum()) + share * (top - int(above.sum()))
    num_pos = int(y.sum())
    return hits / top, hits / num_pos if num_pos else None
