"""Metrics of rare classes and thresholds against plain references, with ties, empty splits and one class alone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siafu.training import metrics
from siafu.training.scorer import NEED_ALL_ROWS, Scorer
from siafu.training.thresholds import (
    ThresholdCounts,
    confusion_at,
    find_threshold,
    is_predicted,
    scores_at,
)

ROWS = st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=25)
TWO = Scorer("class", 2, positive=1, at_k=4)


def split(rows: list[tuple[int, bool]]) -> tuple[Tensor, Tensor]:
    """Scores with ties, and outcomes."""
    return torch.tensor([float(score) for score, _ in rows]), torch.tensor([positive for _, positive in rows])


def counts_at(rows: list[tuple[int, bool]], least: float) -> tuple[int, int, int]:
    """Predicted rows, hits and positives where rows from a score on are predicted."""
    predicted = [positive for score, positive in rows if score >= least]
    return len(predicted), sum(predicted), sum(positive for _, positive in rows)


@given(ROWS)
def test_average_precision_adds_up_precision_over_steps_of_recall(rows: list[tuple[int, bool]]) -> None:
    found = metrics.average_precision(*split(rows))
    wanted, before = 0.0, 0
    for least in sorted({score for score, _ in rows}, reverse=True):
        predicted, hits, total = counts_at(rows, least)
        wanted += (hits - before) * hits / predicted
        before = hits
    assert found == (pytest.approx(wanted / total) if total else None)


@given(ROWS, st.integers(1, 30))
def test_precision_and_recall_at_k_are_means_over_all_orders_of_ties(
    rows: list[tuple[int, bool]], top: int
) -> None:
    precision, recall = metrics.precision_and_recall_at(*split(rows), top=top)
    left, hits = min(top, len(rows)), 0.0
    for score in sorted({score for score, _ in rows}, reverse=True):
        tied = [positive for each, positive in rows if each == score]
        taken = min(left, len(tied))
        hits += taken * sum(tied) / len(tied)
        left -= taken
    assert precision == pytest.approx(hits / min(top, len(rows)))
    positives = sum(positive for _, positive in rows)
    assert recall == (pytest.approx(hits / positives) if positives else None)


def test_precision_and_recall_of_no_rows_are_unknown() -> None:
    assert metrics.precision_and_recall_at(torch.empty(0), torch.empty(0, dtype=torch.bool), top=3) == (
        None,
        None,
    )


def test_balanced_accuracy_is_the_mean_recall_of_classes_that_are_there() -> None:
    y = torch.tensor([0, 0, 0, 0, 1, 1])
    guess = torch.tensor([0, 0, 0, 1, 1, 2])
    found = metrics.of_classes(metrics.count_classes(guess, y, 4))
    assert found["balanced_accuracy"] == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_f1_of_one_class_is_that_worked_out_by_hand() -> None:
    out = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    y, rows = torch.tensor([0, 1, 0, 1]), torch.arange(4)
    assert TWO.of_counts(TWO.count(out, y, rows))["f1"] == pytest.approx(1 / 2)
    never = TWO.of_counts(TWO.count(torch.tensor([[1.0, 0.0]] * 4), y, rows))
    assert never["f1"] == 0.0, "positives that nobody found"
    assert TWO.of_counts(TWO.count(out[:1], y[:1], rows[:1]))["f1"] is None, "none there, none guessed"


def test_the_brier_score_of_two_classes_is_the_squared_error_of_the_positive_one() -> None:
    out, y = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1] * 3)
    p = out.softmax(1)[:, 1]
    wanted = float((p - y).square().mean())
    assert TWO.of_sums(TWO.add_up(out, y))["brier"] == pytest.approx(wanted)


def test_the_brier_score_of_many_classes_adds_up_their_squared_errors() -> None:
    out, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 3] * 2)
    scorer = Scorer("class", 4)
    wanted = float((out.softmax(1) - torch.nn.functional.one_hot(y, 4)).square().sum(1).mean())
    assert scorer.of_sums(scorer.add_up(out, y))["brier"] == pytest.approx(wanted)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=40))
def test_the_calibration_error_is_the_mean_gap_of_bins(rows: list[tuple[int, bool]]) -> None:
    p = torch.tensor([score / 30 for score, _ in rows], dtype=torch.float64)
    positive = torch.tensor([each for _, each in rows])
    bins: dict[int, list[tuple[float, bool]]] = {}
    for value, each in zip(p.tolist(), positive.tolist(), strict=True):
        bins.setdefault(min(int(value * metrics.BINS), metrics.BINS - 1), []).append((value, each))
    wanted = sum(abs(sum(v for v, _ in each) - sum(e for _, e in each)) for each in bins.values()) / len(rows)
    assert metrics.calibration_error(metrics.count_calibration(p, positive)) == pytest.approx(wanted)


def test_the_calibration_of_many_classes_is_that_of_the_predicted_one() -> None:
    out = torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0]])
    scorer, p = Scorer("class", 3), float(torch.tensor([4.0, 0.0, 0.0]).softmax(0)[0])
    found = scorer.of_sums(scorer.add_up(out, torch.tensor([0, 2])))
    assert found["calibration_error"] == pytest.approx(abs(p - 0.5))


def test_several_labels_a_node_have_the_same_metrics() -> None:
    out = torch.randn(20, 3, generator=torch.Generator().manual_seed(2))
    y = (torch.rand(20, 3, generator=torch.Generator().manual_seed(3)) < 0.3).float()
    scorer, named = Scorer("labels", 3), Scorer("labels", 3, positive=2, at_k=5)
    p = out.sigmoid()
    each = [metrics.average_precision(out[:, label], y[:, label] > 0) for label in range(3)]
    found = scorer.ranked(scorer.columns(out), scorer.outcomes(y))
    assert found["average_precision"] == pytest.approx(sum(value or 0 for value in each) / 3)
    assert set(found) == {"roc_auc", "average_precision"}
    assert scorer.of_sums(scorer.add_up(out, y))["brier"] == pytest.approx(float((p - y).square().mean()))
    of_one = named.ranked(named.columns(out), named.outcomes(y))
    assert of_one["average_precision"] == each[2]
    assert of_one["precision_at_k"] == float(y[out[:, 2].topk(5).indices, 2].double().mean())
    wanted = float((p[:, 2] - y[:, 2]).square().mean())
    assert named.of_sums(named.add_up(out, y))["brier"] == pytest.approx(wanted)


@pytest.mark.parametrize("y", [[0, 0, 0], [1, 1, 1], []])
def test_one_class_alone_and_empty_splits_leave_scores_undefined(y: list[int]) -> None:
    out, labels = torch.arange(2.0 * len(y)).view(-1, 2), torch.tensor(y, dtype=torch.int64)
    found = TWO.ranked(TWO.columns(out), TWO.outcomes(labels))
    assert found["roc_auc"] is None
    assert found["average_precision"] == (1.0 if 1 in y else None)
    assert found["recall_at_k"] == (1.0 if 1 in y else None)
    sums = TWO.of_sums(TWO.add_up(out, labels))
    assert (sums["brier"] is None) == (not y)
    assert (sums["calibration_error"] is None) == (not y)
    counts = ThresholdCounts.of(TWO.columns(out)[:, 0], TWO.outcomes(labels)[:, 0])
    assert counts.best("f1") is None
    assert counts.curves() == {}


def test_confident_rows_are_ranked_although_their_probabilities_are_equal() -> None:
    out = torch.tensor([[0.0, 30.0], [0.0, 40.0]])
    assert out.softmax(1)[0, 1] == out.softmax(1)[1, 1] == 1
    assert TWO.ranked(TWO.columns(out), torch.tensor([[False], [True]]))["roc_auc"] == 1.0


def test_a_named_class_of_several_is_ranked_by_its_log_odds() -> None:
    out = torch.randn(7, 4, generator=torch.Generator().manual_seed(4))
    found = Scorer("class", 4, positive=2).log_odds(out)
    torch.testing.assert_close(found, out.softmax(1)[:, 2].logit())


@pytest.mark.parametrize("goal", ["f1", "balanced_accuracy"])
@given(rows=ROWS)
def test_the_best_threshold_is_that_of_all(goal: Any, rows: list[tuple[int, bool]]) -> None:
    score, positive = split(rows)
    threshold = find_threshold(score, positive, goal)
    if positive.all() or not positive.any():
        assert threshold is None
        return
    assert threshold is not None

    def reached(at: float) -> float:
        found = scores_at(confusion_at(score, positive, at))[f"{goal}_at_threshold"]
        assert found is not None
        return found

    every = [
        float(torch.tensor(least, dtype=torch.float64).sigmoid()) for least in (-3, -1.5, -0.5, 0.5, 1.5)
    ]
    assert reached(threshold) == pytest.approx(max(map(reached, every)))


def test_a_threshold_lies_between_two_scores_and_a_given_one_stays() -> None:
    score, positive = torch.tensor([2.0, 1.0, -1.0]), torch.tensor([True, True, False])
    assert find_threshold(score, positive, "f1") == pytest.approx(0.5)
    assert is_predicted(score, 0.5).tolist() == [True, True, False]
    assert find_threshold(score, positive, 0.9) == 0.9
    assert find_threshold(torch.tensor([1.0, 0.0]), torch.tensor([False, True]), "f1") == 0.0, "all"


def test_scores_at_a_threshold_are_those_worked_out_by_hand() -> None:
    found = scores_at(torch.tensor([[6, 2], [1, 3]]))
    assert found == {
        "accuracy_at_threshold": 9 / 12,
        "balanced_accuracy_at_threshold": (6 / 8 + 3 / 4) / 2,
        "f1_at_threshold": 2 * 3 / (4 + 5),
        "precision_at_threshold": 3 / 5,
        "recall_at_threshold": 3 / 4,
    }
    assert set(scores_at(torch.zeros(2, 2, dtype=torch.int64)).values()) == {None}


def test_curves_pass_all_thresholds_and_thin_long_ones() -> None:
    score, positive = torch.tensor([0.9, 0.8, 0.8, 0.1]), torch.tensor([True, False, True, False])
    found = ThresholdCounts.of(score, positive).curves()
    assert found["pr"] == {"recall": [0.5, 1.0, 1.0], "precision": [1.0, pytest.approx(2 / 3), 0.5]}
    assert found["roc"] == {"fpr": [0.0, 0.0, 0.5, 1.0], "tpr": [0.0, 0.5, 1.0, 1.0]}
    many = torch.arange(100_000.0)
    long = ThresholdCounts.of(many, many % 7 == 0).curves()["pr"]["recall"]
    assert len(long) <= 400
    assert (long[0], long[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(("positive", "kind"), [(1, "class"), (None, "class")])
def test_the_scores_of_a_constant_are_those_of_equal_outputs(positive: int | None, kind: Any) -> None:
    scorer, y = Scorer(kind, 2, positive, at_k=3), torch.tensor([0, 0, 0, 1])
    out = torch.tensor([[1.0, 0.0]]).repeat(4, 1)
    found = scorer.of_constant(torch.bincount(y).double(), 0)
    wanted = scorer.of_counts(scorer.count(out, y, torch.arange(4)))
    wanted |= scorer.ranked(scorer.columns(out), scorer.outcomes(y), NEED_ALL_ROWS)
    assert found == pytest.approx(wanted)
