"""Ctrl-C and SIGTERM, as real signals to real commands: exit code 130 or 143, one line, and how to go on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from siafu.data import karate
from siafu.signals import SignalInterrupt, deferred_stop, exit_on_signal, resume_hint
from siafu.store import write_store

TIMEOUT_S = 240
READY = "ready"
TRAIN = ("train", "karate", "--hidden", "4", "--set", "train.patience=0", "--epochs", "1000000")

# Runs the command with one function replaced by another that says it is there and never returns.
BLOCKED = f"""
import importlib, signal, sys
module, name = sys.argv.pop(1).split(":")
def block(*_, **__):
    print({READY!r}, file=sys.stderr, flush=True)
    while True:
        signal.pause()
setattr(importlib.import_module(module), name, block)
from siafu.__main__ import main
main()
"""


@contextmanager
def started(*arguments: str, folder: Path, **environ: str) -> Iterator["subprocess.Popen[str]"]:
    """A process of Python, whose standard error is read by the test."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environ,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_line(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise AssertionError("".join(said))


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out + err


@pytest.mark.parametrize(
    ("number", "where", "arguments"),
    [
        (signal.SIGINT, "siafu.data.importing:import_graph", ("import", "new", "--edges", "edges.csv")),
        (signal.SIGTERM, "siafu.store_partitions:find_or_create", ("partition", "store", "--parts", "2")),
        (signal.SIGINT, "siafu.inference:open_run", ("predict", "run")),
        (signal.SIGTERM, "siafu.results.read:read_run", ("report", "run")),
        (signal.SIGTERM, "siafu.search:load_source", ("train", "store")),
    ],
)
def test_every_command_ends_at_once_with_the_exit_code_of_the_signal(
    tmp_path: Path, number: signal.Signals, where: str, arguments: tuple[str, ...]
) -> None:
    write_store(karate(), tmp_path / "store")
    with started("-c", BLOCKED, where, *arguments, folder=tmp_path) as process:
        wait_for_line(process, READY)
        process.send_signal(number)
        code, said = end(process)
    assert code == 128 + number, said
    assert said == f"stopped by {number.name}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_ends_the_command_too(tmp_path: Path, number: signal.Signals) -> None:
    slow = f"import signal, sys\nprint({READY!r}, file=sys.stderr, flush=True)\nwhile True:\n    signal.pause()\n"
    (tmp_path / "typer.py").write_text(slow)  # stands for all that a command imports
    with started("-m", "siafu", "data", folder=tmp_path, PYTHONPATH=str(tmp_path)) as process:
        wait_for_line(process, READY)
        process.send_signal(number)
        assert end(process) == (128 + number, f"stopped by {number.name}\n")


def test_a_run_that_is_just_being_resumed_tells_how_to_go_on(tmp_path: Path) -> None:
    with started("-c", BLOCKED, "siafu.run:resume", "resume", "my run", folder=tmp_path) as process:
        wait_for_line(process, READY)
        process.send_signal(signal.SIGTERM)
        assert end(process) == (143, "stopped by SIGTERM; go on with: siafu resume 'my run'\n")


def test_a_second_signal_ends_training_at_once_and_tells_how_to_go_on(tmp_path: Path) -> None:
    blocked = ("-c", BLOCKED, "siafu.methods.full.procedure:set_keys")  # which every epoch calls
    with started(*blocked, *TRAIN, "--out", "my run", folder=tmp_path) as process:
        wait_for_line(process, READY)
        assert_second_signal_ends(process, "'my run'")


def test_a_second_signal_ends_ranks_that_do_not_answer(tmp_path: Path) -> None:
    with started("-m", "siafu", *TRAIN, "--ranks", "2", "--out", "run", folder=tmp_path) as process:
        wait_for_line(process, "training gcn")
        events, until = tmp_path / "run" / "events.jsonl", time.monotonic() + TIMEOUT_S
        while not events.is_file() or b'"phase":"epoch"' not in events.read_bytes():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)  # a file tells nobody that it grew
        below = psutil.Process(process.pid).children(recursive=True)
        for rank in below:
            rank.suspend()
        assert_second_signal_ends(process, "run")
    assert not [rank for rank in below if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]


def assert_second_signal_ends(process: "subprocess.Popen[str]", run: str) -> None:
    process.send_signal(signal.SIGINT)
    wait_for_line(process, "stopping after this epoch; once more to stop at once")
    process.send_signal(signal.SIGTERM)
    code, said = end(process)
    assert code == 143, said
    assert f"stopped by SIGTERM; go on with: siafu resume {run}\n" in said
    assert "Traceback" not in said


def test_a_signal_that_a_finalizer_loses_still_ends_the_command() -> None:
    class Signals:
        def __del__(self) -> None:
            with suppress(SignalInterrupt):  # as Python does with what a finalizer raises
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended, exit_on_signal():
        Signals()
    assert ended.value.code == 143


def test_a_signal_that_becomes_another_error_still_ends_the_command() -> None:
    def turn_into_another_error() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except SignalInterrupt:
            raise ValueError("something else") from None

    with pytest.raises(SystemExit) as ended, exit_on_signal():
        turn_into_another_error()
    assert ended.value.code == 130


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with exit_on_signal(), deferred_stop():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_deferred_stop_acts_at_once_until_training_begins() -> None:
    with pytest.raises(SystemExit) as ended, exit_on_signal(), deferred_stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
    assert (ended.value.code, stop.reason) == (130, None)


def test_a_deferred_stop_keeps_the_first_signal() -> None:
    with deferred_stop() as stop:
        stop.begin()
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.reason == "SIGINT"


def test_a_deferred_stop_acts_at_the_second_signal() -> None:
    def stop_twice() -> None:
        with deferred_stop() as stop:
            stop.begin()
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended, exit_on_signal():
        stop_twice()
    assert ended.value.code == 143


@pytest.mark.parametrize(("outermost", "said"), [(False, "siafu resume run"), (True, "siafu tune cora")])
def test_the_innermost_hint_counts_unless_one_further_out_is_of_many_runs(outermost: bool, said: str) -> None:
    with (
        pytest.raises(KeyboardInterrupt) as stop,
        resume_hint("siafu tune cora", outermost=outermost),
        resume_hint("siafu resume run"),
    ):
        raise KeyboardInterrupt
    assert stop.value.__notes__ == [f"go on with: {said}"]
