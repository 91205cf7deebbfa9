"""Whole runs on several ranks: threads, processes, torchrun. Disturbed in any way, they end with the same bytes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import torch
from in_process import command
from torch import Tensor, nn

import siafu
from siafu.comm import Comm
from siafu.config import Config
from siafu.data import community
from siafu.engines import EventFollower, partitions_folder
from siafu.graph import Block, Graph
from siafu.launch.local import run_threads
from siafu.nn import Gcn
from siafu.results.read import read_run
from siafu.run_folder import RunFolder
from siafu.store import write_store
from siafu.store_partitions import partition_store
from siafu.training.procedure import Callbacks

EPOCHS = 100
DATA = "community:nodes=400,degree=8,classes=3,features=12"
SETTINGS = (
    *("--epochs", str(EPOCHS), "--hidden", "8", "--set", "threads=1"),
    *("--set", "train.patience=0", "--set", "train.checkpoint_seconds=0"),
)
SIAFU = (sys.executable, "-c", "from siafu.cli import main; main()")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TIMEOUT_S = 240
SOME = {"hidden": 4, "epochs": 6, "threads": 1}  # of short runs from Python


pytestmark = pytest.mark.usefixtures("one_thread")


def start(*arguments: str) -> "subprocess.Popen[str]":
    """A command in a process of its own."""
    pipe = subprocess.PIPE
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True, env=environ)


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def wait_for(done: Callable[[], Any], process: "subprocess.Popen[str] | None" = None) -> None:
    """Wait until something is so, or the process ended."""
    until = time.monotonic() + TIMEOUT_S
    while not done() and (process is None or process.poll() is None):
        assert time.monotonic() < until, "no progress"
        time.sleep(0.002)  # neither a file nor a process tells that it changed


def num_epochs(run: Path) -> int:
    """How many epochs were written so far, those done twice included."""
    events = run / "events.jsonl"
    return events.read_bytes().count(b'"phase":"epoch"') if events.is_file() else 0


def num_kept(run: Path) -> int:
    """How many checkpoints were written so far."""
    events = run / "events.jsonl"
    return events.read_bytes().count(b'"phase":"checkpoint"') if events.is_file() else 0


def rank_processes(command: "subprocess.Popen[str]") -> dict[int, psutil.Process]:
    """The rank processes below a command, by rank; empty until all are there."""
    found: dict[int, psutil.Process] = {}
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(command.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                environ = process.environ()
                if "RANK" in environ and process.is_running():
                    found[int(environ["RANK"])] = process
    return found if len(found) == 2 else {}


def assert_none_left(ranks: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(ranks, timeout=TIMEOUT_S)
    assert not alive, "a rank outlived its command"


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return community(120, degree=6, classes=3, features=5)


# Processes, undisturbed and disturbed.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The undisturbed run of the real command on two ranks, and what it printed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    code, out, err = end(start(*SIAFU, "train", DATA, *SETTINGS, "--ranks", "2", "--out", str(run), "--json"))
    assert code == 0, err
    assert "starting again" not in err
    (line,) = out.splitlines()
    return run, json.loads(line)


def assert_same_run(run: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    assert weights(run) == weights(whole[0])
    found = json.loads((run / "metrics.json").read_text())
    for key in ("test_accuracy", "val_accuracy", "test_macro_f1", "epochs", "best_epoch", "finished"):
        assert found[key] == whole[1][key], key
    assert read_run(run).epochs.epoch.tolist() == list(range(1, EPOCHS + 1))
    assert not list(run.rglob("*.tmp"))


def test_a_run_on_two_ranks_prints_and_writes_its_metrics(whole: tuple[Path, dict[str, Any]]) -> None:
    run, found = whole
    assert (found["ranks"], found["engine"], found["epochs"], found["run"]) == (
        2,
        "processes",
        EPOCHS,
        str(run),
    )
    assert found["bytes_sent"] == sum(found["bytes_by_label"].values()) > 0
    assert {"halo", "evaluate halo", "gradients", "scores", "control"} <= found["bytes_by_label"].keys()
    assert all(count > 0 for count in found["bytes_by_label"].values())
    assert found["test_accuracy"] > 0.7
    assert found["peak_rss_bytes"] > 10_000_000
    written = json.loads((run / "metrics.json").read_text())
    assert {key: written[key] for key in found} == found
    assert sorted(path.name for path in run.iterdir() if not path.name.startswith(".")) == sorted(
        [
            "checkpoint",
            "config.toml",
            "events.jsonl",
            "inputs.safetensors",
            "metrics.json",
            "model.safetensors",
            "parts",
        ]
    )
    assert not (run / ".measured.json").exists()


def test_its_predictions_and_report_are_those_of_any_run(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, found = whole
    assert command("predict", run, "--out", tmp_path / "p.parquet", capsys=capsys)[0] == 0
    table = pq.read_table(tmp_path / "p.parquet")
    graph = siafu.load(DATA)
    assert graph.y is not None
    assert graph.test_mask is not None
    predicted = torch.tensor([int(name) for name in table["class"].to_pylist()])
    right = (predicted == graph.y)[graph.test_mask].double().mean()
    assert float(right) == pytest.approx(found["test_accuracy"], abs=0.011), "but for ties in the last digit"
    assert command("report", run, "--out", tmp_path / "r.html", capsys=capsys)[0] == 0
    assert (tmp_path / "r.html").stat().st_size > 1000


def test_threads_give_the_same_bytes_as_processes(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "train",
        DATA,
        *SETTINGS,
        "--ranks",
        2,
        "--engine",
        "local",
        "--out",
        tmp_path / "run",
        "--json",
    )
    code, out, err = command(*arguments, capsys=capsys)
    assert code == 0, err
    assert_same_run(tmp_path / "run", whole)
    assert json.loads(out)["engine"] == "local"


def test_ranks_killed_and_stopped_in_the_midst_start_again_and_end_with_the_same_bytes(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run, seen = tmp_path / "run", list[psutil.Process]()
    arguments = ("--ranks", "2", "--set", "comm.deadline=2", "--out", str(run))
    process = start(*SIAFU, "train", DATA, *SETTINGS, *arguments)
    for rank, number in ((0, signal.SIGKILL), (1, signal.SIGSTOP)):
        epochs = num_epochs(run)
        wait_for(lambda epochs=epochs: num_epochs(run) >= epochs + 5, process)
        ranks = rank_processes(process)
        seen += ranks.values()
        if ranks:  # else it ended before we came to it, or others are on their way
            ranks[rank].send_signal(number)
            wait_for(lambda ranks=ranks: not all(one.is_running() for one in ranks.values()), process)
    code, _, err = end(process)
    assert code == 0, err
    assert len(seen) >= 2, "the run was over before it could be disturbed"
    assert err.count("starting again from the last checkpoint, epoch") >= 1
    assert "Traceback" not in err
    assert_none_left(seen)
    assert_same_run(run, whole)


def test_ranks_killed_while_they_sample_go_on_within_the_epoch_and_end_with_the_same_bytes(
    tmp_path: Path,
) -> None:
    arguments = (
        "--ranks",
        "2",
        "--method",
        "sampled",
        "--set",
        "comm.deadline=2",
        "--set",
        "comm.gradients=bf16",
    )
    arguments += ("--set", "sampled.batch_size=2", "--set", "sampled.macrobatch=4", "--epochs", "2")
    arguments += ("--set", "train.search=off")
    run, seen = tmp_path / "run", list[psutil.Process]()
    process = start(*SIAFU, "train", DATA, *SETTINGS, *arguments, "--out", str(run))
    wait_for(lambda: num_kept(run) >= 3, process)
    ranks = rank_processes(process)
    seen += ranks.values()
    if ranks:
        ranks[1].kill()
    code, _, err = end(process)
    assert code == 0, err
    assert seen, "the run was over before it could be disturbed"
    assert re.search(r"starting again from the last checkpoint, epoch \d, minibatch \d", err), err
    assert_none_left(seen)
    undisturbed = tmp_path / "undisturbed"
    code, _, err = end(start(*SIAFU, "train", DATA, *SETTINGS, *arguments, "--out", str(undisturbed)))
    assert code == 0, err
    assert weights(run) == weights(undisturbed)


def test_the_command_stopped_then_killed_goes_on_exactly_and_leaves_no_rank(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    process = start(*SIAFU, "train", DATA, *SETTINGS, "--ranks", "2", "--out", str(run), "--json")
    wait_for(lambda: num_epochs(run) >= 5, process)
    process.send_signal(signal.SIGINT)
    code, out, err = end(process)
    assert code == 130, err
    found = json.loads(out)
    assert (found["finished"], found["stopped_by"]) == (False, "SIGINT")
    assert f"go on with: siafu resume {run}" in err
    assert found["epochs"] == num_epochs(run) < EPOCHS
    process = start(*SIAFU, "resume", str(run))
    wait_for(lambda: num_epochs(run) >= found["epochs"] + 5, process)
    ranks = rank_processes(process)
    process.kill()
    end(process)
    assert len(ranks) == 2
    assert_none_left(list(ranks.values()))
    code, out, err = command("resume", run, "--json", capsys=capsys)
    assert code == 0, err
    assert_same_run(run, whole)
    assert json.loads(out)["bytes_sent"] > 0


def test_torchrun_starts_again_after_a_kill_and_ends_with_the_same_bytes(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = ("train", DATA, *SETTINGS, "--engine", "torchrun", "--out", str(run), "--json")
    process = start(*TORCHRUN, "--max-restarts", "3", "--no-python", *SIAFU, *arguments)
    wait_for(lambda: num_epochs(run) >= 5, process)
    ranks = rank_processes(process)
    assert len(ranks) == 2, end(process)
    ranks[1].kill()
    code, out, err = end(process)
    assert code == 0, err
    assert num_epochs(run) >= EPOCHS
    assert_same_run(run, whole)
    (line,) = out.splitlines()
    assert (json.loads(line)["engine"], json.loads(line)["ranks"]) == ("torchrun", 2), "rank 0 alone speaks"


def test_a_graph_given_in_python_is_trained_by_processes_of_unequal_parts_and_so_is_the_baseline(
    graph: Graph, tmp_path: Path
) -> None:
    assert graph.train_mask is not None
    owner = ~graph.train_mask & (torch.arange(120) % 9 == 0)  # rank 1 has few nodes and trains none
    np.save(tmp_path / "parts.npy", owner.long().numpy())
    settings = {**SOME, "by": str(tmp_path / "parts.npy"), "baseline": True}
    there = siafu.train(graph, out=tmp_path / "there", ranks=2, **settings)
    here = siafu.train(graph, out=tmp_path / "here", ranks=2, engine="local", **settings)
    for part in (".", "baseline"):
        assert weights(there.directory / part) == weights(here.directory / part)
    assert (there.metrics["engine"], there.metrics["baseline"]["model"]) == ("processes", "mlp")
    assert not (there.directory / "baseline" / "parts").exists(), "one partition serves both"
    alone = siafu.train(graph, out=tmp_path / "alone", **SOME)
    found, wanted = (siafu.predict(run, graph)["output"] for run in (there, alone))
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    (there.directory / "metrics.json").unlink()
    with pytest.raises(ValueError, match="trained on a graph given in Python"):
        siafu.resume(there.directory)


# Threads: what does not depend on how ranks came to be.


def test_each_seed_and_the_baseline_are_runs_of_their_own(graph: Graph, tmp_path: Path) -> None:
    settings = {**SOME, "ranks": 2, "engine": "local"}
    run = siafu.train(graph, out=tmp_path / "run", seeds=2, baseline=True, **settings)
    for place in range(2):
        one = siafu.train(graph, out=tmp_path / f"one-{place}", seed=place, **settings)
        without = siafu.train(graph, out=tmp_path / f"mlp-{place}", seed=place, model="mlp", **settings)
        assert weights(tmp_path / "run" / f"seed-{place}") == weights(one.directory)
        assert weights(tmp_path / "run" / f"seed-{place}" / "baseline") == weights(without.directory)
    assert (run.metrics["ranks"], run.metrics["seeds"]) == (2, 2)
    assert run.metrics["baseline"]["model"] == "mlp"


class Own(nn.Module):
    """A user's model."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = Gcn(5, 8), nn.Linear(8, 3)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(block, x)))


def test_a_users_module_is_trained_in_place_by_threads_and_refused_by_processes(
    graph: Graph, tmp_path: Path
) -> None:
    own, alone = Own(), Own()
    run = siafu.train(graph, model=own, out=tmp_path / "run", ranks=2, engine="local", epochs=6)
    siafu.train(graph, model=alone, out=tmp_path / "alone", epochs=6)
    assert run.model is own
    for name, value in own.state_dict().items():
        torch.testing.assert_close(value, alone.state_dict()[name], rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ValueError, match="a module of your own cannot be sent to other processes; use engine local"
    ):
        siafu.train(graph, model=Own(), out=tmp_path / "no", ranks=2, epochs=6)
    with pytest.raises(
        ValueError, match=r"your module has a Dropout, which draws .* use siafu\.nn\.dropout\.Dropout"
    ):
        siafu.train(
            graph, model=nn.Sequential(nn.Dropout()), out=tmp_path / "no", ranks=2, engine="local", epochs=6
        )
    assert not (tmp_path / "no").exists()


def test_torchs_own_generator_is_left_alone(graph: Graph, tmp_path: Path) -> None:
    own, before = Own(), torch.random.get_rng_state()
    siafu.train(graph, out=tmp_path / "run", ranks=2, engine="local", **SOME)
    siafu.train(graph, model=own, out=tmp_path / "own", epochs=2)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("ranks", [1, 2])
def test_unused_parameters_of_a_module_do_not_change(graph: Graph, tmp_path: Path, ranks: int) -> None:
    own = Own()
    own.unused = nn.Linear(2, 2)
    before = own.unused.weight.detach().clone()
    siafu.train(
        graph, model=own, out=tmp_path / "run", ranks=ranks, engine="local", epochs=3, weight_decay=0.1
    )
    assert torch.equal(own.unused.weight, before)


@pytest.mark.parametrize("given", ["no features", "numbers", "labels"])
def test_other_graphs_are_trained_as_on_one_rank(graph: Graph, tmp_path: Path, given: str) -> None:
    assert graph.x is not None
    assert graph.y is not None
    match given:
        case "no features":
            graph = replace(graph, x=None)
        case "numbers":
            graph = replace(graph, y=graph.x[:, :2].contiguous(), x=graph.x[:, 2:].contiguous())
        case "labels":
            graph = replace(graph, y=torch.stack([graph.y == 0, graph.y > 0], 1).to(torch.uint8))
    runs = [
        siafu.train(graph, out=tmp_path / str(ranks), ranks=ranks, engine="local", **SOME) for ranks in (1, 3)
    ]
    alone, several = (siafu.predict(siafu.open(run.directory), graph)["output"] for run in runs)
    torch.testing.assert_close(several, alone, rtol=1e-3, atol=1e-3)
    assert runs[1].metrics["test_score"] == pytest.approx(runs[0].metrics["test_score"], abs=0.05)
    assert runs[1].metrics["metric"] == runs[0].metrics["metric"]


def stop_after(epochs: int) -> Callbacks:
    left = iter([None] * (epochs - 1) + ["SIGTERM"])
    return Callbacks(should_stop=lambda: next(left, None))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_rounded_rows_resume_exactly(graph: Graph, tmp_path: Path, precision: str) -> None:
    settings = {**SOME, "ranks": 2, "engine": "local", "precision": precision, "layers": 3}
    siafu.train(graph, out=tmp_path / "whole", **settings)
    stopped = siafu.train(graph, out=tmp_path / "run", callbacks=stop_after(3), **settings)
    assert (stopped.metrics["finished"], stopped.metrics["epochs"]) == (False, 3)
    siafu.resume(tmp_path / "run", graph=graph)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    exact = siafu.train(graph, out=tmp_path / "exact", **{**settings, "precision": "fp32"})
    assert weights(tmp_path / "exact") != weights(tmp_path / "whole"), "rows were rounded"
    assert exact.metrics["bytes_sent"] > siafu.open(tmp_path / "whole").metrics["bytes_sent"]


# A group that somebody else started.


Grouped = Callable[..., list[siafu.Run]]


@pytest.fixture
def in_group(monkeypatch: pytest.MonkeyPatch) -> Grouped:
    """Calls a function of the rank on each of two ranks that find themselves in a group, here as threads."""
    here = threading.local()

    @contextmanager
    def join(environ: object, *, deadline_s: float, settings: str, **_: bool) -> Iterator[Comm]:
        yield here.comm

    def run(train: Callable[[int], siafu.Run], ranks: int = 2) -> list[siafu.Run]:
        def rank(comm: Comm) -> siafu.Run:
            here.comm = comm
            return train(comm.rank)

        return run_threads(rank, ranks=ranks, threads=1)

    monkeypatch.setattr("siafu.launch.elastic.join", join)
    return run


def test_all_ranks_of_a_group_get_the_metrics(graph: Graph, tmp_path: Path, in_group: Grouped) -> None:
    out, settings = tmp_path / "run", {**SOME, "seeds": 2, "baseline": True}
    first, second = in_group(lambda _: siafu.train(graph, out=out, engine="torchrun", **settings))
    assert first.metrics == second.metrics
    assert (first.rank, second.rank, second.directory) == (0, 1, out)
    assert first.metrics["ranks"] == 2
    siafu.train(graph, out=tmp_path / "local", ranks=2, engine="local", **settings)
    for part in ("seed-0", "seed-1", "seed-0/baseline"):
        assert weights(out / part) == weights(tmp_path / "local" / part)


def test_all_ranks_of_a_group_get_the_ensemble(graph: Graph, tmp_path: Path, in_group: Grouped) -> None:
    out, settings = tmp_path / "run", {**SOME, "ensemble": 2, "correct_and_smooth": {"enabled": True}}
    first, second = in_group(lambda _: siafu.train(graph, out=out, engine="torchrun", **settings))
    assert first.metrics == second.metrics
    assert first.model is not None
    assert second.model is not None
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    local = siafu.train(graph, out=tmp_path / "local", ranks=2, engine="local", **settings)
    assert weights(out) == weights(tmp_path / "local")
    assert first.metrics["test_score"] == local.metrics["test_score"]


def test_a_group_that_is_started_again_after_the_end_finds_the_metrics(
    graph: Graph, tmp_path: Path, in_group: Grouped
) -> None:
    def train(_: int, **more: Any) -> siafu.Run:
        return siafu.train(graph, out=tmp_path / "run", engine="torchrun", baseline=True, **SOME, **more)

    first, second = in_group(train)
    assert second.model is not None
    assert first.model is not None
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), "not the model of the baseline"
    again = in_group(train)
    assert [run.metrics for run in again] == [first.metrics] * 2
    (tmp_path / "run" / "metrics.json").unlink()  # lost after the last epoch
    again = in_group(train)
    assert again[0].metrics["test_score"] == again[1].metrics["test_score"] == first.metrics["test_score"]
    with pytest.raises(
        ValueError, match="already holds a run with other settings or other data; choose another"
    ):
        in_group(lambda rank: train(rank, lr=0.5))


def test_a_users_module_begins_with_the_weights_of_rank_0(
    graph: Graph, tmp_path: Path, in_group: Grouped
) -> None:
    own = [Own(seed=1), Own(seed=2)]  # as processes make them that set no seed
    out = tmp_path / "run"
    first, second = in_group(
        lambda rank: siafu.train(graph, model=own[rank], out=out, engine="torchrun", epochs=6)
    )
    assert first.model is not None
    assert second.model is not None
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    alone = Own(seed=1)
    siafu.train(graph, model=alone, out=tmp_path / "alone", epochs=6)
    torch.testing.assert_close(own[0].last.weight, alone.last.weight, rtol=1e-4, atol=1e-5)


def test_a_group_of_another_size_than_asked_for_is_refused(
    graph: Graph, tmp_path: Path, in_group: Grouped
) -> None:
    with pytest.raises(ValueError, match="ranks is 3, but 2 were started; leave --ranks out"):
        in_group(lambda _: siafu.train(graph, out=tmp_path / "run", engine="torchrun", ranks=3))
    assert not (tmp_path / "run").exists()


# What a user may get wrong.


@pytest.fixture
def store(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_store(graph, Path("store"))
    np.save("short.npy", np.zeros(7, dtype=np.int64))
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--ranks", 0], 2, "ranks is 0; expected a number greater than or equal to 1"),
        (["--ranks", "two"], 2, "--ranks"),
        (
            ["--ranks", 121],
            1,
            "community: 121 parts of 120 nodes; expected at least 1 part and a node for each",
        ),
        (["--ranks", 2, "--engine", "mpi"], 2, "engine is 'mpi'; expected 'auto', 'local', 'processes'"),
        (["--engine", "torchrun", "--set", "threads=1"], 1, "engine torchrun: give --out, so that a group"),
        (["--engine", "torchrun", "--out", "run"], 1, "no rank in the environment: neither RANK nor"),
        (
            ["--ranks", 2, "--set", "partition.by=no.npy"],
            1,
            "partition.by is 'no.npy', and there is no such file",
        ),
        (
            ["--ranks", 2, "--set", "comm.deadline=0"],
            2,
            "comm.deadline is 0; expected a number greater than 0",
        ),
        (["--ranks", 2, "--set", "comm.precision=int3"], 2, "comm.precision is 'int3'; expected 'fp32'"),
    ],
)
def test_impossible_requests_are_refused_in_one_line_and_leave_nothing(
    store: Path, arguments: list[object], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = command("train", "./store", *arguments, capsys=capsys)
    assert (found, out) == (code, ""), err
    assert message in err
    assert "Traceback" not in err
    assert not Path("run").exists()
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_file_of_parts_that_does_not_fit_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--ranks", 2, "--set", "partition.by=short.npy", "--out", "run")
    code, _, err = command("train", "./store", *arguments, capsys=capsys)
    assert code == 1
    assert f"error: {Path('short.npy').absolute()} has 7 rows; expected 120, a part for each node" in err
    assert not Path("run").exists()


def test_a_partition_of_other_data_is_refused(
    store: Path, graph: Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("partition", store, "--parts", 2, capsys=capsys)[0] == 0
    assert graph.x is not None
    write_store(replace(graph, x=graph.x + 1), Path("other"))
    (store / "parts").rename(Path("other") / "parts")
    code, _, err = command("train", "./other", "--ranks", 2, "--out", "run", capsys=capsys)
    assert code == 1
    assert "parts/2-stream: was made for another graph" in err
    assert "Traceback" not in err


def test_a_store_that_may_only_be_read_is_cut_into_the_runs_folder(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = tmp_path / "store", RunFolder(tmp_path / "run")
    write_store(graph, store)
    tree = Config(ranks=2, source=str(store))
    assert partitions_folder(tree, folder) == store / "parts"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert partitions_folder(tree, folder) == tmp_path / "run" / "parts"
    partition_store(store, parts=2)
    assert partitions_folder(tree, folder) == store / "parts", "it was cut before"
    assert partitions_folder(Config(ranks=2), folder) == tmp_path / "run" / "parts"


def test_a_damaged_part_is_reported_with_its_file(
    graph: Graph, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    write_store(graph, store)
    assert command("partition", store, "--parts", 2, capsys=capfd)[0] == 0
    file = store / "parts" / "2-stream" / "part1_x.bin"
    content = bytearray(file.read_bytes())
    content[5] ^= 4
    file.write_bytes(content)
    code, out, err = command("train", store, "--ranks", 2, "--out", tmp_path / "run", capsys=capfd)
    assert (code, out) == (1, "")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert f"{file}: checksum is" in line
    assert 'remove the folder and make it again with "siafu partition"' in line
    assert "Traceback" not in err
    assert "starting again" not in err, "it would be damaged still"


# How far a run of other processes is.


def test_epochs_count_as_safe_once_a_checkpoint_holds_them(tmp_path: Path) -> None:
    folder, told = RunFolder(tmp_path), list[int]()
    followed = EventFollower(folder, Callbacks(lambda epoch, total, **_: told.append(epoch)), total=9)
    assert followed.safe().epoch == 0
    epoch = '{"phase": "epoch", "epoch": %d, "loss": 1.0, "seconds": 0.1}\n'
    folder.events.write_text(epoch % 1 + epoch % 2 + '{"phase": "checkpoint", "ep')
    assert (followed.safe().epoch, told) == (0, [1, 2])
    with folder.events.open("a") as file:
        file.write('och": 2}\n{"phase": "epo\n' + epoch % 3)
    assert (followed.safe().epoch, told) == (2, [1, 2, 3])
    with folder.events.open("a") as file:
        file.write('{"phase": "resume", "epoch": 2}\n' + epoch % 3)
    assert (followed.safe().epoch, told) == (2, [1, 2, 3, 3]), "done again"
