"""Whole runs of the pipeline through the command: output, killed workers and ranks, workers started by hand."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import siafu
from siafu.data import community
from siafu.graph import Graph
from siafu.results.read import read_run
from siafu.results.report import write_report
from siafu.store import write_store
from siafu.training.procedure import Callbacks
from siafu.workers.signing import accept, parse
from siafu.workers.torch_compute import TorchCompute
from siafu.workers.worker import serve

DATA = "community:nodes=300,degree=8,classes=3,features=12"
PIPELINE = (
    *("train", DATA, "--method", "pipeline", "--hidden", "8", "--epochs", "40", "--json"),
    *("--set", "pipeline.intervals=6", "--set", "train.patience=0", "--set", "train.checkpoint_seconds=0"),
)
THREADS = ("--set", "pipeline.workers=threads", "--set", "pipeline.num_workers=2")
LONG_S = 240


# The command, except that its rank computes no task before its worker processes are ready: these runs are over by then.
COMMAND = """
from siafu.workers.worker_pool import WorkerPool
WorkerPool._compute_until_ready = lambda self: None
from siafu.cli import main
main()
"""


def start(*arguments: object) -> "subprocess.Popen[str]":
    """Start the command, in a process of its own."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        **{"stdout": pipe, "stderr": pipe, "text": True, "env": os.environ | {"OMP_NUM_THREADS": "1"}},
    )


def end(process: "subprocess.Popen[str]", *, code: int = 0) -> dict[str, Any]:
    out, err = process.communicate(timeout=LONG_S)
    assert process.returncode == code, err
    return json.loads(out.splitlines()[-1])


def wait_for(done: Callable[[], Any]) -> Any:
    until = time.monotonic() + LONG_S
    while not (found := done()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def workers_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "siafu.workers.worker" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def num_epochs(run: Path) -> int:
    events = run / "events.jsonl"
    return events.read_bytes().count(b'"phase":"epoch"') if events.is_file() else 0


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run without faults."""
    run = tmp_path_factory.mktemp("quiet") / "run"
    return run, end(start(*PIPELINE, "--set", "pipeline.num_workers=2", "--out", run))


def test_a_run_says_what_its_tasks_and_dollars_were(
    quiet: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run, found = quiet
    assert found["method"] == "pipeline"
    assert found["tasks"] == 40 * 6 * 3  # two stages forward, of which the last goes back, and one back
    assert found["tasks_relaunched"] == 0
    assert 0 < found["dollars"] < 0.1
    assert found["test_accuracy"] > 0.5
    trace = json.loads((run / "trace.json").read_text())
    names = {event["name"] for event in trace["traceEvents"]}
    assert {"gather 1", "gather back 1", "stage 1", "stage 2 learn", "stage 1 back"} <= names
    epochs = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert all(event["dollars"] > 0 for event in epochs if event["phase"] == "epoch")
    write_report([read_run(run)], tmp_path / "report.html")
    assert (
        "stage 2 learn" in (tmp_path / "report.html").read_text()
    )  # which only the picture of the tasks names
    assert not list(run.glob("lease-*"))


def test_killed_and_stopped_workers_cost_tasks_but_change_no_bit(
    quiet: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    process = start(*PIPELINE, "--set", "pipeline.num_workers=3", "--out", tmp_path / "run")
    draw, shot = random.Random(4), list[psutil.Process]()
    for signal_number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
        wait_for(lambda: num_epochs(tmp_path / "run") > 2 * len(shot))
        shot.append(draw.choice([worker for worker in workers_of(process) if worker not in shot]))
        shot[-1].send_signal(signal_number)
    found = end(process)
    assert found["tasks"] == 40 * 6 * 3
    assert not [worker for worker in shot if worker.is_running()]
    assert_same(tmp_path / "run", quiet[0])


def test_a_run_whose_workers_are_all_stopped_goes_on_by_itself(tmp_path: Path) -> None:
    process = start(
        *("train", "karate", "--method", "pipeline", "--epochs", 300, "--json", "--out", tmp_path / "run"),
        *("--set", "pipeline.num_workers=1", "--set", "train.patience=0", "--set", "comm.deadline=2"),
    )
    wait_for(lambda: num_epochs(tmp_path / "run") > 2)
    (worker,) = workers_of(process)
    worker.suspend()
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, err
    assert "this process does their tasks itself" in err
    assert not worker.is_running()


@pytest.mark.parametrize("workers", ["threads", "inline"])
def test_a_task_that_nobody_can_do_ends_the_run_with_the_reason(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("no such product")

    monkeypatch.setattr(TorchCompute, "__call__", broken)
    with pytest.raises((RuntimeError, ArithmeticError), match="no such product"):
        siafu.train(siafu.load("karate"), method="pipeline", workers=workers, epochs=2, out=tmp_path / "run")


def test_a_killed_rank_starts_again_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    arguments = (*PIPELINE, "--ranks", 2, *THREADS)
    quiet = start(*arguments, "--engine", "local", "--set", "threads=1", "--out", tmp_path / "quiet")
    process = start(*arguments, "--out", tmp_path / "run")
    wait_for(lambda: num_epochs(tmp_path / "run") > 5)
    ranks = [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "siafu.rank_process" in child.cmdline()
    ]
    ranks[1].kill()
    end(quiet)
    end(process)
    assert_same(tmp_path / "run", tmp_path / "quiet")


def test_a_stopped_run_is_resumed_exactly(quiet: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*PIPELINE, *THREADS, "--out", run)
    wait_for(lambda: num_epochs(run) > 2)
    process.send_signal(signal.SIGTERM)
    assert not end(process, code=143)["finished"]
    assert end(start("resume", run, "--json"))["epochs"] == 40
    assert_same(run, quiet[0])


def assert_same(run: Path, other: Path) -> None:
    assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "where", [(), ("pipeline.host=0.0.0.0", "pipeline.address=127.0.0.1")], ids=["here", "tls"]
)
def test_a_worker_started_by_hand_does_its_share(where: tuple[str, ...], tmp_path: Path) -> None:
    run, listening = tmp_path / "run", [item for each in where for item in ("--set", each)]
    process = start(*PIPELINE, "--epochs", 160, "--set", "pipeline.num_workers=1", *listening, "--out", run)
    lease = wait_for(lambda: next(run.glob("lease-0.json"), None) if run.is_dir() else None)
    assert lease.stat().st_mode & 0o077 == 0
    assert (json.loads(lease.read_text())["fingerprint"] is None) == (not where)
    worker = start("worker", lease)
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, err
    assert f"more workers can join with: siafu worker {lease}\n" in err
    out, err = worker.communicate(timeout=LONG_S)
    assert worker.returncode == 0, err
    assert int(out.split()[0].replace(",", "")) > 0


def test_random_labels_are_not_learned(tmp_path: Path) -> None:
    made = community(num_nodes=2000, degree=10, classes=10, features=16, seed=1)
    draw = torch.Generator().manual_seed(7)
    noise = Graph(**{**vars(made), "y": torch.randint(10, (2000,), generator=draw)})
    run = siafu.train(
        noise, method="pipeline", workers="threads", num_workers=2, epochs=60, out=tmp_path / "run", threads=1
    )
    assert run.metrics["test_accuracy"] < 0.14


@pytest.mark.usefixtures("_key")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"norm": "batch"}, "set it to layer"),
        ({"workers": "lambda"}, "pipeline.function names none"),
        ({"workers": "lambda", "function": "f"}, "which no function at AWS can reach"),
        ({"workers": "http", "function": "nowhere"}, "expected an address such as https"),
        ({"instance": "c5.tiny"}, "no price of instance 'c5.tiny'"),
        ({"gradients": "int8"}, "set it to fp32"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        siafu.train(siafu.load("karate"), method="pipeline", epochs=2, out=tmp_path / "run", **given)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", ["lambda", "http"])
def test_a_run_without_a_key_of_leases_leaves_no_folder_and_no_partition(
    workers: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SIAFU_LEASE_KEY", "SIAFU_LEASE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    store = write_store(siafu.load("karate"), tmp_path / "store")
    before = sorted(tmp_path.rglob("*"))
    given: dict[str, Any] = {"workers": workers, "function": "http://127.0.0.1:9/", "host": "0.0.0.0"}
    with pytest.raises(ValueError, match="no key to sign"):
        siafu.train(store.path, method="pipeline", ranks=ranks, epochs=2, out=tmp_path / "a" / "run", **given)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("workers", ["lambda", "http"])
def test_a_run_whose_leases_could_not_be_signed_is_refused_with_what_to_do(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SIAFU_LEASE_KEY", "SIAFU_LEASE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    given: dict[str, Any] = {"workers": workers, "function": "http://127.0.0.1:9/", "host": "0.0.0.0"}
    with pytest.raises(ValueError, match=r"no key to sign .*set SIAFU_LEASE_KEY_FILE .*openssl rand -hex 32"):
        siafu.train(siafu.load("karate"), method="pipeline", epochs=2, out=tmp_path / "run", **given)
    open_to_all = tmp_path / "lease.key"
    open_to_all.write_text("5a" * 32)
    open_to_all.chmod(0o644)
    given["lease_key_file"] = str(open_to_all)
    with pytest.raises(ValueError, match=r"lease.key: belongs to user .* with mode 0644; expected"):
        siafu.train(siafu.load("karate"), method="pipeline", epochs=2, out=tmp_path / "other", **given)


@pytest.mark.usefixtures("_key")
def test_a_run_that_gets_no_functions_goes_on_by_itself_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    process = start(
        *("train", "karate", "--method", "pipeline", "--epochs", 5, "--json", "--out", tmp_path / "run"),
        *("--set", "pipeline.workers=lambda", "--set", "pipeline.function=siafu-worker"),
        *("--set", "pipeline.host=0.0.0.0"),
    )
    out, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 0, err
    assert "there are no AWS credentials" in err
    assert "this process does their tasks itself" in err
    assert json.loads(out.splitlines()[-1])["epochs"] == 5


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of leases, at the run and at functions."""
    monkeypatch.setenv("SIAFU_LEASE_KEY", "5a" * 32)
    monkeypatch.setenv("SIAFU_LEASE_ADDRESSES", "127.0.0.1")


@pytest.fixture
def function(_key: None) -> Iterator[str]:
    """A function that is called by HTTP and serves the lease that a request carries."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            report = serve(accept(parse(body), os.environ))
            body = json.dumps(asdict(report)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_leases_without_value_are_given_up_with_a_reason(function: str, tmp_path: Path) -> None:
    said: list[str] = []
    prices = tmp_path / "prices.toml"  # a thousand times the usual, so that no noise of epochs' times matters
    prices.write_text(
        "[functions.cloud-run]\nper_gb_second = 2.5e-3\nper_vcpu_second = 2.4e-2\nper_million_requests = 400\n"
        'round_up_ms = 100\nregion = "us-central1"\ndate = 2026-11-16\n'
    )
    run = siafu.train(
        siafu.load("karate"),
        method="pipeline",
        workers="http",
        function=function,
        prices=str(prices),
        intervals=4,
        epochs=40,
        patience=0,
        threads=1,
        out=tmp_path / "run",
        callbacks=Callbacks(say=said.append),
    )
    assert run.metrics["epochs"] == 40
    assert any(text.startswith("0 leases: an epoch took") for text in said), said
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    dollars = [event["dollars"] for event in events if event["phase"] == "epoch"]
    assert dollars[-1] < max(dollars)  # functions are no longer paid
