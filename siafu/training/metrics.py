"""Scores of predictions against labels, as fractions between 0 and 1; None where the labels leave a score undefined."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def count_classes(guess: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Rows right, rows there and rows guessed of each class, which add up over parts: (R,), (R,) -> (3, C)."""
    each = [y[guess == y], y, guess]
    return torch.stack([torch.bincount(rows, minlength=num_classes) for rows in each]).double()


def count_labels(out: Tensor, y: Tensor) -> Tensor:
    """Labels right, and labels there plus labels guessed, which add up over parts: (R, C), (R, C) -> (2, C)."""
    guess = out > 0
    return torch.stack([(guess & (y > 0)).sum(0), guess.sum(0) + (y > 0).sum(0)]).double()


def of_classes(counts: Tensor) -> dict[str, float | None]:
    """Scores of one class a row, from what :func:`count_classes` counted."""
    hit, true, guessed = counts
    present = (true + guessed) > 0
    f1 = 2 * hit / (true + guessed).clamp(min=1)
    accuracy = float(hit.sum() / true.sum())
    return {"accuracy": accuracy, "micro_f1": accuracy, "macro_f1": float(f1[present].mean())}


def of_labels(counts: Tensor) -> dict[str, float | None]:
    """Scores of many labels a row, from what :func:`count_labels` counted."""
    hit, both = counts
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
        areas = list(threads.map(lambda each: _area(*each), columns))
    known = [area for area in areas if area is not None]
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
    every, positive = score.sort().values, score[y].sort().values
    at_least = [each.numel() - torch.searchsorted(each, score[y]) for each in (positive, every)]
    return float((at_least[0].double() / at_least[1]).mean())
