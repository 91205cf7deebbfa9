"""The report is one safe HTML file that says what the run's files say."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_page import JSON, Make, report
from written_run import GRAPH, epoch_fields, write_run

from siafu.event_log import EventLog
from siafu.results.read import read_run
from siafu.results.record import ConfusionMatrix, Epochs
from siafu.results.report import write_report
from siafu.results.report.classes import class_bars, confusion_map, row_shares
from siafu.results.report.comparison import comparison
from siafu.results.report.curves import thin
from siafu.results.report.frame import unique
from siafu.results.report.run import run_page

EVIL = "</script><img src=x onerror=alert(1)><b>%{x}"


def test_the_headline_shows_the_test_score_beside_the_model_without_the_graph(make_run: Make) -> None:
    text = report(make_run(metrics={"test_score": 0.815})).text
    for part in ("GCN on cora", "test accuracy", "81.5 %", "MLP, without the graph", "57.0 %", "best epoch"):
        assert part in text


def test_the_report_loads_nothing(make_run: Make) -> None:
    page = report(make_run())
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "base")
        assert not {"src", "href"} & set(attributes)
    policies = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies
    assert str(policies[0]).startswith("default-src 'none'")


def test_the_figures_hold_what_the_files_hold(make_run: Make) -> None:
    page = report(make_run(epochs=12))
    expected = {"score", "loss", "confusion", "classes", "time", "memory"}
    assert set(page.figures) == {f"run-{name}" for name in expected}
    loss = page.figures["run-loss"]["data"][0]
    assert loss["x"] == list(range(1, 13))
    assert loss["y"] == pytest.approx([epoch_fields(epoch)["loss"] for epoch in range(1, 13)], rel=1e-5)
    assert [trace["name"] for trace in page.figures["run-score"]["data"]] == [
        "training",
        "validation",
        "test",
    ]
    best = read_run(make_run("same", epochs=12)).best_epoch
    assert page.figures["run-score"]["layout"]["shapes"][0]["x0"] == best
    confusion = page.figures["run-confusion"]["data"][0]
    assert confusion["z"] == [[0.8, 0.1, 0.1], [0.25, 0.75, 0], [None, None, None]]
    assert confusion["customdata"][0] == [8, 1, 1]


def test_every_figure_has_a_place_on_the_page(make_run: Make) -> None:
    page = report(make_run("a"), make_run("b", seed=1), make_run("c", hidden=32))
    places = [a["id"] for tag, a in page.tags if a.get("class") == "plot"]
    assert sorted(places) == sorted(page.figures)
    assert len(set(places)) == len(places)


def test_bytes_are_shown_only_where_some_were_sent(make_run: Make) -> None:
    assert "run-bytes" not in report(make_run("a", metrics={"bytes_by_label": {"halo": 0}})).figures
    bars = report(make_run("b", metrics={"bytes_by_label": {"halo": 2**20, "none": 0}})).figures["run-bytes"]
    assert (bars["data"][0]["y"], bars["data"][0]["text"]) == (["halo"], ["1.00 MiB"])


def test_settings_graph_machine_and_the_reason_of_the_stop_are_listed(make_run: Make) -> None:
    text = report(make_run()).text
    for part in (
        "train.weight_decay",
        "0.0005",
        "Example CPU",
        "8.00 GiB",
        "2708",
        "all epochs were trained",
    ):
        assert part in text


def test_text_from_files_is_never_markup(make_run: Make) -> None:
    folder = make_run(
        class_names=[EVIL, "b", "c"],
        graph=GRAPH | {"name": EVIL, EVIL: EVIL},
        metrics={"model": EVIL, "metric": EVIL, "bytes_by_label": {EVIL: 7}, "baseline": {"model": EVIL}},
    )
    (folder / "config.toml").write_text(f"\"{EVIL}\" = '{EVIL}'")
    events = EventLog(folder / "events.jsonl")
    events.write("stop", reason=EVIL)
    events.close()
    other = make_run("<i>other<i>", graph={"name": EVIL})
    for page in (report(folder), report(folder, other)):
        assert not {"img", "i"} & {tag for tag, _ in page.tags}
        assert EVIL in page.text or EVIL.upper() in page.text
        assert "<b>" not in json.dumps(page.figures).replace("<br>", "")
        assert "<img" not in json.dumps(page.figures)


def test_a_loss_that_is_not_a_number_leaves_a_gap(make_run: Make) -> None:
    folder = make_run(epochs=2)
    events = EventLog(folder / "events.jsonl")
    events.write("epoch", **epoch_fields(3) | {"loss": math.nan, "seconds": math.inf})
    events.close()
    page = report(folder)
    assert page.figures["run-loss"]["data"][0]["y"][2] is None
    assert page.figures["run-time"]["data"][0]["y"][2] is None


def test_runs_that_differ_only_in_seed_get_mean_and_deviation(make_run: Make) -> None:
    runs = [make_run(f"s{seed}", seed=seed) for seed in range(3)]
    page = report(*runs, make_run("wide", hidden=64))
    assert "81.0 ± 1.0 %" in page.text
    assert "4 runs of GCN on cora" in page.text
    curves = page.figures["all-val_score"]["data"]
    assert [trace["showlegend"] for trace in curves] == [True, False, False, True]
    assert curves[0]["line"]["color"] == curves[1]["line"]["color"] != curves[3]["line"]["color"]


def test_a_comparison_lists_the_settings_that_differ(make_run: Make) -> None:
    text = report(make_run("narrow", hidden=16), make_run("wide", hidden=64)).text
    differing = text[text.index("Configuration and machine") : text.index("What they share")]
    assert "model.hidden" in differing
    assert "train.lr" not in differing


def test_an_unfinished_run_without_an_epoch_is_still_reported(make_run: Make) -> None:
    folder = make_run()
    (folder / "metrics.json").unlink()
    (folder / "events.jsonl").write_text('{"time":1.0,"phase":"sta')
    page = report(folder)
    assert page.figures == {}
    for part in ("No epoch was trained", "still running, or killed", "cut off", "unfinished"):
        assert part in page.text
    assert "unfinished" in report(folder, make_run("other")).text


def test_a_damaged_run_is_marked_on_its_page_and_among_others(make_run: Make) -> None:
    folder, whole = make_run("broken"), make_run("whole")
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"loss":', b'"lost":', 1))
    (folder / "config.toml").write_text("seed = 7\n")
    text = report(folder).text
    for part in ("This run is damaged", "events.jsonl, line 2: changed", "config.toml: changed or damaged"):
        assert part in text
    assert "damaged" not in report(whole).text
    both = report(folder, whole).text
    assert both.count("This run is damaged") == 1
    assert both.count("done, damaged") == 1


def test_groups_of_several_seeds_are_named_by_their_model_and_folder(make_run: Make) -> None:
    runs = [
        make_run(f"{model}-run/seed-{seed}", seed=seed, metrics={"model": model})
        for model in ("gcn", "sage")
        for seed in range(3)
    ]
    page = report(*runs)
    names = ["GCN, gcn-run (3 seeds)", "SAGE, sage-run (3 seeds)"]
    for name in names:
        assert name in page.text
    legend = {trace["name"] for trace in page.figures["all-val_score"]["data"] if trace.get("name")}
    assert set(names) <= legend
    assert "sage-run/seed-1" in page.text
    apart = report(make_run("a", seed=0), make_run("b", seed=1)).text
    assert "GCN, a … b (2 seeds)" in apart


def test_a_regression_has_no_classes_and_its_error_is_no_percentage(make_run: Make) -> None:
    folder = make_run(metrics={"metric": "mae", "test_score": 3.14159})
    events = EventLog(folder / "events.jsonl")
    events.write("result", score={"test": 3.14159})
    events.close()
    page = report(folder)
    assert "run-confusion" not in page.figures
    assert "3.142" in page.text
    assert page.figures["run-score"]["layout"]["shapes"][0]["x0"] == 1


@given(
    key=st.sampled_from(["baseline", "bytes_by_label", "dollars", "metric", "model", "seed", "test_score"]),
    value=JSON,
)
def test_whatever_metrics_hold_a_page_is_made(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    folder = write_run(tmp_path_factory.mktemp("odd") / "run", epochs=2, metrics={key: value})
    record = read_run(folder)
    assert "</section>" in run_page(record)
    assert "</section>" in comparison([record, record])


@pytest.mark.parametrize("count", [1, 7, 47, 172])
def test_any_number_of_classes_makes_a_map(count: int) -> None:
    names = tuple(f"the class of things number {i}" for i in range(count))
    result = ConfusionMatrix(np.eye(count, dtype=np.int64) * 5, names)
    figure = confusion_map(result)
    trace = figure["data"][0]
    assert len(set(trace["x"])) == count  # shortened names stay apart
    assert len(figure["layout"]["annotations"]) == (count if count <= 10 else 0)
    assert trace["showscale"] == (count > 10)
    assert 360 <= figure["layout"]["height"] <= 940
    assert class_bars(result)["data"][0]["type"] == ("bar" if count <= 40 else "scatter")


def test_a_failed_write_leaves_the_old_report_and_nothing_else(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run()
    out = folder / "report.html"
    out.write_text("old")
    before = sorted(folder.iterdir())

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_report([read_run(folder)], out)
    assert out.read_text() == "old"
    assert sorted(folder.iterdir()) == before


def test_a_report_needs_a_run_and_the_name_of_a_file(make_run: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(ValueError, match="is a folder"):
        write_report([read_run(make_run())], tmp_path)
    with pytest.raises(ValueError, match="there is no folder"):
        write_report([read_run(tmp_path / "runs" / "first")], tmp_path / "no" / "report.html")


@given(st.integers(0, 30_000))
def test_long_runs_are_thinned_evenly_and_keep_their_last_epoch(count: int) -> None:
    column = np.arange(1.0, count + 1)
    rows = thin(Epochs(column.astype(np.int64), *[column] * 10))
    assert len(rows) <= 2001
    assert rows.tolist() == sorted(set(rows.tolist()))
    if count:
        assert (rows[0], rows[-1]) == (0, count - 1)
        assert len(set(np.diff(rows[:-1]).tolist())) <= 1


@given(st.lists(st.sampled_from(["a", "a (2)", "b", "a (3)"]), max_size=8))
def test_repeated_labels_are_numbered_apart(labels: list[str]) -> None:
    found = unique(labels)
    assert len(set(found)) == len(labels)
    assert all(new.startswith(old) for old, new in zip(labels, found, strict=True))


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=3, max_size=3))
def test_the_shares_of_a_class_add_up_to_one(counts: list[list[int]]) -> None:
    share = row_shares(np.array(counts))
    for row, count in zip(share, counts, strict=True):
        assert np.isnan(row).all() if sum(count) == 0 else row.sum() == pytest.approx(1)


CHANGE = {
    "edges": [3, 5, 4],
    "added": [3, 2, 1],
    "removed": [0, 0, 2],
    "active": [4, 5, 5],
    "arrived": [4, 1, 0],
}
SAMPLES = {"split": ["val", "val", "test", "test"], "step": [5, 6, 7, 8], "score": [0.1, None, 0.2, 0.3]}
BLOCKS = {"steps": [2, 1], "planned_bytes": [2000, 1500], "rss_bytes": [300_000_000, 290_000_000]}


def with_events(folder: Path, **events: dict[str, Any]) -> Path:
    writer = EventLog(folder / "events.jsonl")
    for phase, fields in events.items():
        writer.write(phase, **fields)
    writer.close()
    return folder


def test_a_run_over_time_shows_how_the_graph_changes_how_good_each_step_is_and_what_blocks_take(
    make_run: Make,
) -> None:
    page = report(with_events(make_run(), change=CHANGE, samples=SAMPLES, blocks=BLOCKS))
    assert "Over time" in page.text
    edges = page.figures["run-edges"]
    assert [trace["y"] for trace in edges["data"]] == [CHANGE["edges"], CHANGE["added"], CHANGE["removed"]]
    assert edges["layout"]["xaxis"]["title"]["text"] == "step"
    assert [trace["y"] for trace in page.figures["run-nodes"]["data"]] == [
        CHANGE["active"],
        CHANGE["arrived"],
    ]
    scores = {trace["name"]: (trace["x"], trace["y"]) for trace in page.figures["run-steps"]["data"]}
    assert scores == {"validation": ([5, 6], [0.1, None]), "test": ([7, 8], [0.2, 0.3])}
    held = [trace["x"] for trace in page.figures["run-blocks"]["data"]]
    assert held == [BLOCKS["planned_bytes"], BLOCKS["rss_bytes"]]


def test_a_run_that_knows_no_steps_says_nothing_of_time(make_run: Make) -> None:
    assert "Over time" not in report(make_run()).text


@pytest.mark.parametrize(
    "events",
    [
        {"change": {"edges": EVIL, "active": [1]}},
        {"change": CHANGE | {"edges": [1, -1, EVIL]}, "samples": SAMPLES | {"score": [1.0]}},
        {
            "samples": {"split": [EVIL] * 2, "step": [1, 2], "score": [EVIL, 1]},
            "blocks": {"steps": [1] * 999},
        },
        {"blocks": {"steps": [2, 1], "rss_bytes": [1]}},
    ],
)
def test_steps_and_blocks_that_make_no_sense_are_left_out(make_run: Make, events: dict[str, Any]) -> None:
    page = report(with_events(make_run(), **events))
    assert not {"run-edges", "run-steps", "run-blocks"} & set(page.figures)
