"""Whole runs of ensembles: members, averages, scores, predictions, kills, reports, refusals."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import command
from torch import nn

import siafu
from siafu.config import Config
from siafu.data import community
from siafu.graph import Graph
from siafu.inference.ensemble import SEED_DISTANCE, member_config
from siafu.nn.ensemble import averaged
from siafu.training.procedure import Callbacks

pytestmark = pytest.mark.usefixtures("one_thread")
COMMUNITY = "community:nodes=240,degree=8,classes=3,features=12"
SOME: dict[str, Any] = {"epochs": 4, "hidden": 8, "ensemble": 3, "search": "off"}
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "sampled": {"method": "sampled", "batch_size": 40},
    "pipeline": {"method": "pipeline", "workers": "inline"},
    "lazy": {"method": "lazy"},
    "lazy-logits": {"method": "lazy", "recipe": "logits", "bits": 8},
}


def stop_after(epochs: int) -> Callbacks:
    """Stops a run once, so many epochs after it began."""
    left = iter([None] * (epochs - 1) + ["SIGTERM"])
    return Callbacks(lambda *_, **__: None, lambda: next(left, None))


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def share_right(output: torch.Tensor, graph: Graph, split: str) -> float:
    mask = getattr(graph, f"{split}_mask")
    assert graph.y is not None
    return float((output.argmax(1) == graph.y)[mask].double().mean())


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_the_averaged_outputs_of_ordinary_runs(
    graph: Graph, tmp_path: Path, method: str
) -> None:
    settings = {**SOME, **METHODS[method]}
    run = siafu.train(graph, out=tmp_path / "run", seed=5, **settings)
    each = []
    for place in range(3):
        seed = 5 + place * SEED_DISTANCE
        alone = siafu.train(graph, out=tmp_path / f"{place}", seed=seed, **{**settings, "ensemble": 1})
        assert weights(alone.directory) == weights(tmp_path / "run" / f"member-{place}")
        assert run.metrics["members"][place]["test_score"] == alone.test_accuracy
        each.append(siafu.predict(alone, graph)["output"])
    output = averaged(each, "class")
    torch.testing.assert_close(siafu.predict(run, graph)["output"], output)
    for split in ("val", "test"):
        assert run.metrics[f"{split}_accuracy"] == pytest.approx(share_right(output, graph, split))
        scores = [member[f"{split}_score"] for member in run.metrics["members"]]
        assert run.metrics[f"members_{split}_score"] == pytest.approx(sum(scores) / 3)
    assert run.metrics["epochs"] == sum(member["epochs"] for member in run.metrics["members"])
    opened = siafu.open(tmp_path / "run")
    assert opened.metrics == run.metrics
    assert torch.equal(siafu.predict(opened, graph)["output"], siafu.predict(run, graph)["output"])


@pytest.mark.parametrize("labels", ["class", "labels", "numbers"])
@pytest.mark.parametrize("method", ["full", "sampled"])
def test_several_ranks_score_the_same_ensemble(tmp_path: Path, labels: str, method: str) -> None:
    graph = community(240, degree=8, classes=3, features=12)
    assert graph.y is not None
    if labels == "labels":
        graph = replace(graph, y=torch.nn.functional.one_hot(graph.y, 3).to(torch.uint8))
    elif labels == "numbers":
        graph = replace(graph, y=torch.stack([graph.y, -graph.y], 1).float())
    settings = {**SOME, **METHODS[method], "ensemble": 2, "engine": "local"}
    one = siafu.train(graph, out=tmp_path / "one", **settings)
    two = siafu.train(graph, out=tmp_path / "two", ranks=2, **settings)
    for key in ("train_score", "val_score", "test_score", "test_macro_f1", "test_mae"):
        assert two.metrics.get(key) == pytest.approx(one.metrics.get(key), abs=0.02), key
    found, wanted = siafu.predict(two, graph)["output"], siafu.predict(one, graph)["output"]
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)
    assert two.metrics["bytes_sent"] == sum(two.metrics["bytes_by_label"].values()) > 0


def test_embeddings_of_members_stand_side_by_side(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", **SOME)
    found = siafu.predict(run, graph, embeddings=True)["embedding"]
    each = [siafu.open(tmp_path / "run" / f"member-{place}") for place in range(3)]
    wanted = [siafu.predict(one, graph, embeddings=True)["embedding"] for one in each]
    assert found.shape == (240, 24)
    torch.testing.assert_close(found, torch.cat(wanted, 1))


@pytest.mark.parametrize("model", ["sage", "mlp"])
def test_an_ensemble_predicts_from_inputs_on_disk(tmp_path: Path, model: str) -> None:
    graph = community(240, degree=8, classes=3, features=12)
    run = siafu.train(graph, model=model, method="sampled", inputs="stream", out=tmp_path / "run", **SOME)
    output = siafu.predict(run, graph)["output"]
    assert run.test_accuracy == pytest.approx(share_right(output, graph, "test"))


def test_a_graph_without_features_has_an_ensemble_of_learned_rows(tmp_path: Path) -> None:
    graph = replace(community(240, degree=8, classes=3, features=12), x=None)
    run = siafu.train(graph, out=tmp_path / "run", **SOME)
    output = siafu.predict(siafu.open(tmp_path / "run"), graph)["output"]
    assert run.test_accuracy == pytest.approx(share_right(output, graph, "test"))


def test_a_killed_ensemble_keeps_the_members_that_are_done(graph: Graph, tmp_path: Path) -> None:
    whole = siafu.train(graph, out=tmp_path / "whole", **SOME)
    stopped = siafu.train(graph, out=tmp_path / "run", callbacks=stop_after(6), **SOME)
    assert (stopped.metrics["finished"], stopped.model) == (False, None)
    assert not (tmp_path / "run" / "member-2").exists()
    done = (tmp_path / "run" / "member-0" / "metrics.json").stat().st_mtime_ns
    with pytest.raises(ValueError, match="this run has not ended; continue it with"):
        siafu.open(tmp_path / "run")
    run = siafu.resume(tmp_path / "run", graph=graph)
    assert (tmp_path / "run" / "member-0" / "metrics.json").stat().st_mtime_ns == done
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert run.metrics["test_score"] == whole.metrics["test_score"]
    (tmp_path / "run" / "metrics.json").unlink()  # killed after the members were averaged
    again = siafu.resume(tmp_path / "run", graph=graph)
    assert again.metrics["test_score"] == whole.metrics["test_score"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_race_chooses_the_recipe_of_all_members(graph: Graph, tmp_path: Path, ranks: int) -> None:
    settings = {"epochs": 20, "ranks": ranks, "engine": "local"}
    run = siafu.train(graph, out=tmp_path / "run", ensemble=2, **settings)
    assert run.metrics["candidates"] > 1
    assert not list((tmp_path / "run").glob("member-*/race")), "members do not race"
    each = [siafu.open(tmp_path / "run" / f"member-{place}") for place in range(2)]
    assert {one.settings.model for one in each} == {run.settings.model}
    alone = siafu.train(graph, out=tmp_path / "alone", **settings)
    assert weights(alone.directory) == weights(tmp_path / "run" / "member-0")


def test_a_command_that_is_killed_in_its_second_member_resumes_to_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ("train", COMMUNITY, "--epochs", "30", "--set", "train.ensemble=3", "--set", "train.patience=0")
    train = (*train, "--set", "train.search=off", "--set", "train.checkpoint_seconds=0", "--json", "--out")
    run, second = tmp_path / "run", tmp_path / "run" / "member-1" / "checkpoint" / "latest.safetensors"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(
        [sys.executable, "-m", "siafu", *train, str(run)], stderr=subprocess.DEVNULL, env=environment
    )
    while not second.is_file() and killed.poll() is None:
        time.sleep(0.002)  # no file tells that it changed
    killed.kill()
    killed.wait()
    assert (run / "member-0" / "metrics.json").is_file()
    done = (run / "member-0" / "events.jsonl").read_bytes()
    code, out, err = command("resume", run, "--json", capsys=capsys)
    assert code == 0, err
    assert (run / "member-0" / "events.jsonl").read_bytes() == done
    assert command(*train, tmp_path / "whole", capsys=capsys)[0] == 0
    assert weights(run) == weights(tmp_path / "whole")
    assert json.loads(out)["members"][2]["epochs"] == 30


def test_seeds_of_ensembles_next_to_each_other_share_no_member(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", seeds=3, baseline=True, **{**SOME, "epochs": 1})
    each = [siafu.open(tmp_path / "run" / f"seed-{place}") for place in range(3)]
    seeds = [member["seed"] for one in each for member in one.metrics["members"]]
    assert len({seed % 2**32 for seed in seeds}) == 9, "torch's generator reads 32 bits of a seed"
    assert "members" not in run.metrics
    mean = sum(one.metrics["members_test_score"] for one in each) / 3
    assert run.metrics["members_test_score"] == pytest.approx(mean)
    assert len(siafu.open(tmp_path / "run" / "seed-0" / "baseline").metrics["members"]) == 3
    largest = Config(seed=2**63 - 1)
    assert member_config(largest, 1).seed == SEED_DISTANCE - 1


def test_the_command_line_trains_reports_and_predicts_an_ensemble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train = ("train", COMMUNITY, "--epochs", 3, "--set", "train.ensemble=2", "--out", run)
    code, out, err = command(*train, "--ranks", 2, "--set", "engine=local", capsys=capsys)
    assert code == 0, err
    assert "averaging the outputs of 2 members on 2 ranks, in" in err
    assert "members  test accuracy" in out
    assert ", mean of the members" in out
    code, out, err = command("resume", run, "--json", capsys=capsys)
    metrics = json.loads(out)
    assert [member["run"] for member in metrics["members"]] == [f"{run}/member-0", f"{run}/member-1"]
    assert command("predict", run, "--out", tmp_path / "p.csv", capsys=capsys)[0] == 0
    code, out, err = command("report", run, "--out", tmp_path / "r.html", capsys=capsys)
    assert code == 0, err
    page = (tmp_path / "r.html").read_text()
    assert "<h2>Members</h2>" in page
    assert "the average of their outputs" in page
    assert "The outputs of 2 members, trained for 6 epochs in all, were averaged." in page
    assert "No epoch was trained" not in page
    members = (run / "member-0", run / "member-1")
    assert command("report", *members, "--out", tmp_path / "m.html", capsys=capsys)[0] == 0
    assert "run/member-0" in (tmp_path / "m.html").read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "link"}, "ensemble is 3, but the outputs of task link are embeddings"),
        (
            {"method": "lazy", "recipe": "frugal"},
            "recipe frugal is fitted in closed form, so that all members",
        ),
        ({"method": "lazy", "clients": 4}, "the outputs of simulated clients depend on which of them"),
        ({"model": nn.Linear(12, 3)}, "a module of your own starts from the weights it has"),
        ({"ensemble": 0}, "ensemble is 0; expected a number greater than or equal to 1"),
        ({"ensemble": 1001}, "ensemble is 1001; expected a number less than or equal to 1000"),
    ],
)
def test_what_has_no_average_is_refused(
    graph: Graph, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        siafu.train(graph, out=tmp_path / "run", **{"epochs": 4, "ensemble": 3, **settings})
    assert not (tmp_path / "run").exists()


def test_graphs_that_change_over_time_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="changes over time, and outputs are averaged on static graphs alone"
    ):
        siafu.train("transactions:nodes=40,steps=6", out=tmp_path / "run", **SOME)
