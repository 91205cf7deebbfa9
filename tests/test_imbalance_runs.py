"""Whole runs on a graph with 2 % positives: metric, threshold, weights, losses and warnings, by every method."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from in_process import command

import siafu
from siafu.graph import Graph
from siafu.store import write_store

NODES = 1500
pytestmark = pytest.mark.usefixtures("one_thread")
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "sampled": {"sampled": {"batch_size": 200, "fanout": [5, 5]}},
    "pipeline": {"pipeline": {"workers": "inline", "intervals": 3}},
    "lazy": {"lazy": {"bits": 32}, "comm": {"gradients": "fp32"}},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 fraudulent accounts of 1500, which differ in a feature and pay each other."""
    draw = np.random.default_rng(0)
    y = np.zeros(NODES, np.int64)
    y[draw.permutation(NODES)[:30]] = 1
    x = draw.normal(size=(NODES, 6)).astype(np.float32)
    x[:, 0] += 2 * y
    few, split = y.nonzero()[0], np.arange(NODES) % 3
    split[few] = np.arange(30) % 3
    edges = np.concatenate([draw.integers(NODES, size=(2, 1500)), few[draw.integers(30, size=(2, 150))]], 1)
    edges = np.concatenate([edges, edges[::-1]], 1)
    masks = {f"{name}_mask": split == place for place, name in enumerate(("train", "val", "test"))}
    graph = Graph.from_edges(edges, x=x, y=y, num_nodes=NODES, **masks)
    folder = tmp_path_factory.mktemp("stores") / "accounts"
    write_store(replace(graph, class_names=("fine", "fraud"), name="accounts"), folder)
    return folder


def losses(run: Path) -> list[float]:
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["phase"] == "epoch"]


def test_a_run_names_the_imbalance_and_predicts_by_its_threshold(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "p.parquet"
    code, printed, said = command(
        *("train", store, "--epochs", 30, "--seed", 1, "--out", run, "--json"), capsys=capsys
    )
    found = json.loads(printed)
    assert code == 0
    assert "2 % of the training labels are class fraud; scored by average precision" in said
    assert found["metric"] == "average_precision"
    assert found["test_score"] == found["test_average_precision"] > 0.2
    assert found["positive_class"] == "fraud"
    assert found["threshold_rule"] == "f1"
    assert 0 < found["threshold"] < 1
    assert found["test_f1_at_threshold"] > found["test_f1"]
    assert {
        f"test_{name}" for name in ("precision_at_k", "recall_at_k", "brier", "calibration_error")
    } <= set(found)
    assert found["warnings"] == []

    code, printed, _ = command("predict", run, "--out", out, "--json", capsys=capsys)
    assert json.loads(printed)["threshold"] == found["threshold"]
    table = pq.read_table(out)
    p = np.stack(table["probability"].to_numpy())[:, 1]
    predicted = table["class"].to_numpy() == "fraud"
    assert (predicted == (p >= found["threshold"])).all()
    assert predicted.sum() > (p >= 0.5).sum()
    assert torch.equal(siafu.predict(run)["class"], torch.from_numpy(predicted).long())
    code, printed, _ = command("predict", run, "--out", out, capsys=capsys)
    assert f"class fraud from a probability of {found['threshold']:.4g} on" in printed
    assert "chosen on validation labels by F1" in printed

    code, printed, _ = command("report", run, "--out", tmp_path / "r.html", capsys=capsys)
    page = (tmp_path / "r.html").read_text()
    for text in ("Precision and recall", "ROC", "Calibration", "at the threshold", "Predicted fraud from"):
        assert text in page


def test_the_summary_compares_the_threshold_with_one_half(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, printed, _ = command("train", store, "--epochs", 5, "--out", tmp_path / "run", capsys=capsys)
    assert "average precision" in printed
    assert " for class fraud, best validation F1; test F1 " in printed
    assert "at 0.5)" in printed


def test_no_better_than_the_majority_is_a_warning(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", "train.metric=accuracy", "--set", "train.threshold=none")
    _, printed, said = command(
        *("train", store, "--epochs", 5, *options, "--out", tmp_path / "run", "--json"), capsys=capsys
    )
    found = json.loads(printed)
    assert found["test_accuracy"] <= found["test_majority_score"] == pytest.approx(0.98, abs=1e-3)
    (warning,) = found["warnings"]
    assert (
        "2 % of the training labels are class fraud; the test accuracy of always answering fine is 98.0 %"
        in warning
    )
    assert f"warning: {warning}" in said
    assert found["threshold"] is None
    notes = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    assert warning in [event["text"] for event in notes if event["phase"] == "note"]


def test_the_first_class_is_predicted_by_the_threshold_where_it_is_rare(store: Path, tmp_path: Path) -> None:
    graph = siafu.load(store)
    assert isinstance(graph, Graph)
    assert graph.y is not None
    swapped = replace(graph, y=1 - graph.y, class_names=None)
    run = siafu.train(swapped, epochs=10, threads=1, search="off", out=tmp_path / "run")
    found = run.metrics
    assert (found["positive_class"], found["majority_class"]) == ("0", "1")
    predicted = siafu.predict(run, swapped)
    p = predicted["output"].double().softmax(1)[:, 0]
    assert torch.equal(predicted["class"] == 0, p >= found["threshold"])
    test = swapped.test_mask
    assert test is not None
    right = (predicted["class"] == swapped.y)[test].double().mean()
    assert float(right) == pytest.approx(found["test_accuracy_at_threshold"])


def test_the_threshold_of_smoothed_outputs_is_for_the_training_graph_alone(
    store: Path, tmp_path: Path
) -> None:
    graph = siafu.load(store)
    assert isinstance(graph, Graph)
    smoothing = {"correct_and_smooth": {"enabled": True, "validation_labels": True}}
    run = siafu.train(graph, config=smoothing, epochs=10, threads=1, search="off", out=tmp_path / "run")
    assert run.metrics["threshold"] is not None
    run = replace(run, metrics=run.metrics | {"smoothed": True, "threshold": 0.0})
    assert siafu.predict(run, graph)["class"].all(), "all are predicted positive"
    other = replace(graph, train_mask=graph.val_mask)
    with pytest.warns(UserWarning, match="it is left out"):
        predicted = siafu.predict(run, other)
    assert torch.equal(predicted["class"], predicted["output"].argmax(1))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_weighs_and_decides_the_same_on_any_ranks(
    method: str, store: Path, tmp_path: Path
) -> None:
    graph, settings = siafu.load(store), {"threads": 1, "epochs": 4, "hidden": 8, "dropout": 0.0}
    settings |= {"loss": "focal", "class_weights": {"fraud": 20}, "patience": 0}
    made = [
        siafu.train(
            graph,
            method=method,
            ranks=ranks,
            engine="local",
            out=tmp_path / f"{method}-{ranks}",
            config=METHODS[method],
            **settings,
        )
        for ranks in (1, 2)
    ]
    one, two = (run.metrics for run in made)
    assert losses(made[1].directory) == pytest.approx(losses(made[0].directory), rel=1e-3)
    assert one["metric"] == two["metric"] == "average_precision"
    for key in ("test_average_precision", "test_roc_auc", "test_brier", "val_score", "test_majority_score"):
        assert two[key] == pytest.approx(one[key], abs=0.02), key
    assert two["threshold"] == pytest.approx(one["threshold"], abs=0.02)
    plain = siafu.train(
        graph, method=method, out=tmp_path / "plain", config=METHODS[method], threads=1, epochs=4, hidden=8
    )
    assert losses(plain.directory)[0] != pytest.approx(losses(made[0].directory)[0], rel=1e-2)


def test_the_frugal_recipe_chooses_by_average_precision(store: Path, tmp_path: Path) -> None:
    found = siafu.train(
        siafu.load(store),
        method="lazy",
        config={"lazy": {"recipe": "frugal"}},
        class_weights=[1, 20],
        threads=1,
        out=tmp_path / "run",
    ).metrics
    assert found["metric"] == "average_precision"
    assert found["test_score"] > 0.1
    with pytest.raises(ValueError, match=r"train\.loss is focal; leave it at cross_entropy"):
        siafu.train(
            siafu.load(store),
            method="lazy",
            config={"lazy": {"recipe": "frugal"}},
            loss="focal",
            out=tmp_path / "no",
        )


def test_weights_by_name_are_written_and_read_again(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    code, _, said = command(
        *("train", store, "--epochs", 2, "--set", "train.class_weights.fraud=20", "--out", run), capsys=capsys
    )
    assert code == 0, said
    assert 'class_weights = {"fraud" = 20.0}' in (run / "config.toml").read_text()
    again = tmp_path / "again"
    code, _, said = command("train", store, "--config", run / "config.toml", "--out", again, capsys=capsys)
    assert code == 0, said
    assert (again / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert siafu.open(again).settings.train.class_weights == {"fraud": 20}


@pytest.mark.parametrize(
    ("setting", "code", "message"),
    [
        ("train.class_weights.fraude=2", 1, "train.class_weights names fraude, .* did you mean fraud"),
        ("train.class_weights=[1,2,3]", 1, "has 3 weights, but there are 2 classes"),
        (
            "train.class_weights=sometimes",
            2,
            "train.class_weights is 'sometimes'; expected none, balanced, a list",
        ),
        ("train.threshold=7.5", 2, "train.threshold is 7.5; expected auto, none, f1"),
        ("train.positive_class=fruad", 1, "did you mean fraud"),
        ("train.metric=f2", 2, "train.metric is 'f2'; expected"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    setting: str, code: int, message: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _, said = command("train", store, "--set", setting, "--out", tmp_path / "run", capsys=capsys)
    assert found == code
    assert re.search(message, said), said
    assert not (tmp_path / "run").exists()
