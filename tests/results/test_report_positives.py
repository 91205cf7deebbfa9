"""The part of a report about the positive class: curves, calibration, threshold; and events that are odd."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_page import JSON, Make, report
from written_run import write_run

from siafu.event_log import EventLog
from siafu.results.read import read_run
from siafu.results.report.run import run_page

CURVES: dict[str, Any] = {
    "positive_class": "fraud",
    "pr": {"recall": [0.5, 1.0, 1.0], "precision": [1.0, 0.5, 0.25]},
    "roc": {"fpr": [0.0, 0.0, 0.5, 1.0], "tpr": [0.0, 0.5, 1.0, 1.0]},
    "calibration": [[6, 0, 2], [0.6, 0.0, 1.5], [1, 0, 1]],
    "threshold": 0.25,
    "confusion": [[5, 1], [0, 2]],
}
METRICS: dict[str, Any] = {
    **{
        "metric": "average_precision",
        "test_score": 0.75,
        "test_average_precision": 0.75,
        "test_roc_auc": 0.9,
    },
    **{"threshold": 0.25, "threshold_rule": "f1", "positive_class": "fraud", "test_f1": 0.1},
    **{"test_f1_at_threshold": 0.8, "test_recall_at_threshold": 1.0, "test_precision_at_threshold": 2 / 3},
    **{"test_accuracy_at_threshold": 0.875, "test_balanced_accuracy_at_threshold": 0.9},
}


def with_curves(folder: Path, event: dict[str, Any]) -> Path:
    events = EventLog(folder / "events.jsonl")
    events.write("curves", **event)
    events.close()
    return folder


def test_the_curves_of_the_positive_class_are_drawn(make_run: Make) -> None:
    page = report(with_curves(make_run(metrics=METRICS), CURVES))
    assert {"run-pr", "run-roc", "run-calibration"} <= set(page.figures)
    curve, at = page.figures["run-pr"]["data"]
    assert (curve["x"], curve["y"]) == (CURVES["pr"]["recall"], CURVES["pr"]["precision"])
    assert curve["name"] == "average precision 0.75"
    assert (at["x"], at["y"], at["name"]) == ([1.0], [2 / 3], "threshold 0.25")
    assert page.figures["run-roc"]["data"][0]["name"] == "ROC-AUC 0.9"
    bins = page.figures["run-calibration"]["data"][0]
    assert bins["x"] == pytest.approx([0.1, 0.75])
    assert bins["y"] == pytest.approx([1 / 6, 0.5], rel=1e-5)
    assert bins["text"] == ["6", "2"], "a bin without rows is left out"


def test_the_threshold_is_compared_with_one_half(make_run: Make) -> None:
    text = report(with_curves(make_run(metrics=METRICS), CURVES)).text
    for part in (
        "Class fraud",
        "Predicted fraud from a probability of 0.25 on (best F1 of the validation rows).",
        "at the threshold",
        "at 0.5",
        "87.5 %",
        "not predicted fraud",
    ):
        assert part in text


def test_without_a_threshold_the_curves_stand_alone(make_run: Make) -> None:
    event = {key: value for key, value in CURVES.items() if key not in ("threshold", "confusion")}
    page = report(with_curves(make_run(metrics={"metric": "accuracy"}), event))
    assert len(page.figures["run-pr"]["data"]) == 1
    assert "at the threshold" not in page.text


def test_a_run_without_a_positive_class_shows_none_of_it(make_run: Make) -> None:
    page = report(make_run())
    assert not {"run-pr", "run-roc", "run-calibration"} & set(page.figures)


@given(key=st.sampled_from(sorted(CURVES)), value=JSON)
def test_whatever_the_curves_hold_a_page_is_made(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    folder = write_run(tmp_path_factory.mktemp("odd") / "run", epochs=2, metrics=METRICS)
    record = read_run(with_curves(folder, CURVES | {key: value}))
    assert "</section>" in run_page(record)


@given(
    key=st.sampled_from(["threshold", "threshold_rule", "test_f1_at_threshold", "positive_class"]), value=JSON
)
def test_whatever_the_metrics_of_a_threshold_hold_a_page_is_made(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    folder = write_run(tmp_path_factory.mktemp("odd") / "run", epochs=2, metrics=METRICS | {key: value})
    assert "</section>" in run_page(read_run(with_curves(folder, CURVES)))
