"""The harness of benchmarks/suite.py: its plan of runs, resumption, and the table's differences and errors."""

import json
import subprocess
import sys
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import suite
import suite_report
import suite_runs
from suite_runs import DataSet, SuiteRun, plan_runs

from siafu.config import build, read_toml


def write_set(
    path: Path, *, folds: int = 0, features: bool = True, labels: int = 0, validation: bool = True
) -> None:
    """A ring of 20 nodes, of which the last has no label; ``folds`` 0: one split."""
    nodes = np.arange(20)
    y = np.where(nodes < 19, nodes % 2, -1)
    shape = (20, folds) if folds else (20,)
    masks = {name: np.zeros(shape, dtype=bool) for name in ("train_mask", "val_mask", "test_mask")}
    masks["train_mask"][:8], masks["val_mask"][8:12], masks["test_mask"][12:] = True, validation, True
    arrays: dict[str, Any] = {"x": np.eye(20, dtype=np.float32)} if features else {}
    arrays["y"] = (nodes[:, None] % (labels + 1) == np.arange(labels)).astype(np.uint8) if labels else y
    np.savez(path, edge_index=np.stack([nodes, (nodes + 1) % 20]), num_nodes=20, **arrays, **masks)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of three sets, and two files that are none."""
    folder = tmp_path / "home"
    folder.mkdir()
    write_set(folder / "one.npz")
    write_set(folder / "several.npz", folds=4, features=False)
    write_set(folder / "labels.npz", folds=2, labels=3)
    np.savez(folder / "pairs.npz", edge_index=np.zeros((2, 0), dtype=np.int64), num_nodes=3)
    np.savez(folder / "targets.npz", y=np.zeros(3), **dict.fromkeys(suite_runs._MASKS, np.ones(3, bool)))
    monkeypatch.setattr(suite_runs, "DATA_HOME", folder)
    return folder


def sets_of(home: Path) -> dict[str, DataSet]:
    return {each.name: each for each in suite_runs.read_sets(home)}


def record(
    kind: str, score: float | None, *, fold: int = 0, seed: int = 0, seconds: float = 2.0, **more: Any
) -> dict[str, Any]:
    """A run of the set "a" that ended."""
    metrics = {"test_score": score, "metric": "accuracy"}
    base = {"set": "a", "split": "public", "fold": fold, "seed": seed, "kind": kind, "trials": 0}
    sizes = {"nodes": 500, "features": 10, "train_nodes": 100, "val_nodes": 100, "test_nodes": 2400}
    return base | sizes | {"seconds": seconds, "metrics": metrics} | more


def test_the_settings_file_is_a_config_that_names_its_values() -> None:
    config = build(read_toml(suite_runs.KIPF))
    assert (config.model.kind, config.model.hidden, config.model.layers, config.model.norm) == (
        "gcn",
        64,
        2,
        "none",
    )
    assert (config.train.lr, config.train.weight_decay, config.train.patience) == (0.01, 5e-4, 100)
    assert config.data.normalize == "rows"


def test_sets_are_found_by_their_labels_and_splits(home: Path) -> None:
    sets = sets_of(home)
    assert set(sets) == {"one", "several", "labels"}
    assert [sets[name].folds for name in ("one", "several", "labels")] == [1, 4, 2]
    assert [sets[name].features for name in ("one", "several", "labels")] == [20, 0, 20]
    assert sets["one"].counts("public", 0) == {"train_nodes": 8, "val_nodes": 4, "test_nodes": 7}
    assert sets["one"].counts("random", 2) == {"train_nodes": 11, "val_nodes": 4, "test_nodes": 4}


def test_public_folds_are_stored_splits_or_seeds_and_random_ones_are_three(home: Path) -> None:
    how: dict[str, Any] = {"kinds": ("default", "tune"), "splits": ("public", "random"), "trials": 5}
    runs = plan_runs(sets_of(home).values(), folds=3, **how)

    def places(name: str, split: str, kind: str) -> list[tuple[int, int]]:
        found = [run for run in runs if (run.set, run.split, run.kind) == (name, split, kind)]
        return [(run.fold, run.seed) for run in found]

    assert places("one", "public", "default") == [(0, 0), (0, 1), (0, 2)]
    assert places("several", "public", "default") == [(0, 0), (1, 0), (2, 0)]
    assert places("labels", "public", "default") == [(0, 0), (1, 0)]
    assert places("one", "random", "default") == [(0, 0), (1, 1), (2, 2)]
    assert places("several", "random", "tune") == places("one", "public", "tune") == [(0, 0)]
    assert [run.kind for run in runs[-6:]] == ["tune"] * 6


def test_a_split_without_validation_nodes_has_no_tune(tmp_path: Path) -> None:
    write_set(tmp_path / "blind.npz", validation=False)
    how: dict[str, Any] = {"kinds": ("default", "tune"), "splits": ("public", "random"), "trials": 5}
    runs = plan_runs(sets_of(tmp_path).values(), folds=1, **how)
    assert [run.split for run in runs if run.kind == "tune"] == ["random"]
    text = suite_report.report([record("default", 0.8, val_nodes=0), record("default", 0.8, set="b")])
    assert "no validation nodes, so no tune: a public\n" in text


def test_commands_are_those_that_a_user_types(tmp_path: Path) -> None:
    begin = [sys.executable, "-m", "siafu"]
    default = SuiteRun("cora", "public", 0, 0, "default").command(tmp_path)
    assert default[:-1] == [*begin, "train", "cora", "--json", "--out"]
    kipf = SuiteRun("cora", "random", 2, 2, "kipf").command(tmp_path)
    assert kipf[3:7] == ["train", str(tmp_path / "random/cora.npz"), "--config", str(suite_runs.KIPF)]
    assert kipf[-7:-1] == ["--set", "data.fold=2", "--seed", "2", "--json", "--out"]
    tune = SuiteRun("cora", "public", 0, 0, "tune", 20).command(tmp_path)
    assert tune[3:-1] == ["tune", "cora", "--trials", "20", "--json", "--out"]


def test_random_splits_take_the_place_of_stored_ones(home: Path, tmp_path: Path) -> None:
    from siafu import load

    for each in sets_of(home).values():
        suite_runs.write_random_splits(each, tmp_path, home)
        folds = [load(tmp_path / "random" / f"{each.name}.npz", fold=fold) for fold in range(3)]
        masks = [graph.train_mask for graph in folds]
        assert not (masks[0] == masks[1]).all()
        assert not (masks[1] == masks[2]).all()
        share = each.labelled.sum() * 3 // 5
        assert [int(mask.sum()) for mask in masks] == [share] * 3


def test_differences_are_paired_and_have_standard_errors() -> None:
    records = [
        *(record("default", score, fold=fold) for fold, score in enumerate((0.80, 0.82, 0.87))),
        *(record("kipf", score, fold=fold) for fold, score in enumerate((0.79, 0.80, 0.84))),
        record("kipf", 0.10, fold=7),  # without a default run beside it
        record("tune", 0.835, trials=20),
    ]
    (row,) = suite_report.rows_of(records)
    gain = row.difference("default", "kipf")
    assert gain is not None
    assert (gain.mean, gain.error, gain.count) == pytest.approx((2.0, 1 / sqrt(3), 3))
    shortfall = row.difference("tune", "default")
    assert shortfall is not None
    assert (shortfall.mean, shortfall.error) == (pytest.approx(3.5), None)
    assert row.difference("smooth", "default") is None
    assert row.test_error == pytest.approx(100 * sqrt(0.83 * 0.17 / 2400))


def test_the_table_and_its_summary() -> None:
    recipe = {"test_score": 0.9, "metric": "micro_f1", "recipe": "wide"}
    records = [
        record("default", 0.80, seconds=3),
        record("default", 0.84, seed=1, seconds=5),
        record("off", 0.80, seconds=2),
        record("off", 0.80, seed=1, seconds=2),
        record("kipf", 0.81),
        record("tune", 0.83),
        record("default", 0.9, set="b", train_nodes=5000, nodes=200_000, metrics=recipe),
        record("off", 0.9, set="b", train_nodes=5000, nodes=200_000, seconds=1.6),
        record("kipf", 0.86, set="b", train_nodes=5000, nodes=200_000),
        record("tune", 0.91, set="b", train_nodes=5000, nodes=200_000),
        record("default", 0.5, set="bare", features=0),
        record("tune", 0.9, set="bare", features=0),
        record("default", None, set="untested"),
    ]
    lines = suite_report.report(records).splitlines()
    assert lines[0].startswith(
        "| set | split | train | default | kipf | off | tune | test ± | tune - default |"
    )
    scores = "| a | public | 100 | 82.00 ±2.8 | 81.00 | 80.00 ±0.0 | 83.00 | 0.8 | +3.00 | -1.00 |"
    assert f"{scores}  | 4.0 | 2.0 | 2.0 | 2.0 |  |" in lines
    assert any(
        line.startswith("| b (micro_f1) | public | 5,000 |") and "| wide x1 |" in line for line in lines
    )
    assert [line.split(" | ")[0] for line in lines[2:6]] == ["| a", "| b (micro_f1)", "| untested", "| bare"]
    assert (
        "tune - default, sets with features: mean +2.00 ±1.00 over 2 rows; worst +3.00 (a public, test ±0.8)"
        in lines
    )
    assert (
        "default - kipf, more than 1,000 training nodes: mean +4.00 over 1 rows; worst +4.00 (b public)"
        in lines
    )
    assert "seconds of default / off, below 100,000 nodes: median 2.00, most 2.00 (a public)" in lines
    assert "seconds of default / off, from 100,000 nodes: median 1.25, most 1.25 (b public)" in lines
    assert lines[-1] == "failed runs: 0"


def test_failed_runs_are_listed_until_they_succeed() -> None:
    failed = {**record("kipf", None), "error": "no such setting"}
    failed.pop("metrics")
    other = failed | {"fold": 3}
    text = suite_report.report([failed, other, record("default", 0.8), record("kipf", 0.7)])
    assert "failed runs: 1\n  a public 3 0 kipf: no such setting" in text
    assert "| a | public | 100 | 80.00 | 70.00 |" in text


def run_suite(home: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[list[str]]:
    """The arguments of the commands that a suite runs; a fake runs them."""
    commands: list[list[str]] = []

    def fake(command: list[str]) -> dict[str, Any]:
        commands.append(command[3:])
        if "--config" in command:
            raise RuntimeError("siafu ended with exit code 1:\nprogress\nerror: a message\n")
        return {"test_score": 0.5, "metric": "accuracy", "whole_seconds": 1.0}

    monkeypatch.setattr(suite_runs, "run_command", fake)
    monkeypatch.setattr(suite, "read_sets", lambda: suite_runs.read_sets(home))
    monkeypatch.setattr(suite, "require_core", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    out = ["--out", str(folder / "suite.jsonl"), "--splits", "public", "--runs", "default,kipf"]
    monkeypatch.setattr("sys.argv", ["suite.py", *out, *more])
    suite.main()
    return commands


def test_a_suite_goes_on_where_it_was_killed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "suite.jsonl"
    assert len(run_suite(home, tmp_path, monkeypatch)) == 6
    assert "  one public 0 0 kipf: error: a message" in capsys.readouterr().out
    whole = path.read_text()
    path.write_text(whole[:-30])  # killed while it wrote the last line
    assert len(run_suite(home, tmp_path, monkeypatch)) == 1
    assert path.read_text() == whole
    assert run_suite(home, tmp_path, monkeypatch) == []
    again = run_suite(home, tmp_path, monkeypatch, "--retry")
    assert [command[1] for command in again] == [
        run["set"] for run in map(json.loads, whole.splitlines()[1::2])
    ]
    assert len(run_suite(home, tmp_path, monkeypatch, "--folds", "2")) == 6


def test_a_command_without_a_result_is_a_failure(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite_runs, "run_command", lambda command: json.loads("no JSON"))
    run = SuiteRun("one", "public", 0, 0, "tune", 5)
    run.folder(tmp_path).mkdir(parents=True)
    found = suite_runs.run_one(run, sets_of(home)["one"], tmp_path)
    assert not run.folder(tmp_path).exists()  # another attempt begins anew
    assert "Expecting value" in found["error"]


def test_the_error_of_wrong_use_is_read_from_its_box() -> None:
    box = "ended with exit code 2:\n╭─ Error ───╮\n│ No such command 'tune'. │\n╰───────────╯\n"
    assert suite_runs._last_line(box) == "No such command 'tune'."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "one,nine"], "no such set: nine; there are labels, one, several"),
        (["--runs", "default,best"], "'best' is none of default, kipf, off"),
    ],
)
def test_an_unknown_name_is_refused(arguments: list[str], message: str, home: Path, tmp_path: Path) -> None:
    command = [sys.executable, suite.__file__, *arguments, "--out", str(tmp_path / "suite.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"SIAFU_DATA": str(home)})
    assert done.returncode
    assert message in done.stderr
