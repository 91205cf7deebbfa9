"""Faults around a run: kills, signals, two processes at once, a full disk, damaged files. Nothing is lost or wrong."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import siafu
from siafu import cli
from siafu.data import community
from siafu.graph import Graph
from siafu.results.read import read_run
from siafu.results.report import write_report
from siafu.training.procedure import Callbacks

DATA = "community:nodes=200,degree=8,classes=3,features=12"
COMMAND = (
    *("train", DATA, "--epochs", "400", "--hidden", "8", "--baseline"),
    *("--set", "train.checkpoint_seconds=0", "--set", "train.patience=0"),
)
TIMEOUT_S = 240
FLIPS_EVERY = 47  # bytes; a prime, so that no field of a file is always missed


pytestmark = pytest.mark.usefixtures("one_thread")


def start(*arguments: str) -> "subprocess.Popen[str]":
    """The real command, in a process of its own."""
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", "from siafu.cli import main; main()", *arguments],
        **{"stdout": pipe, "stderr": pipe, "text": True, "env": environ},
    )


def num_epochs(run: Path) -> int:
    """How many epochs were written so far, those of the baseline and those done twice included."""
    files = [path for path in (run / "events.jsonl", run / "baseline" / "events.jsonl") if path.is_file()]
    return sum(path.read_bytes().count(b'"phase":"epoch"') for path in files)


def wait_for_epochs(process: "subprocess.Popen[str]", run: Path, wanted: int) -> None:
    """Wait until so many epochs were written, or the process ended."""
    until = time.monotonic() + TIMEOUT_S
    while num_epochs(run) < wanted and process.poll() is None:
        assert time.monotonic() < until, "no progress"
        time.sleep(0.002)  # a file tells nobody that it grew


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, undisturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    code, _, err = end(start(*COMMAND, "--out", str(out)))
    assert code == 0, err
    return out


def assert_same_run(run: Path, whole: Path) -> None:
    for part in (".", "baseline"):
        assert (run / part / "model.safetensors").read_bytes() == (
            whole / part / "model.safetensors"
        ).read_bytes()
    found, expected = (json.loads((each / "metrics.json").read_text()) for each in (run, whole))
    measured = ("test_accuracy", "val_accuracy", "test_roc_auc", "epochs", "best_epoch")
    assert {key: found[key] for key in measured} == {key: expected[key] for key in measured}
    assert read_run(run).epochs.epoch.tolist() == list(range(1, 401))
    leftover = [path.name for path in run.rglob("*.tmp")]
    assert not leftover, "what a kill left behind is overwritten by the next writer"


def test_killed_at_any_moment_a_run_ends_with_the_same_bytes(tmp_path: Path, whole: Path) -> None:
    draw, run, kills = random.Random(7), tmp_path / "run", 0
    process = start(*COMMAND, "--out", str(run))
    for _ in range(3):
        wait_for_epochs(process, run, num_epochs(run) + draw.randint(1, 150))
        time.sleep(draw.random() * 0.02)  # anywhere within an epoch or a checkpoint
        kills += process.poll() is None
        process.kill()
        end(process)
        process = start("resume", str(run))
    code, _, err = end(process)
    assert code == 0, err
    assert kills >= 2
    assert_same_run(run, whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_cleanly_and_resume_goes_on_exactly(
    tmp_path: Path, whole: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    process = start(*COMMAND, "--out", str(run), "--json")
    wait_for_epochs(process, run, 20)
    code, out = command("train", DATA, "--out", str(run), capsys=capsys)
    assert (code, "run: another process is writing this run" in out) == (1, True), "two runs in one folder"
    process.send_signal(number)
    code, out, err = end(process)
    assert code == 128 + number, err
    found = json.loads(out)
    assert (found["finished"], found["stopped_by"]) == (False, number.name)
    assert f"go on with: siafu resume {run}" in err
    assert "Traceback" not in err
    assert command("resume", str(run), capsys=capsys)[0] == 0
    assert_same_run(run, whole)


def command(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """A command in this process: its exit code, and all that it printed."""
    before, sys.argv = sys.argv, ["siafu", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before
    code = ended.value.code
    return (code if isinstance(code, int) else 0), "".join(capsys.readouterr())


# A full disk, a folder that may not be written.


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: the system fails the write, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "left"), [(100, []), (3000, [".lock", "checkpoint", "config.toml", "events.jsonl"])]
)
def test_a_write_that_fails_is_told_and_leaves_no_half_of_a_file(
    tmp_path: Path, size: int, left: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with largest_file(size):
        code, text = command("train", "karate", "--epochs", "9", "--out", str(run), capsys=capsys)
    assert code == 1
    assert "File too large" in text
    assert f"error: {run}" in text, "the file is named"
    assert "Traceback" not in text
    assert sorted(path.name for path in run.iterdir()) == left if left else not run.exists()
    assert not list((run / "checkpoint").glob("*"))
    if left:
        assert command("resume", str(run), capsys=capsys)[0] == 0, "with room it goes on"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 48 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=48k", "none", str(disk)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs may be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_told_and_the_run_goes_on_once_there_is_room(
    tiny_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, settings = tiny_disk / "run", ("--epochs", "60", "--set", "train.checkpoint_seconds=0")
    code, text = command("train", "karate", *settings, "--out", str(run), capsys=capsys)
    assert code == 1
    assert "No space left on device; make room there and try again" in text
    assert f"error: {run}" in text
    assert "Traceback" not in text
    assert not list(run.rglob("*.tmp"))
    assert not (run / "metrics.json").exists()
    subprocess.run(["mount", "-o", "remount,size=10m", str(tiny_disk)], check=True)
    assert command("resume", str(run), capsys=capsys)[0] == 0
    assert command("train", "karate", *settings, "--out", str(tmp_path / "whole"), capsys=capsys)[0] == 0
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    code, text = command("train", "karate", "--out", str(tmp_path / "file" / "run"), capsys=capsys)
    assert code == 1
    assert f"error: {tmp_path / 'file' / 'run'}: Not a directory" in text
    assert "Traceback" not in text


def test_a_disk_that_may_only_be_read_is_told(tiny_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = ("train", "karate", "--epochs", "1", "--hidden", "2", "--out", str(tiny_disk / "old"))
    assert command(*old, capsys=capsys)[0] == 0
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    code, text = command("train", "karate", "--out", str(tiny_disk / "run"), capsys=capsys)
    assert code == 1
    assert f"error: {tiny_disk / 'run'}: Read-only file system" in text
    assert "Traceback" not in text
    assert command("resume", str(tiny_disk / "old"), capsys=capsys)[0] == 0, "a finished run is only read"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere, but for a disk that is read-only")
def test_a_folder_without_permission_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    code, text = command("train", "karate", "--out", str(tmp_path / "run"), capsys=capsys)
    tmp_path.chmod(0o700)
    assert code == 1
    assert f"error: {tmp_path / 'run'}: Permission denied" in text


# Damaged files.


@pytest.fixture(scope="module")
def graph() -> Graph:
    return community(80, degree=4, classes=3, features=4)


def stop_after_two() -> Callbacks:
    left = iter([None, "SIGTERM"])
    return Callbacks(lambda *_, **__: None, lambda: next(left))


@pytest.fixture(scope="module")
def stopped(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that was stopped after two of its four epochs."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    siafu.train(graph, out=out, epochs=4, hidden=2, callbacks=stop_after_two())
    return out


@pytest.fixture(scope="module")
def finished(graph: Graph, stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run at its end."""
    out = tmp_path_factory.mktemp("finished") / "run"
    shutil.copytree(stopped, out)
    siafu.resume(out, graph=graph)
    return out


def damages(data: bytes) -> Iterator[bytes]:
    """The same bytes with a bit flipped, a byte lost or the end cut off, here and there."""
    draw = random.Random(3)
    for place in range(0, len(data), FLIPS_EVERY):
        flipped = bytearray(data)
        flipped[place] ^= 1 << draw.randrange(8)
        yield bytes(flipped)
        yield data[:place]
        yield data[:place] + data[place + 1 :]


def damaged(run: Path, name: str, tmp_path: Path) -> Iterator[Path]:
    """The run again and again in one folder, each time with one damage in one file."""
    copy = tmp_path / "copy"
    for data in damages((run / name).read_bytes()):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        (copy / name).write_bytes(data)
        yield copy


@pytest.mark.parametrize("name", ["checkpoint/latest.safetensors", "config.toml", "events.jsonl"])
def test_a_damaged_run_is_refused_or_resumes_to_the_same_bytes(
    graph: Graph, stopped: Path, finished: Path, tmp_path: Path, name: str
) -> None:
    expected = (finished / "model.safetensors").read_bytes()
    for run in damaged(stopped, name, tmp_path):
        if name == "events.jsonl":  # training writes them and never reads them
            siafu.resume(run, graph=graph)
            assert (run / "model.safetensors").read_bytes() == expected
            continue
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            siafu.resume(run, graph=graph)


@pytest.mark.parametrize("name", ["model.safetensors", "config.toml", "metrics.json"])
def test_a_damaged_run_is_refused_or_opens_as_it_was(
    graph: Graph, finished: Path, tmp_path: Path, name: str
) -> None:
    intact, opens = siafu.open(finished), 0
    output = siafu.predict(intact, graph)["output"]
    for run in damaged(finished, name, tmp_path):
        with suppress(ValueError):
            opened = siafu.open(run)
            opens += 1
            assert (opened.metrics, opened.settings) == (intact.metrics, intact.settings)
            assert torch.equal(siafu.predict(opened, graph)["output"], output)
    hit = (finished / name).read_bytes()[::FLIPS_EVERY]
    spaces = sum(byte in b" \n" for byte in hit) if name == "metrics.json" else 0
    assert opens <= spaces, "a space more or less in JSON alone means nothing"


@pytest.mark.parametrize("name", ["events.jsonl", "config.toml", "metrics.json"])
def test_a_report_of_a_damaged_run_is_made_and_marks_the_damage(
    finished: Path, tmp_path: Path, name: str
) -> None:
    whole = read_run(finished)
    for run in islice(damaged(finished, name, tmp_path), 0, None, 5):
        record = read_run(run)
        same = (record.events, record.config, record.metrics) == (whole.events, whole.config, whole.metrics)
        assert same or any(text.startswith(name) for text in record.damage)
    write_report([record], tmp_path / "report.html")


def test_the_command_tells_of_damage_in_its_json(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", ["--out", str(tmp_path / "report.html"), "--json"]
    shutil.copytree(finished, run)
    _, told = command("report", str(run), *out, capsys=capsys)
    assert json.loads(told)["damaged"] == {}
    text = (run / "metrics.json").read_text()
    (run / "metrics.json").write_text(text.replace('"test_accuracy": 0', '"test_accuracy": 1'))
    assert (run / "metrics.json").read_text() != text
    code, told = command("report", str(run), *out, capsys=capsys)
    (found,) = json.loads(next(line for line in told.splitlines() if line.startswith("{")))[
        "damaged"
    ].values()
    assert (code, found[0].split(":")[0]) == (0, "metrics.json")
    assert "This run is damaged" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b"\xff\xfe", b"PK\x03\x04", b"\x00" * 100])
@pytest.mark.parametrize("name", ["model.safetensors", "config.toml", "metrics.json"])
def test_a_foreign_file_is_refused_with_its_name(
    finished: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        siafu.open(tmp_path / "run")


def test_a_checkpoint_in_place_of_the_weights_is_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    shutil.copy(finished / "checkpoint" / "latest.safetensors", tmp_path / "run" / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: not the weights of a run"):
        siafu.open(tmp_path / "run")


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.json"])
def test_damaged_files_are_written_again_as_the_message_says(
    graph: Graph, finished: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r'delete it and "siafu resume .*run" writes it again'):
        siafu.open(tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    again, before = siafu.resume(tmp_path / "run", graph=graph), siafu.open(finished)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        finished / "model.safetensors"
    ).read_bytes()
    assert without_places(again.metrics) == without_places(before.metrics)


def without_places(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics but for paths and measurements, which a run that is finished again has anew."""
    measured = ("run", "peak_rss_bytes", "seconds", "score_seconds")
    return {key: value for key, value in metrics.items() if key not in measured}
