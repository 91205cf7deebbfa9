"""``siafu tune`` as scripts and people use it: what goes where, exit codes, from a search to predictions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from in_process import command

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = "community:nodes=90,degree=6,classes=3,features=8"
TUNE = ("tune", DATA, "--epochs", 3, "--set", "model.hidden=8")
PROMISED = {
    **{"run": str, "search": str, "trials": int, "completed": int, "pruned": int, "failed": int},
    **{"val_score": float, "test_score": float, "metric": str, "model": str, "settings": dict},
    **{"seconds": float, "stopped_by": str},
}


@pytest.fixture
def siafu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: command(*arguments, capsys=capsys)


def test_tune_prints_every_key_that_is_promised(siafu: Any) -> None:
    code, out, err = siafu(*TUNE, "--trials", 2, "--json", "--out", "s")
    assert code == 0, err
    (line,) = out.splitlines()
    found = json.loads(line)
    for key, kind in PROMISED.items():
        assert type(found[key]) is kind, key
    assert (found["search"], found["trials"], found["completed"], found["stopped_by"]) == (
        "s",
        2,
        2,
        "trials",
    )
    assert found["run"] in ("s/trial-1", "s/trial-2")
    assert "model.hidden" not in found["settings"]
    assert "trial 2 of 2: gcn, " in err


def test_the_best_run_predicts_and_is_reported(siafu: Any, tmp_path: Path) -> None:
    code, out, err = siafu(*TUNE, "--trials", 2)
    assert code == 0, err
    assert "2 trials compared, of which 0 were stopped early" in out
    assert "siafu predict runs/tune-community-1/trial-" in out
    for arguments in (
        ("predict", "runs/tune-community-1/best", "--out", "p.csv"),
        ("report", "runs/tune-community-1/best", "--out", "run.html"),
        ("report", "runs/tune-community-1", "--out", "search.html"),
    ):
        code, _, err = siafu(*arguments)
        assert code == 0, err
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 91
    assert "2 trials compared" in (tmp_path / "search.html").read_text()
    code, _, err = siafu("report", "runs/tune-community-1", "runs/tune-community-1/best")
    assert code == 1
    assert "runs/tune-community-1: a search, which has a report of its own; give it alone" in err


def test_a_search_without_an_ended_trial_has_no_report(siafu: Any, tmp_path: Path) -> None:
    siafu(*TUNE, "--trials", 1, "--out", "s")
    trials = tmp_path / "s" / "trials.json"
    trials.write_text(trials.read_text().replace("completed", "pruned"))
    assert "trials.json: changed or damaged" in siafu("report", "s")[2]
    trials.unlink()
    assert (
        's: no trial of this search has ended; go on with it by "siafu tune … --out s"'
        in siafu("report", "s")[2]
    )


WRONG: list[tuple[tuple[object, ...], str]] = [
    (("--time", "5x"), "time is 5x; expected a time such as 30m"),
    (("--trials", 0), "trials is 0; expected at least 1"),
    (("--space", "space.toml"), "space.toml: model.hiden is not a setting; did you mean model.hidden?"),
    (("--set", "model.hiden=3"), "model.hiden is not a setting"),
    (("--metric", "acuracy"), "train.metric is 'acuracy'; expected"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_use_is_told_with_exit_code_2(
    siafu: Any, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    (tmp_path / "space.toml").write_text("model.hiden = [1]")
    code, out, err = siafu(*TUNE, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "runs").exists()


def test_the_metric_that_is_asked_for_chooses(siafu: Any) -> None:
    _, out, _ = siafu(*TUNE, "--trials", 1, "--metric", "macro_f1", "--json")
    assert json.loads(out)["metric"] == "macro_f1"


def test_ctrl_c_ends_a_search_with_exit_code_130_and_tells_how_to_go_on(tmp_path: Path) -> None:
    arguments = ["tune", DATA, "--epochs", "1000000", "--set", "train.patience=0", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "siafu", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    try:
        events = tmp_path / "runs" / "tune-community-1" / "trial-1" / "events.jsonl"
        while not (events.is_file() and b'"epoch"' in events.read_bytes()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 130, err
    command_again = " ".join(["siafu", *arguments, "--out", "runs/tune-community-1"])
    assert f"stopped by SIGINT; go on with: {command_again}\n" in err
    found = json.loads(out)
    assert (found["run"], found["trials"], found["stopped_by"]) == (None, 0, "SIGINT")
