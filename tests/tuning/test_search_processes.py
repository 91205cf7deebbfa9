"""A search by several processes: at once, and after one was killed within a trial."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.training.procedure import Callbacks

pytestmark = pytest.mark.usefixtures("one_thread")
TIMEOUT_S = 240
DATA = "community:nodes=90,degree=6,classes=3,features=8"
SPACE = {"model.hidden": [4, 8], "train.lr": {"low": 0.001, "high": 0.1, "log": True}}
SETTINGS = ("--model", "gcn", "--set", "train.patience=0")


@contextmanager
def started(folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """The command in a process of its own, which runs its first trial or a later one."""
    (folder / "space.toml").write_text(
        "model.hidden = [4, 8]\ntrain.lr = {low = 0.001, high = 0.1, log = true}\n"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "siafu",
            "tune",
            DATA,
            *SETTINGS,
            "--space",
            "space.toml",
            "--out",
            "s",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: "subprocess.Popen[str]", events: Path, text: bytes, *, count: int) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not (events.is_file() and events.read_bytes().count(text) >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


def tune(out: Path, *, epochs: int, trials: int, said: list[str]) -> dict[str, Any]:
    """The same search in this process."""
    shown = Callbacks(say=said.append)
    return siafu.tune(
        DATA, model="gcn", space=SPACE, trials=trials, out=out, callbacks=shown, epochs=epochs, patience=0
    ).summary


def trials(folder: Path) -> list[tuple[Any, ...]]:
    written = json.loads((folder / "trials.json").read_text())["trials"]
    return [
        tuple(trial[key] for key in ("number", "settings", "val_score", "state", "curve"))
        for trial in written
    ]


def test_processes_that_search_at_once_share_the_trials(tmp_path: Path) -> None:
    said: list[str] = []
    with started(tmp_path, "--epochs", "100", "--trials", "5", "--json") as process:
        wait_for(process, tmp_path / "s" / "trial-1" / "events.jsonl", b'"phase":"epoch"', count=3)
        here = tune(tmp_path / "s", epochs=100, trials=5, said=said)
        out, err = process.communicate(timeout=TIMEOUT_S)
    there = json.loads(out)
    assert {here["trials"], there["trials"]} == {5}
    assert Path(here["run"]).name == Path(there["run"]).name
    ran = [line for lines in (said, err.splitlines()) for line in lines if line.startswith("trial ")]
    assert sorted(int(line.split()[1]) for line in ran) == [1, 2, 3, 4, 5], "each trial in one process"
    assert any(line.startswith("trial ") for line in said)
    assert "trial 1 of 5" in err
    assert sorted(path.name for path in (tmp_path / "s").glob("trial-*")) == [
        f"trial-{n}" for n in range(1, 6)
    ]


def test_a_search_that_is_killed_in_a_trial_ends_like_one_that_was_not(tmp_path: Path) -> None:
    with started(tmp_path, "--epochs", "200", "--trials", "3") as process:
        events = tmp_path / "s" / "trial-2" / "events.jsonl"
        wait_for(process, events, b'"phase":"epoch"', count=30)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert tune(tmp_path / "s", epochs=200, trials=3, said=[])["trials"] == 3
    assert b'"phase":"resume"' in events.read_bytes()
    tune(tmp_path / "whole", epochs=200, trials=3, said=[])
    assert trials(tmp_path / "s") == trials(tmp_path / "whole")
    for number in (1, 2, 3):
        one, other = (tmp_path / name / f"trial-{number}" / "model.safetensors" for name in ("s", "whole"))
        assert one.read_bytes() == other.read_bytes()
