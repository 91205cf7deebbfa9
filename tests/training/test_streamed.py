"""Inputs read from disk range by range: the same result as in memory, in a fraction of it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import siafu
from siafu.data import community
from siafu.graph import Graph
from siafu.nn import streamed
from siafu.store import write_store
from siafu.training.spill import spill_to

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn-residual": {"kind": "gcn", "residual": True, "hidden": 12, "layers": 3},
    "sage": {"kind": "sage", "norm": "layer"},
    "gin": {"kind": "gin"},
    "gat": {"kind": "gat", "heads": 2},
    "gatv2": {"kind": "gatv2", "heads": 2},
    "mlp": {"kind": "mlp", "residual": True},
    "one-layer": {"kind": "gcn", "layers": 1},
    "jump": {"kind": "sage", "jump": "cat"},
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """300 nodes of 3 classes, 12 counts each."""
    made = community(300, degree=8, classes=3, features=12)
    assert made.x is not None
    return replace(made, x=made.x.relu().round())


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "_RANGE_BYTES", 4 * 12 * 70)  # 70 rows at a time
    monkeypatch.setattr("siafu.nn.aggregates.halo._HALO_BYTES", 4 * 300 * 5)


def trained(graph: Graph, out: Path, model: dict[str, Any], **settings: Any) -> siafu.Run:
    config = {"model": {"hidden": 8, **model}, **settings.pop("config", {})}
    return siafu.train(graph, out=out, epochs=6, patience=0, config=config, **settings)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_streamed_inputs_train_the_same_model(graph: Graph, tmp_path: Path, model: str, ranks: int) -> None:
    how = {"ranks": ranks, "engine": "local", "threads": 1}
    memory = trained(graph, tmp_path / "memory", MODELS[model], inputs="memory", **how)
    stream = trained(graph, tmp_path / "stream", MODELS[model], inputs="stream", **how)
    assert memory.model is not None
    assert stream.model is not None
    found = stream.model.state_dict()
    for name, value in memory.model.state_dict().items():
        torch.testing.assert_close(
            found[name], value, rtol=2e-3, atol=2e-4, msg=lambda t, n=name: f"{n}: {t}"
        )
    wanted = siafu.predict(memory, graph)["output"]
    torch.testing.assert_close(siafu.predict(stream, graph)["output"], wanted, rtol=1e-3, atol=1e-3)
    assert not [path for path in stream.directory.iterdir() if path.name.startswith("tmp")]


def test_narrow_features_are_widened_as_they_are_read(graph: Graph, tmp_path: Path) -> None:
    assert graph.x is not None
    narrow = replace(graph, x=graph.x.bfloat16())
    for model in ("gcn", "sage"):
        memory = trained(narrow, tmp_path / f"{model}-memory", MODELS[model], inputs="memory")
        stream = trained(narrow, tmp_path / f"{model}-stream", MODELS[model], inputs="stream")
        assert stream.metrics["val_score"] == pytest.approx(memory.metrics["val_score"], abs=0.02)


def test_what_needs_all_inputs_at_once_is_refused_by_name(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.inputs is stream; set model\.reduce to mean"):
        trained(graph, tmp_path / "max", {"kind": "sage", "reduce": "max"}, inputs="stream")
    with pytest.raises(ValueError, match=r"your module reads all inputs at once, but data\.inputs is stream"):
        siafu.train(graph, model=torch.nn.Linear(12, 3), out=tmp_path / "own", inputs="stream")


def test_an_array_on_disk_needs_room(tmp_path: Path) -> None:
    made = spill_to(tmp_path)(3, 2)
    assert made.tolist() == [[0.0, 0.0]] * 3
    assert not list(tmp_path.iterdir()), "its file has no name"
    assert spill_to(tmp_path)(0, 5).shape == (0, 5)
    with pytest.raises(OSError, match=str(tmp_path)):
        spill_to(tmp_path)(2**40, 2**10)


MEASURE = """
import sys, threading
import siafu

def anonymous() -> int:
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

store, out, model = sys.argv[1:]
siafu.train("karate", out=out + "-warm", epochs=1)  # everything is imported
before, peak, done = anonymous(), 0, threading.Event()

def watch() -> None:
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
heads = {"heads": 2} if model == "gat" else {}
siafu.train(store, out=out, model=model, epochs=2, inputs="stream", hidden=8, threads=1, **heads)
done.set()
watcher.join()
print(peak - before)
"""


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_features_larger_than_what_is_held_in_memory(
    tmp_path_factory: pytest.TempPathFactory, model: str
) -> None:
    folder = tmp_path_factory.getbasetemp() / "wide"
    if not folder.exists():
        folder.mkdir()
        small = community(40_000, degree=4, classes=3, features=4)
        wide = torch.randn(40_000, 1000, generator=torch.Generator().manual_seed(0))
        write_store(replace(small, x=wide), folder / "store")
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder / "store"), str(folder / f"run-{model}"), model],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.splitlines()[-1]) < 130e6, (
        "of 160 MB of features, whose aggregate is as large again"
    )
