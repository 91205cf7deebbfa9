"""Resume, predict and report work with every kind of data that a run can be trained on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from in_process import command

import siafu
from siafu.data import community
from siafu.data.npz import write_npz
from siafu.dynamic import DynamicGraph, Protocol
from siafu.graph import Graph
from siafu.results.progress import TrainingProgress
from siafu.store import write_store
from siafu.training.procedure import Callbacks

pytestmark = pytest.mark.usefixtures("one_thread")

NODES, STEPS, DAY = 32, 20, 86_400
OVER_TIME = ("--set", "snapshots.window=2", "--set", "link.negatives=2")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIAFU_DATA", str(tmp_path / "home"))


@pytest.fixture
def siafu_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must end well; returns what it printed."""

    def run(*arguments: object, expected: int = 0) -> str:
        code, out, err = command(*arguments, capsys=capsys)
        assert code == expected, err
        return out + err

    return run


def static() -> Graph:
    return community(NODES, degree=4, classes=2, features=4)


def events() -> dict[str, np.ndarray]:
    """Ten calls a day, at midnight."""
    draw = np.random.default_rng(0)
    src, dst = draw.integers(0, NODES, (2, 10 * STEPS))
    days = np.repeat(np.arange(STEPS), 10)
    return {"src": src, "dst": dst, "t": days * DAY}


def write_static(path: Path) -> None:
    graph = static()
    assert graph.x is not None
    assert graph.y is not None
    dst = np.repeat(np.arange(NODES), np.diff(graph.block.indptr.numpy()))
    masks = {name: getattr(graph, name).numpy() for name in ("train_mask", "val_mask", "test_mask")}
    arrays = {"edge_index": np.stack([graph.block.indices.numpy(), dst]), "x": graph.x.numpy()}
    path.parent.mkdir(exist_ok=True, parents=True)
    write_npz(path, {**arrays, "y": graph.y.numpy(), **masks})


def write_events(path: Path, **more: Any) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    write_npz(path, {**events(), "num_nodes": np.array(NODES), **more})


def import_events(run: Callable[..., str], *options: object) -> str:
    rows = zip(*(column.tolist() for column in events().values()), strict=True)
    lines = ["src,dst,time", *(",".join(map(str, row)) for row in rows)]
    Path("calls.csv").write_text("\n".join(lines) + "\n")
    run("import", "calls", "--events", "calls.csv", *options)
    return "calls"


def made(kind: str, run: Callable[..., str]) -> tuple[str, tuple[str, ...]]:
    """The name or path of some data, and the options that training on it needs."""
    match kind:
        case "bundled name":
            return "karate", ()
        case "name in the data home":
            write_static(Path("home/friends.npz"))
            return "friends", ()
        case "name of events in the data home":
            write_events(Path("home/temporal/calls.npz"), step=np.array(DAY))
            return "calls", OVER_TIME
        case "store in the data home":
            Path("home").mkdir()
            import_events(run, "--step", DAY)
            Path("calls").rename("home/calls")
            return "calls", OVER_TIME
        case "npz":
            write_static(Path("friends.npz"))
            return "friends.npz", ()
        case "npz of events":
            write_events(Path("calls.npz"), step=np.array(DAY))
            return "calls.npz", OVER_TIME
        case "npz of events, cut by a setting":
            write_events(Path("calls.npz"))
            return "calls.npz", (*OVER_TIME, "--set", f"snapshots.step={DAY}")
        case "store":
            write_store(static(), Path("friends"))
            return "friends", ()
        case "dynamic store, --step":
            return import_events(run, "--step", DAY), OVER_TIME
        case "dynamic store, --steps":
            return import_events(run, "--steps", STEPS), OVER_TIME
        case "dynamic store, distinct times":
            return import_events(run), OVER_TIME
        case "generated":
            return f"community:nodes={NODES},degree=4,classes=2,features=4", ()
        case "generated over time":
            return f"transactions:nodes={NODES},steps={STEPS},events=200", OVER_TIME[:2]
    raise AssertionError(kind)


KINDS = [
    "bundled name",
    "name in the data home",
    "name of events in the data home",
    "store in the data home",
    "npz",
    "npz of events",
    "npz of events, cut by a setting",
    "store",
    "dynamic store, --step",
    "dynamic store, --steps",
    "dynamic store, distinct times",
    "generated",
    "generated over time",
]


def interrupt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends this process a Ctrl-C after the second epoch that is trained."""
    show, left = TrainingProgress.epoch, iter([None, signal.SIGINT])

    def interrupt(self: TrainingProgress, epoch: int, total: int | None, **fields: Any) -> None:
        show(self, epoch, total, **fields)
        if number := next(left, None):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(TrainingProgress, "epoch", interrupt)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_is_resumed_asked_and_reported_whatever_it_was_trained_on(
    kind: str, siafu_command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, options = made(kind, siafu_command)
    interrupt_once(monkeypatch)
    small = ("--epochs", 3, "--hidden", 4, *options)
    siafu_command("train", source, *small, "--out", "run", expected=130)
    siafu_command("report", "run", "--out", "stopped.html")
    siafu_command("resume", "run")
    siafu_command("predict", "run", "--out", "own.parquet")
    siafu_command("predict", "run", source, "--out", "named.parquet")
    siafu_command("report", "run")
    nodes = 34 if source == "karate" else NODES
    assert pq.read_table("own.parquet").num_rows == nodes
    assert Path("own.parquet").read_bytes() == Path("named.parquet").read_bytes()
    assert Path("stopped.html").is_file()
    assert Path("report.html").is_file()


def dynamic() -> DynamicGraph:
    protocol = Protocol(window=2, negatives=2)
    return DynamicGraph.from_events(*events().values(), step=DAY, num_nodes=NODES, protocol=protocol)


@pytest.mark.parametrize("make", [static, dynamic])
def test_a_run_on_a_python_value_is_resumed_and_asked_in_python_and_the_commands_say_so(
    make: Callable[[], Graph | DynamicGraph], siafu_command: Callable[..., str]
) -> None:
    graph, left = make(), iter([None, "SIGINT"])
    stop = Callbacks(should_stop=lambda: next(left, None))
    stopped = siafu.train(graph, out="run", epochs=3, hidden=4, callbacks=stop)
    assert not stopped.metrics["finished"]
    said = siafu_command("resume", "run", expected=1)
    assert "run: trained on a graph given in Python; resume it from there with graph=" in said
    run = siafu.resume("run", graph=graph)
    assert siafu.predict(run, graph, out="own.parquet")["output"].shape[0] == NODES
    assert pq.read_table("own.parquet").num_rows == NODES
    said = siafu_command("predict", "run", expected=1)
    assert "run: trained on a graph given in Python; name the data to predict" in said
    siafu_command("report", "run")


def test_a_store_is_read_with_its_own_steps_alone(siafu_command: Callable[..., str]) -> None:
    import_events(siafu_command, "--step", DAY)
    assert siafu.load("calls", step=DAY).num_nodes == NODES
    with pytest.raises(
        ValueError, match=r"calls: has 20 steps, each 86400 long, but step is 3600; leave step"
    ):
        siafu.load("calls", step=3600)
    with pytest.raises(ValueError, match=r"but steps is 7; leave steps out, or import the events again"):
        siafu.load("calls", steps=7)
    with pytest.raises(ValueError, match=r"karate: does not change over time, but step is 3; leave step out"):
        siafu.load("karate", step=3)
