"""Whole runs that end with correct-and-smooth: scores with and without, the choice, predictions, refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from in_process import command

import siafu
from siafu.data import community
from siafu.graph import Graph
from siafu.store import write_store

pytestmark = pytest.mark.usefixtures("one_thread")
ON = {"correct_and_smooth": {"enabled": True}}
SOME: dict[str, Any] = {"epochs": 5, "hidden": 8, "search": "off", **ON}
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "sampled": {"method": "sampled", "batch_size": 40},
    "pipeline": {"method": "pipeline", "workers": "inline"},
    "lazy": {"method": "lazy"},
    "frugal": {"method": "lazy", "recipe": "frugal"},
}


@pytest.fixture(scope="module")
def homophilous() -> Graph:
    """600 nodes whose neighbours mostly share their class, which features alone tell badly."""
    return community(600, degree=10, classes=3, features=4, inside=0.95)


@pytest.fixture(scope="module")
def heterophilous() -> Graph:
    """A bipartite graph: features tell the class of a node, all of its neighbours have the other one."""
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(200) % 2
    even, odd = torch.arange(0, 200, 2), torch.arange(1, 200, 2)
    src, dst = (
        even[torch.randint(100, (900,), generator=draw)],
        odd[torch.randint(100, (900,), generator=draw)],
    )
    split = torch.randint(3, (200,), generator=draw)
    masks = {f"{name}_mask": split == number for number, name in enumerate(("train", "val", "test"))}
    x = torch.stack([y, 1 - y], 1) + 0.5 * torch.randn(200, 2, generator=draw)
    return Graph.from_edges(torch.stack([torch.cat([src, dst]), torch.cat([dst, src])]), x=x, y=y, **masks)


def share_right(output: torch.Tensor, graph: Graph, split: str) -> float:
    mask = getattr(graph, f"{split}_mask")
    assert graph.y is not None
    return float((output.argmax(1) == graph.y)[mask].double().mean())


def test_the_command_line_raises_the_accuracy_of_an_mlp_on_a_homophilous_graph(
    homophilous: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_store(homophilous, tmp_path / "store")
    train = ("train", tmp_path / "store", "--model", "mlp", "--epochs", 30)
    code, out, err = command(*train, "--out", tmp_path / "off", "--json", capsys=capsys)
    off = json.loads(out)
    on = ("--set", "correct_and_smooth.enabled=true", "--out", tmp_path / "on")
    code, out, err = command(*train, *on, capsys=capsys)
    assert code == 0, err
    assert "plain    test accuracy" in out
    assert "(without correct-and-smooth)" in out
    code, out, err = command("resume", tmp_path / "on", "--json", capsys=capsys)
    found = json.loads(out)
    assert found["smoothed"] is True
    for split in ("val", "test"):
        assert found[f"unsmoothed_{split}_score"] == off[f"{split}_score"], "training does not know of it"
        assert found[f"smoothed_{split}_score"] == found[f"{split}_accuracy"] == found[f"{split}_score"]
        assert found[f"{split}_score"] > off[f"{split}_score"] + 0.1
    predict = ("predict", tmp_path / "on", "--out", tmp_path / "p.parquet")
    code, out, err = command(*predict, capsys=capsys)
    assert (code, "warning" in err) == (0, False)
    table = pq.read_table(tmp_path / "p.parquet")
    assert homophilous.y is not None
    assert homophilous.test_mask is not None
    right = torch.from_numpy(table["class"].to_numpy().copy()) == homophilous.y
    assert float(right[homophilous.test_mask].double().mean()) == pytest.approx(found["test_accuracy"])
    probability = torch.tensor(table["probability"].to_pylist())
    torch.testing.assert_close(probability.sum(1), torch.ones(600))
    code, out, err = command("report", tmp_path / "on", "--out", tmp_path / "r.html", capsys=capsys)
    assert "test, without correct-and-smooth" in (tmp_path / "r.html").read_text()


def test_other_nodes_are_predicted_without_it(
    homophilous: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = siafu.train(homophilous, out=tmp_path / "on", **SOME)
    other = community(300, degree=10, classes=3, features=4)
    with pytest.warns(
        UserWarning, match="not the graph that .* was trained on, whose labels correct-and-smooth"
    ):
        found = siafu.predict(run, other)["output"]
    off = siafu.train(homophilous, out=tmp_path / "off", **{**SOME, "correct_and_smooth": {}})
    assert torch.equal(found, siafu.predict(off, other)["output"])
    write_store(other, tmp_path / "other")
    predict = ("predict", tmp_path / "on", tmp_path / "other", "--out", tmp_path / "p.csv")
    code, _, err = command(*predict, capsys=capsys)
    assert code == 0
    assert "warning: community: not the graph that" in err
    assert "it is left out, and outputs are those of the model" in err


def test_worse_validation_scores_are_not_used(
    heterophilous: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_store(heterophilous, tmp_path / "store")
    train = ("train", tmp_path / "store", "--model", "mlp", "--epochs", 40, "--out", tmp_path / "run")
    code, out, err = command(*train, "--set", "correct_and_smooth.enabled=true", capsys=capsys)
    assert code == 0, err
    assert "(with correct-and-smooth; not used, as its validation score is worse)" in out
    run = siafu.open(tmp_path / "run")
    assert run.metrics["smoothed"] is False
    assert run.metrics["smoothed_val_score"] < run.metrics["unsmoothed_val_score"] == run.metrics["val_score"]
    output = siafu.predict(run, heterophilous)["output"]
    assert share_right(output, heterophilous, "test") == run.test_accuracy > 0.8


@pytest.mark.parametrize("method", METHODS)
def test_every_method_on_any_number_of_ranks_ends_with_it(
    homophilous: Graph, tmp_path: Path, method: str
) -> None:
    settings = {**SOME, **METHODS[method], "engine": "local"}
    one = siafu.train(homophilous, out=tmp_path / "one", **settings)
    two = siafu.train(homophilous, out=tmp_path / "two", ranks=2, **settings)
    for run in (one, two):
        output = siafu.predict(siafu.open(run.directory), homophilous)["output"]
        assert run.metrics["smoothed"] or method == "frugal", "which smooths already"
        assert share_right(output, homophilous, "val") == pytest.approx(run.metrics["val_accuracy"], abs=0.01)
    assert two.metrics["bytes_by_label"]["correct and smooth halo"] > 0
    for key in ("smoothed_val_score", "smoothed_test_score"):
        assert two.metrics[key] == pytest.approx(one.metrics[key], abs=0.02)


@pytest.mark.parametrize("reorder", ["on", "off"])
@pytest.mark.parametrize("fold", [0, 1])
def test_predictions_are_in_the_order_of_the_user(tmp_path: Path, reorder: str, fold: int) -> None:
    graph = community(600, degree=10, classes=3, features=4, seed=fold)
    run = siafu.train(graph, out=tmp_path / "run", reorder=reorder, **SOME)
    output = siafu.predict(run, graph)["output"]
    assert share_right(output, graph, "test") == pytest.approx(run.test_accuracy)


def test_inputs_on_disk_change_nothing(homophilous: Graph, tmp_path: Path) -> None:
    settings = {**SOME, "method": "sampled", "batch_size": 64}
    memory = siafu.train(homophilous, out=tmp_path / "memory", inputs="memory", **settings)
    disk = siafu.train(homophilous, out=tmp_path / "disk", inputs="stream", **settings)
    for run in (memory, disk):
        output = siafu.predict(run, homophilous)["output"]
        assert share_right(output, homophilous, "test") == pytest.approx(run.test_accuracy)
    assert disk.test_accuracy == pytest.approx(memory.test_accuracy, abs=0.01)


def test_many_labels_are_smoothed_too(homophilous: Graph, tmp_path: Path) -> None:
    assert homophilous.y is not None
    graph = replace(homophilous, y=torch.nn.functional.one_hot(homophilous.y, 3).to(torch.uint8))
    run = siafu.train(graph, model="mlp", out=tmp_path / "run", **{**SOME, "epochs": 30})
    assert run.metrics["smoothed_test_score"] > run.metrics["unsmoothed_test_score"] + 0.05
    output = siafu.predict(run, graph)["output"]
    assert output.isfinite().all()


def test_validation_labels_change_outputs_but_not_the_validation_score(
    homophilous: Graph, tmp_path: Path
) -> None:
    more = {"correct_and_smooth": {"enabled": True, "validation_labels": True}}
    without = siafu.train(homophilous, model="mlp", out=tmp_path / "without", **SOME)
    run = siafu.train(homophilous, model="mlp", out=tmp_path / "with", **{**SOME, **more})
    assert run.metrics["val_score"] == without.metrics["val_score"]
    assert run.metrics["val_score"] < 0.99, "labels of validation nodes are not scored by themselves"
    output = siafu.predict(run, homophilous)["output"]
    assert not torch.equal(output, siafu.predict(without, homophilous)["output"])
    assert share_right(output, homophilous, "val") > run.metrics["val_score"] + 0.05
    assert share_right(output, homophilous, "test") == pytest.approx(run.test_accuracy)


def test_without_validation_nodes_it_is_used(homophilous: Graph, tmp_path: Path) -> None:
    graph = replace(homophilous, val_mask=None)
    run = siafu.train(graph, out=tmp_path / "run", **SOME)
    assert (run.metrics["smoothed"], run.metrics["smoothed_val_score"]) == (True, None)


def test_an_ensemble_is_smoothed_after_its_average_and_the_baseline_never(
    homophilous: Graph, tmp_path: Path
) -> None:
    run = siafu.train(homophilous, out=tmp_path / "run", ensemble=2, baseline=True, **SOME)
    assert run.metrics["smoothed"] is True
    for part in ("member-0", "baseline"):
        assert "smoothed" not in siafu.open(tmp_path / "run" / part).metrics
    output = siafu.predict(siafu.open(tmp_path / "run"), homophilous)["output"]
    assert share_right(output, homophilous, "test") == pytest.approx(run.test_accuracy)


def test_several_seeds_give_means_of_both_scores(homophilous: Graph, tmp_path: Path) -> None:
    run = siafu.train(homophilous, out=tmp_path / "run", seeds=2, **SOME)
    each = [siafu.open(tmp_path / "run" / f"seed-{place}").metrics for place in range(2)]
    assert "smoothed" not in run.metrics
    for key in ("unsmoothed_test_score", "smoothed_test_score"):
        assert run.metrics[key] == pytest.approx(sum(one[key] for one in each) / 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "link"}, "enabled is true, but task link learns pairs of nodes, and it smooths classes"),
        ({"method": "lazy", "clients": 4}, "it would send labels of simulated clients to others"),
        (
            {"correct_and_smooth": {"enabled": True, "scale": 0}},
            "scale is 0; expected 'auto' or a number greater than 0",
        ),
        (
            {"correct_and_smooth": {"enabled": True, "smooth_alpha": 1.5}},
            "smooth_alpha is 1.5; expected a number less than or equal to 1",
        ),
        ({"correct_and_smooth": {"on": True}}, "on is not a setting; did you mean correct_and_smooth"),
    ],
)
def test_what_cannot_be_smoothed_is_refused(
    homophilous: Graph, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        siafu.train(homophilous, out=tmp_path / "run", **{**SOME, **settings})
    assert not (tmp_path / "run").exists()


def test_numbers_and_graphs_that_change_over_time_are_refused(homophilous: Graph, tmp_path: Path) -> None:
    assert homophilous.y is not None
    with pytest.raises(ValueError, match="enabled is true, but the labels are numbers"):
        siafu.train(replace(homophilous, y=homophilous.y.float()), out=tmp_path / "run", **ON)
    with pytest.raises(ValueError, match="enabled is true, but transactions changes over time"):
        siafu.train("transactions:nodes=40,steps=6", out=tmp_path / "run", **ON)
