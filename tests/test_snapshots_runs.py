"""Whole runs on dynamic graphs: from the command line and from Python, resumed, on ranks, opened for inference."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import torch
from in_process import command

import siafu
from siafu.dynamic import DynamicGraph, Protocol
from siafu.store import write_dynamic
from siafu.training.procedure import Callbacks

NODES, STEPS = 40, 24
SMALL = {"hidden": 8, "threads": 1, "epochs": 4, "lr": 0.02}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def events() -> dict[str, np.ndarray]:
    """Contacts within each half of the nodes; pairs tend to repeat their contacts."""
    draw = np.random.default_rng(0)
    half = draw.integers(0, 2, 900)
    src, dst = (half * (NODES // 2) + draw.integers(0, NODES // 2, (2, 900))).astype(np.int64)
    t = draw.integers(0, STEPS, 900)
    again = draw.integers(0, 900, 900)
    return {
        "src": np.concatenate([src, src[again]]),
        "dst": np.concatenate([dst, dst[again]]),
        "t": np.concatenate([t, np.minimum(t[again] + 1, STEPS - 1)]),
    }


@pytest.fixture(scope="module")
def graph(events: dict[str, np.ndarray]) -> DynamicGraph:
    return DynamicGraph.from_events(
        *events.values(),
        num_nodes=NODES,
        undirected=True,
        protocol=Protocol(window=3, edge_life=3, negatives=5),
    )


def stop_after(epochs: int) -> Callbacks:
    left = iter([None] * (epochs - 1) + ["SIGTERM"])
    return Callbacks(lambda *_, **__: None, lambda: next(left, None))


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("setting", ["link.recency=true", "link.activity=true", "link.activity=false"])
def test_links_are_learned_from_a_file_of_events_and_pairs_are_scored(
    tmp_path: Path, events: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    np.savez(tmp_path / "events.npz", **events)
    store, run, pairs = tmp_path / "store", tmp_path / "run", tmp_path / "pairs.csv"
    assert (
        command("import", store, "--events", tmp_path / "events.npz", "--undirected", capsys=capsys)[0] == 0
    )
    asked = ("--task", "link", "--hidden", 8, "--epochs", 6, "--lr", 0.02, "--set", "snapshots.window=3")
    asked += ("--set", setting)
    code, out, err = command(
        "train", store, *asked, "--set", "threads=1", "--out", run, "--json", capsys=capsys
    )
    assert not code, err
    found = json.loads(out)
    assert (found["method"], found["task"], found["metric"]) == ("snapshots", "link", "map")
    assert found["test_map"] == found["test_score"]
    assert found["test_auc"] > (
        0.6 if "recency" in setting else 0.4
    )  # pairs with a past contact rank above others
    pairs.write_text("src,dst\n0,1\n0,39\n")
    scored = tmp_path / "scored.parquet"
    code, _, err = command("predict", run, "--pairs", pairs, "--out", scored, capsys=capsys)
    assert not code, err
    assert pq.read_table(scored).num_rows == 2
    assert command("report", run, "--out", tmp_path / "report.html", capsys=capsys)[0] == 0


@pytest.mark.parametrize("window", [0, 3])
def test_stopped_and_resumed_a_run_ends_with_the_same_bytes(
    tmp_path: Path, graph: DynamicGraph, window: int
) -> None:
    asked: dict[str, Any] = {**SMALL, "model": "cd-gcn", "window": window, "recency": True}
    siafu.train(graph, out=tmp_path / "whole", **asked)
    stopped = siafu.train(graph, out=tmp_path / "stopped", callbacks=stop_after(2), **asked)
    assert not stopped.metrics["finished"]
    assert siafu.resume(tmp_path / "stopped", graph=graph).metrics["finished"]
    assert weights(tmp_path / "whole") == weights(tmp_path / "stopped")


def test_threads_and_processes_end_with_the_same_bytes_also_when_a_rank_is_killed(
    tmp_path: Path, graph: DynamicGraph
) -> None:
    asked: dict[str, Any] = {**SMALL, "model": "cd-gcn", "ranks": 2, "window": 0, "blocks": 2}
    siafu.train(graph, engine="local", out=tmp_path / "local", **asked)
    killed: list[int] = []

    def kill(epoch: int, *_: Any, **__: Any) -> None:
        ranks = _ranks_below(os.getpid())
        if epoch == 2 and not killed and ranks:
            killed.append(ranks[-1])
            os.kill(ranks[-1], signal.SIGKILL)

    siafu.train(graph, engine="processes", out=tmp_path / "processes", callbacks=Callbacks(kill), **asked)
    assert killed
    assert weights(tmp_path / "local") == weights(tmp_path / "processes")


def _ranks_below(pid: int) -> list[int]:
    children = psutil.Process(pid).children(recursive=True)
    return sorted(child.pid for child in children if "siafu.rank" in " ".join(_words(child)))


def _words(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if it has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # also raised for a zombie
        return []


@pytest.mark.parametrize("kind", ["evolvegcn-h", "tm-gcn", "mingru"])
def test_a_saved_model_predicts_the_same(tmp_path: Path, graph: DynamicGraph, kind: str) -> None:
    run = siafu.train(graph, out=tmp_path / "run", model=kind, **SMALL)
    asked: dict[str, Any] = {"embeddings": True, "pairs": torch.tensor([[0, 1], [2, 39]])}
    first = siafu.predict(run, graph, **asked)
    again = siafu.predict(siafu.open(tmp_path / "run"), graph, **asked)
    assert first["embedding"].shape == (NODES, 8)
    for name, values in first.items():
        assert torch.equal(values, again[name])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "full"}, "use method snapshots"),
        ({"model": "gcn"}, "choose one of cd-gcn"),
        ({"task": "edge"}, "its events have no classes to learn"),
        ({"task": "node"}, "its nodes have no labels to learn"),
        ({"window": 30}, "set snapshots.window or snapshots.step lower"),
        ({"model": "cd-gcn", "ranks": 5, "engine": "local"}, "give at most 4"),
        ({"most_pairs": 10}, "link.evaluation=1000"),
    ],
)
def test_settings_that_cannot_be_trained_are_refused_with_a_reason(
    tmp_path: Path, graph: DynamicGraph, settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        siafu.train(graph, out=tmp_path / "run", **(SMALL | settings))


def test_a_static_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this one does not"):
        siafu.train("karate", method="snapshots", out=tmp_path / "run")


def test_named_data_sets_bring_their_protocol(data_home: Path, tmp_path: Path) -> None:
    asked = [
        "train",
        "ucsocial",
        "--task",
        "link",
        "--model",
        "evolvegcn-o",
        "--hidden",
        "4",
        "--epochs",
        "1",
        "--json",
    ]
    environ = os.environ | {"SIAFU_DATA": str(data_home), "OMP_NUM_THREADS": "1"}
    program = [
        sys.executable,
        "-c",
        "from siafu.cli import main; main()",
        *asked,
        "--out",
        str(tmp_path / "run"),
    ]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=120, env=environ)
    assert ran.returncode == 0, ran.stderr
    settings = siafu.open(tmp_path / "run").settings
    assert (settings.snapshots.step, settings.snapshots.window, settings.link.negatives) == (190_080, 10, 50)
    assert 0 < json.loads(ran.stdout)["test_map"] < 0.2


def test_the_default_task_depends_on_labels_and_may_be_set(
    tmp_path: Path, events: dict[str, np.ndarray]
) -> None:
    labels = torch.arange(NODES) // (NODES // 2)
    graph = DynamicGraph.from_events(*events.values(), num_nodes=NODES, y=labels, undirected=True)
    write_dynamic(graph, tmp_path / "labelled")
    for task, asked in (("node", {}), ("link", {"task": "link"})):
        run = siafu.train(tmp_path / "labelled", out=tmp_path / task, **SMALL | {"epochs": 1} | asked)
        assert f'task = "{task}"' in (tmp_path / task / "config.toml").read_text()
        assert run.metrics["metric"] == ("accuracy" if task == "node" else "map")
