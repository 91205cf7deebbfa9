"""Scores against cases worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siafu.training import metrics


def test_accuracy_and_f1_of_classes_are_those_worked_out_by_hand() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 2])
    found = metrics.of_classes(metrics.count_classes(torch.tensor([0, 0, 1, 1, 0, 2]), y, 3))
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["micro_f1"] == pytest.approx(4 / 6)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)  # class 0: P = R = 2/3; 1: 1/2; 2: 1


def test_a_class_that_nobody_has_and_nobody_guessed_is_left_out_of_macro_f1() -> None:
    found = metrics.of_classes(metrics.count_classes(torch.tensor([0, 1]), torch.tensor([0, 1]), 3))
    assert found["macro_f1"] == 1.0


def test_a_class_that_is_only_guessed_counts_as_zero_in_macro_f1() -> None:
    found = metrics.of_classes(metrics.count_classes(torch.tensor([0, 2]), torch.tensor([0, 1]), 3))
    assert found["macro_f1"] == pytest.approx(1 / 3)


def test_f1_of_many_labels_is_that_worked_out_by_hand() -> None:
    out = torch.tensor([[1.0, -1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, 1.0, -1.0]])
    y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    found = metrics.of_labels(metrics.count_labels(out, y))
    assert found["micro_f1"] == pytest.approx(2 * 2 / (4 + 2))  # 2 hits, 4 guessed, 2 true
    assert found["macro_f1"] == pytest.approx(2 / 3)  # 2/3 in both columns that are there


def test_many_labels_without_any_label_or_guess_score_zero() -> None:
    found = metrics.of_labels(metrics.count_labels(torch.full((2, 2), -1.0), torch.zeros(2, 2)))
    assert found == {"micro_f1": 0.0, "macro_f1": 0.0}


def test_confusion_has_true_classes_as_rows() -> None:
    matrix = metrics.confusion(torch.tensor([1, 1, 0]), torch.tensor([0, 1, 0]), 2)
    assert matrix.tolist() == [[1, 1], [0, 1]]


def test_roc_auc_counts_pairs_in_the_right_order() -> None:
    score = torch.tensor([[0.1], [0.4], [0.35], [0.8]])
    y = torch.tensor([[0], [0], [1], [1]])
    assert metrics.roc_auc(score, y) == pytest.approx(3 / 4)


def test_roc_auc_counts_a_tie_as_one_half() -> None:
    score = torch.tensor([[0.5], [0.5], [0.9]])
    y = torch.tensor([[0], [1], [1]])
    assert metrics.roc_auc(score, y) == pytest.approx((1 / 2 + 1) / 2)


def test_roc_auc_of_equal_scores_is_one_half() -> None:
    assert metrics.roc_auc(torch.zeros(5, 1), torch.tensor([[0], [1], [0], [1], [1]])) == 0.5


def test_roc_auc_leaves_out_columns_with_one_outcome_and_is_undefined_without_any() -> None:
    score = torch.tensor([[0.1, 0.3], [0.9, 0.2]])
    assert metrics.roc_auc(score, torch.tensor([[0, 1], [1, 1]])) == 1.0
    assert metrics.roc_auc(score, torch.ones(2, 2, dtype=torch.int64)) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_roc_auc_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    positive = [score for score, label in rows if label]
    negative = [score for score, label in rows if not label]
    found = metrics.roc_auc(
        torch.tensor([[float(score)] for score, _ in rows]), torch.tensor([[int(label)] for _, label in rows])
    )
    if not positive or not negative:
        assert found is None
        return
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    assert found == pytest.approx(won / (len(positive) * len(negative)))
