"""Whole lazy runs by command line and Python: on every engine, stopped and resumed, opened and used for prediction."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from in_process import command
from torch import nn

import siafu
from siafu.data import community
from siafu.graph import Graph
from siafu.results.read import read_run
from siafu.results.report import write_report
from siafu.results.report.stages import bytes_and_scores, stage_bytes, stages
from siafu.training.procedure import Callbacks

DATA = "community:nodes=240,degree=8,classes=3,features=12"
LAZY = {"method": "lazy", "hidden": 8, "threads": 1, "epochs": 12}
TIMEOUT_S = 240


pytestmark = pytest.mark.usefixtures("one_thread")


def found_by(*arguments: object, capsys: pytest.CaptureFixture[str], expected: int = 0) -> dict[str, Any]:
    """What a command in this process prints with ``--json``."""
    code, out, err = command(*arguments, "--json", capsys=capsys)
    assert code == expected, err
    return json.loads(out)


def stop_after(epochs: int) -> Callbacks:
    """Stops a run once, so many epochs after it began."""
    left = iter([None] * (epochs - 1) + ["SIGTERM"])
    return Callbacks(lambda *_, **__: None, lambda: next(left, None))


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def test_the_command_trains_on_a_given_assignment_and_reports_the_traffic_of_each_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "parts.npy"
    np.save(parts, np.arange(240) % 2)
    settings = (
        "--hidden",
        "8",
        "--epochs",
        "60",
        "--engine",
        "local",
        "--set",
        f"partition.by={parts}",
        "--set",
        "threads=1",
    )
    run = tmp_path / "run"
    asked = ("train", DATA, "--method", "lazy", "--ranks", "2", "--out", run, *settings)
    found = found_by(*asked, capsys=capsys)
    first, second = found["stages"]
    sent = found["bytes_by_label"]
    assert found["message_bytes"] == sent["halo degrees"] + sent["halo 1"] + sent["halo 2"]
    assert found["parameter_bytes"] == sent["gradients 1"] + sent["gradients 2"]
    assert (first["message_bytes"], second["parameter_bytes"]) == (sent["halo 1"], sent["gradients 2"])
    assert first["rounds"] + second["rounds"] == found["epochs"]
    assert found["test_accuracy"] > 0.8
    assert found["test_score"] == [first, second][found["stage"] - 1]["test_score"]

    # Nodes 0, 2, 4, … have one owner, the others another: all their neighbours of the other kind are its halo.
    graph = siafu.load(DATA)
    row = torch.arange(240).repeat_interleave(graph.indptr.diff())
    read = {(int(dst) % 2, int(src)) for dst, src in zip(row, graph.indices, strict=True)}
    halo = sum(part != src % 2 for part, src in read)
    headers = 2 * 2 * 100  # two messages a rank
    assert 4 * halo * 12 <= sent["halo 1"] <= 4 * halo * 12 + headers
    assert halo * 8 <= sent["halo 2"] <= 4 * halo * 8 + headers, "zeros are not sent"

    predictions = tmp_path / "predictions.parquet"
    found_by("predict", run, "--out", predictions, "--embeddings", capsys=capsys)
    classes = np.asarray(pq.read_table(predictions)["class"]).astype(int)
    test = np.asarray(graph.test_mask)
    assert np.mean(classes[test] == np.asarray(graph.y)[test]) == pytest.approx(found["test_accuracy"])


def test_threads_and_processes_end_with_the_same_bytes(tmp_path: Path) -> None:
    for engine in ("local", "processes"):
        siafu.train(DATA, ranks=2, engine=engine, out=tmp_path / engine, config={"method": "lazy"}, **_few())
    assert weights(tmp_path / "local") == weights(tmp_path / "processes")


def _few() -> dict[str, Any]:
    return {key: value for key, value in LAZY.items() if key != "method"}


@pytest.mark.parametrize("recipe", ["published", "logits"])
def test_stopped_in_its_second_stage_and_resumed_a_run_ends_with_the_same_bytes(
    tmp_path: Path, graph: Graph, recipe: str
) -> None:
    settings: dict[str, Any] = LAZY | {"recipe": recipe, "ranks": 2, "engine": "local", "bits": 8}
    whole = siafu.train(graph, out=tmp_path / "whole", **settings)
    first = whole.metrics["stages"][0]["rounds"]
    stopped = siafu.train(graph, out=tmp_path / "run", callbacks=stop_after(first + 2), **settings)
    assert stopped.metrics["stopped_by"] == "SIGTERM"
    assert len(stopped.metrics["stages"]) == 1
    again = siafu.resume(tmp_path / "run", graph=graph, callbacks=Callbacks())
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    same = ("test_score", "val_score", "epochs", "best_epoch", "stage")
    assert [again.metrics[key] for key in same] == [whole.metrics[key] for key in same]
    assert again.metrics["message_bytes"] > whole.metrics["message_bytes"], "rows were exchanged once more"


def test_a_command_terminated_in_the_second_stage_is_resumed_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("train", DATA, "--method", "lazy", "--ranks", "2", "--engine", "local", "--epochs", "60")
    asked = (*asked, "--hidden", "8", "--set", "threads=1", "--set", "train.patience=0")
    run = tmp_path / "run"
    told = threading.Thread(target=end_at, args=(run / "events.jsonl", 63))
    told.start()
    stopped = found_by(*asked, "--out", run, capsys=capsys, expected=143)
    told.join()
    assert 60 < stopped["epochs"] < 120, "within the second of two stages"
    found_by("resume", run, capsys=capsys)
    found_by(*asked, "--out", tmp_path / "whole", capsys=capsys)
    assert weights(run) == weights(tmp_path / "whole")


def end_at(events: Path, epoch: int) -> None:
    """Tell this process to end once it has written so many epochs, if it listens."""
    until = time.monotonic() + TIMEOUT_S
    while not events.is_file() or f'"epoch":{epoch},'.encode() not in events.read_bytes():
        if time.monotonic() > until:
            return
        time.sleep(0.002)  # no file tells that it changed
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gcn", "bits": 8},
        {"model": "sage", "recipe": "logits"},
        {"model": "gat", "heads": 2, "layers": 3},
        {"model": "gin", "jump": "max"},
        {"model": "mlp"},
    ],
)
def test_an_opened_run_computes_the_scored_outputs_and_predicts_new_nodes(
    tmp_path: Path, graph: Graph, settings: dict[str, Any]
) -> None:
    run = siafu.train(graph, out=tmp_path / "run", ranks=2, engine="local", **LAZY, **settings)
    opened = siafu.open(tmp_path / "run")
    out = siafu.predict(opened, graph, embeddings=True)
    right = (out["output"].argmax(1) == graph.y)[graph.test_mask].double().mean()
    assert float(right) == pytest.approx(run.metrics["test_score"])
    assert out["embedding"].shape[0] == 240
    assert torch.equal(siafu.predict(run, graph)["output"], out["output"])
    new = community(150, degree=8, classes=3, features=12, seed=1)
    assert siafu.predict(opened, new)["output"].shape == (150, 3)
    narrow = replace(new, x=None if new.x is None else new.x[:, :5])
    with pytest.raises(ValueError, match="has 5 features, but the model was trained on 12"):
        siafu.predict(opened, narrow)


def test_defaults_suit_the_method_and_given_settings_override_them(tmp_path: Path, graph: Graph) -> None:
    run = siafu.train(graph, out=tmp_path / "run", **LAZY)
    tree = run.settings
    assert (tree.model.norm, tree.train.patience, tree.comm.gradients) == ("layer", 10, "int4")
    given = siafu.train(graph, out=tmp_path / "given", norm="none", patience=3, gradients="fp32", **LAZY)
    tree = given.settings
    assert (tree.model.norm, tree.train.patience, tree.comm.gradients) == ("none", 3, "fp32")
    assert siafu.train(graph, out=tmp_path / "full", epochs=2).settings.comm.gradients == "fp32"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 5}, r"lazy\.bits is 5; expected 32, 16, 8 or 4"),
        ({"recipe": "lazier"}, r"lazy\.recipe is 'lazier'; expected 'published'"),
        ({"local_epochs": 0}, r"lazy\.local_epochs is 0; expected a number greater than or equal to 1"),
        ({"norm": "batch"}, r"model\.norm is batch, .* set it to layer"),
        ({"precision": "int8"}, r"comm\.precision is int8, .* lazy\.bits .* set that instead"),
        ({"inputs": "stream"}, r"method lazy holds .* set data\.inputs to memory"),
    ],
)
def test_invalid_settings_are_refused_with_advice(
    tmp_path: Path, graph: Graph, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        siafu.train(graph, out=tmp_path / "run", **LAZY, **settings)


def test_graphs_without_features_and_custom_modules_are_refused(tmp_path: Path, graph: Graph) -> None:
    with pytest.raises(ValueError, match="method lazy reads features, but there are none; use method full"):
        siafu.train(replace(graph, x=None), out=tmp_path / "bare", **LAZY)
    with pytest.raises(ValueError, match="method lazy trains siafu's own models; use method full"):
        siafu.train(graph, model=nn.Linear(12, 3), method="lazy", out=tmp_path / "own")


def test_without_validation_nodes_the_last_stage_is_chosen(tmp_path: Path, graph: Graph) -> None:
    run = siafu.train(replace(graph, val_mask=None), out=tmp_path / "run", **LAZY)
    assert run.metrics["stage"] == 2
    assert run.metrics["val_score"] is None
    assert run.metrics["epochs"] == 24


def test_isolated_nodes_are_scored_like_all_others(tmp_path: Path, graph: Graph) -> None:
    lonely = torch.zeros(240, dtype=torch.bool)
    lonely[torch.as_tensor(graph.test_mask).nonzero()[:20, 0]] = True
    row = torch.arange(240).repeat_interleave(graph.indptr.diff())
    keep = ~lonely[row] & ~lonely[graph.indices.long()]
    edges = torch.stack([graph.indices.long()[keep], row[keep]])
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    bare = Graph.from_edges(edges, x=graph.x, y=graph.y, **masks)
    for model in ("gcn", "sage", "gat"):
        run = siafu.train(bare, model=model, out=tmp_path / model, ranks=2, engine="local", **LAZY)
        confusion = read_run(run.directory).last("result")["confusion"]
        assert np.sum(confusion) == int(torch.as_tensor(graph.test_mask).sum())


def test_the_report_shows_stages_and_bytes_against_accuracy(tmp_path: Path, graph: Graph) -> None:
    for seed in (0, 1):
        siafu.train(graph, out=tmp_path / f"run{seed}", ranks=2, engine="local", seed=seed, **LAZY)
    record = read_run(tmp_path / "run0")
    ended = [event for event in record.events if event["phase"] == "stage"]
    assert [event["stage"] for event in ended] == [1, 2]
    rows, updates = stage_bytes(ended)["data"]
    assert rows["x"] == [event["message_bytes"] for event in ended]
    assert updates["x"] == [event["parameter_bytes"] for event in ended]
    so_far = bytes_and_scores(ended, "accuracy")["data"][0]
    assert so_far["x"][1] == sum(rows["x"]) + sum(updates["x"])
    assert so_far["y"] == [pytest.approx(event["val_score"], abs=1e-5) for event in ended]
    assert ", which answers" in stages(record, "run")
    assert stages(replace(record, events=()), "run") == ""
    write_report([record, read_run(tmp_path / "run1")], tmp_path / "report.html")
    assert "Bytes against accuracy" in (tmp_path / "report.html").read_text()


def test_the_frugal_recipe_runs_from_the_command_and_reports_its_candidates(
    tmp_path: Path, graph: Graph
) -> None:
    settings = LAZY | {"recipe": "frugal", "ranks": 2}
    run = siafu.train(graph, out=tmp_path / "run", engine="local", baseline=True, **settings)
    found = run.metrics
    assert found["test_accuracy"] > 0.8
    assert found["baseline"]["model"] == "mlp"
    assert [stage["stage"] for stage in found["stages"]] == list(range(1, found["epochs"] + 1))
    assert max(stage["val_score"] for stage in found["stages"]) == found["val_score"]
    assert sum(stage["parameter_bytes"] for stage in found["stages"]) == found["parameter_bytes"] > 0
    opened = siafu.open(tmp_path / "run")
    out = siafu.predict(opened, graph)["output"]
    right = (out.argmax(1) == graph.y)[graph.test_mask].double().mean()
    assert float(right) == pytest.approx(found["test_score"])
    new = community(150, degree=8, classes=3, features=12, seed=1)
    assert siafu.predict(opened, new)["output"].shape == (150, 3)
    with pytest.raises(ValueError, match="has 5 features, but the model was trained on 12"):
        siafu.predict(opened, replace(new, x=None if new.x is None else new.x[:, :5]))
    with pytest.raises(ValueError, match="recipe frugal has no hidden rows"):
        siafu.predict(opened, graph, embeddings=True)
    page = stages(read_run(tmp_path / "run"), "run")
    assert all(stage["fits"] in page for stage in found["stages"])
    again = siafu.train(graph, out=tmp_path / "again", engine="local", **settings)
    assert weights(again.directory) == weights(run.directory)
