"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.results.format import fmt_bytes, fmt_metric, fmt_score, fmt_seconds, fmt_value


def test_accuracy_is_in_per_cent_and_other_scores_are_not() -> None:
    assert fmt_score(0.8154, "accuracy") == "81.5 %"
    assert fmt_score(0.8154, "accuracy", std=0.0049) == "81.5 ± 0.5 %"
    assert fmt_score(0.81543, "macro_f1") == "0.8154"
    assert fmt_score(None, "accuracy") == fmt_score(math.nan, "mae") == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0005, "0.50 ms"),
        (0.0123, "12.3 ms"),
        (1.5, "1.50 s"),
        (59.96, "1 min 0 s"),
        (7500.0, "2 h 5 min"),
        (None, "–"),
    ],
)
def test_seconds_have_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert fmt_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "0.98 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (2**50, "1024 TiB"),
        (None, "–"),
    ],
)
def test_bytes_have_the_unit_that_fits(count: float | None, text: str) -> None:
    assert fmt_bytes(count) == text


def test_values_are_shown_by_what_their_key_names() -> None:
    assert fmt_value(2**30, "memory_bytes") == "1.00 GiB"
    assert fmt_value(12345, "train.seed") == "12345"
    assert fmt_value(1234567) == "1\u202f234\u202f567"
    assert [fmt_value(value) for value in (True, None, 0.1, [1, 2], [], {"a": 1})] == [
        "yes",
        "–",
        "0.1",
        "1, 2",
        "none",
        "a 1",
    ]


def test_metrics_have_their_names() -> None:
    assert [fmt_metric(name) for name in ("accuracy", "macro_f1", "roc_auc")] == [
        "accuracy",
        "macro F1",
        "ROC-AUC",
    ]


@given(st.floats(0, 1e9))
def test_any_time_can_be_shown(seconds: float) -> None:
    assert any(unit in fmt_seconds(seconds) for unit in ("ms", "s", "min", "h"))
