"""Whole runs of link prediction: from the command line and from Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from in_process import command

import siafu
from siafu.data import community
from siafu.data.npz import write_npz
from siafu.graph import Graph
from siafu.training.procedure import Callbacks

pytestmark = pytest.mark.usefixtures("one_thread")
METHODS = ["full", "sampled"]


@pytest.fixture(scope="module")
def bare() -> Graph:
    """A graph of communities without features."""
    full = community(200, degree=10, classes=4, features=0, inside=0.95)
    return Graph(full.indptr, full.indices, name="bare")


def settings(method: str, **more: Any) -> dict[str, Any]:
    minibatches = {"batch_size": 256} if method == "sampled" else {}
    return {"task": "link", "method": method, "hidden": 16, **minibatches, **more}


def stop_after(epochs: int) -> Callbacks:
    left = iter([None] * (epochs - 1) + ["SIGTERM"])
    return Callbacks(lambda *_, **__: None, lambda: next(left, None))


@pytest.mark.parametrize("method", METHODS)
def test_edges_are_predicted_with_features_and_without(
    graph: Graph, bare: Graph, tmp_path: Path, method: str
) -> None:
    epochs = {"full": 60, "sampled": 15}[method]
    with_features = siafu.train(graph, out=tmp_path / "one", **settings(method, epochs=epochs)).metrics
    without = siafu.train(bare, out=tmp_path / "other", **settings(method, epochs=epochs)).metrics
    assert with_features["test_roc_auc"] > 0.7
    assert without["test_roc_auc"] > 0.8
    assert with_features["test_score"] == with_features["test_roc_auc"]
    assert (with_features["metric"], with_features["task"]) == ("roc_auc", "link")
    assert with_features["protocol"] == "all pairs"
    assert 0 < without["test_mrr"] <= without["test_hits_50"] <= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_run_resumes_exactly(bare: Graph, tmp_path: Path, method: str) -> None:
    how = settings(method, epochs=4)
    whole = siafu.train(bare, out=tmp_path / "whole", **how)
    stopped = siafu.train(bare, out=tmp_path / "run", callbacks=stop_after(2), **how)
    assert not stopped.metrics["finished"]
    resumed = siafu.resume(tmp_path / "run", graph=bare)
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "run"))
    assert one == other
    assert resumed.metrics["test_mrr"] == whole.metrics["test_mrr"]


def test_a_saved_run_scores_pairs_by_the_ids_of_its_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edges = np.array([[0, 1, 2, 3, 4, 5, 0, 2, 4, 1], [1, 2, 3, 4, 5, 0, 2, 4, 0, 3]])
    names = np.array(["a", "b", "c", "d", "e", "f"])
    write_npz(
        tmp_path / "ring.npz",
        {
            "edge_index": np.concatenate([edges, edges[::-1]], 1),
            "node_names": names,
            "num_nodes": np.array(6),
        },
    )
    how = ["--task", "link", "--epochs", "3", "--hidden", "4", "--out", tmp_path / "run", "--json"]
    code, printed, said = command("train", tmp_path / "ring.npz", *how, capsys=capsys)
    assert code == 0, said
    assert {"test_score", "val_score", "test_map", "test_mrr"} <= json.loads(printed).keys()
    pq.write_table(pa.table({"src": ["a", "f"], "dst": ["d", "b"]}), tmp_path / "pairs.parquet")
    asked = ["--pairs", tmp_path / "pairs.parquet", "--out", tmp_path / "p.parquet", "--json"]
    code, printed, said = command("predict", tmp_path / "run", *asked, capsys=capsys)
    assert (code, json.loads(printed)["pairs"]) == (0, 2), said
    table = pq.read_table(tmp_path / "p.parquet").to_pydict()
    run, ring = siafu.open(tmp_path / "run"), siafu.load(tmp_path / "ring.npz")
    found = siafu.predict(run, ring, pairs=[[0, 5], [3, 1]], out=tmp_path / "nodes.parquet")
    assert (table["src"], table["dst"]) == (["a", "f"], ["d", "b"])
    assert table["score"] == pytest.approx(found["score"].tolist())
    assert table["probability"] == pytest.approx(found["score"].sigmoid().tolist())
    nodes = pq.read_table(tmp_path / "nodes.parquet").to_pydict()
    assert nodes["id"] == names.tolist()
    assert torch.equal(torch.tensor(nodes["embedding"]), found["output"])
    (tmp_path / "wrong.csv").write_text("src,dst\na,z\n")
    code, _, said = command("predict", tmp_path / "run", "--pairs", tmp_path / "wrong.csv", capsys=capsys)
    assert (code, "there is no node 'z'" in said) == (1, True), said


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ranks": 2}, "ranks is 2, but task link on a graph that does not change trains on one"),
        ({"method": "pipeline"}, "method pipeline learns nodes; use method full or sampled"),
        ({"task": "edge"}, "needs a graph that changes over time"),
        ({"most_pairs": 100}, r"all pairs of 200 nodes are 4e\+04 a step.*link\.evaluation=1000"),
        ({"model": torch.nn.Linear(2, 2)}, "task link trains siafu's own models"),
    ],
    ids=["ranks", "method", "task", "pairs", "module"],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    bare: Graph, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        siafu.train(bare, out=tmp_path / "run", **({"task": "link", "epochs": 1, "engine": "local"} | wrong))
    assert not (tmp_path / "run").exists()


def test_pairs_are_refused_of_a_run_on_nodes(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", epochs=1)
    with pytest.raises(ValueError, match="trained on nodes, not on pairs"):
        siafu.predict(run, graph, pairs=[[0], [1]])
