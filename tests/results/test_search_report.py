"""The report of a search is one safe HTML file that says what its trials say."""

from pathlib import Path
from typing import Any

import pytest
from report_page import Page
from test_report import EVIL

from siafu.checksums import add_fields_checksum
from siafu.results.report import write_search_report
from siafu.results.search import read_search


def trial(number: int, state: str, score: float | None, **more: Any) -> dict[str, Any]:
    fields = {"number": number, "settings": {"model.hidden": 8 * number}, "val_score": score, "state": state}
    curve = [] if score is None else [[5, score / 2], [10, score]]
    return {**fields, "seconds": 1.5, "recipe": "", "message": "", "curve": curve, **more}


def write(folder: Path, **changed: Any) -> Path:
    fields = {
        "data": "villages",
        "method": "full",
        "metric": "accuracy",
        "higher_is_better": True,
        "fixed": {"train.epochs": 10},
        "space": [["model.hidden", [8, 16, 24, 32], []]],
        "trials": [
            trial(1, "completed", 0.7, recipe="defaults"),
            trial(2, "completed", 0.9),
            trial(3, "pruned", 0.4),
            trial(4, "failed", None, message=f"the loss is nan {EVIL}"),
        ],
        "best": 2,
        "test_score": 0.85,
        "importance": {"model.hidden": 0.75, "train.lr": 0.25},
        "seconds": 6.0,
    }
    (folder / "search.json").write_text("{}")
    (folder / "trials.json").write_bytes(add_fields_checksum({**fields, **changed}))
    return folder


def report(folder: Path) -> Page:
    write_search_report(read_search(folder), folder / "report.html")
    return Page(folder / "report.html")


def test_it_says_how_many_candidates_were_compared_and_which_is_best(tmp_path: Path) -> None:
    text = report(write(tmp_path)).text
    assert "Search on villages: 3 trials compared" in text
    assert "3 trials, by the validation score (2 completed, 1 stopped early, 1 failed)" in text
    assert "90.0 %" in text
    assert "85.0 %" in text
    assert "Test nodes were scored for this trial alone" in text
    assert text.index("2, best") < text.index("defaults") < text.index("the loss is nan")


def test_figures_show_scores_curves_and_importance(tmp_path: Path) -> None:
    figures = report(write(tmp_path)).figures
    completed, pruned, best = figures["progress"]["data"]
    assert (completed["x"], pruned["x"]) == ([1, 2], [3])
    assert (best["x"], best["y"]) == ([1, 2], [0.7, 0.9])
    assert len(figures["curves"]["data"]) == 3
    assert figures["curves"]["data"][-1]["line"]["width"] == 3
    assert figures["importance"]["data"][0]["x"] == [0.25, 0.75]


def test_the_best_so_far_falls_where_lower_is_better(tmp_path: Path) -> None:
    trials = [trial(1, "completed", 0.7), trial(2, "completed", 0.9), trial(3, "completed", 0.5)]
    folder = write(tmp_path, metric="mae", higher_is_better=False, best=3, trials=trials)
    assert report(folder).figures["progress"]["data"][2]["y"] == [0.7, 0.7, 0.5]


def test_nothing_of_a_trial_becomes_markup(tmp_path: Path) -> None:
    page = report(write(tmp_path, data=EVIL, fixed={EVIL: EVIL}))
    assert all(tag != "img" for tag, _ in page.tags)


def test_a_search_with_few_trials_has_no_importance(tmp_path: Path) -> None:
    page = report(
        write(tmp_path, importance={}, trials=[trial(1, "interrupted", None)], best=None, test_score=None)
    )
    assert "importance" not in page.figures
    assert "No trial is completed yet." in page.text


def test_damaged_trials_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path) / "trials.json"
    file.write_text(file.read_text().replace("0.9", "0.99"))
    with pytest.raises(ValueError, match=r"trials\.json: changed or damaged"):
        read_search(tmp_path)
