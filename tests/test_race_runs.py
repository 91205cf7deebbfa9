"""Races of whole runs: the same choice by every method and number of ranks, exact after a kill, seen in the folder."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import siafu
from siafu.data import community
from siafu.graph import Graph
from siafu.recipes.race_folder import RaceFolder
from siafu.results.read import read_run
from siafu.results.report import write_report
from siafu.run_folder import RunFolder
from siafu.store import write_store
from siafu.training.procedure import Callbacks

pytestmark = pytest.mark.usefixtures("one_thread")
EPOCHS = 40  # a race of two rounds of 10


@pytest.fixture(scope="module")
def words() -> Graph:
    """300 nodes with counts of words and neighbours of any class: two recipes of two kinds of models race."""
    graph = community(300, degree=8, classes=3, features=40, inside=0.0, seed=1)
    assert isinstance(graph.x, torch.Tensor)
    return replace(graph, x=(graph.x > 1.5).float())


def train(graph: Graph, out: Path, **settings: Any) -> siafu.Run:
    return siafu.train(graph, out=out, epochs=EPOCHS, **settings)


def weights(run: Path) -> bytes:
    return RunFolder(run).weights.read_bytes()


def choice(run: Path) -> dict[str, Any]:
    """The result of a race without what differs by time and traffic."""
    result = RaceFolder(RunFolder(run)).read_result()
    assert result is not None
    return {key: value for key, value in result.items() if key not in ("seconds", "bytes")}


def test_the_config_of_a_run_holds_the_chosen_recipe_and_repeats_it(words: Graph, tmp_path: Path) -> None:
    run = train(words, tmp_path / "a")
    assert run.metrics["candidates"] == 4
    assert run.metrics["recipe"] == choice(tmp_path / "a")["names"][choice(tmp_path / "a")["chosen"]]
    assert run.settings.train.search == "off"
    again = siafu.train(words, out=tmp_path / "b", config=tmp_path / "a" / "config.toml")
    assert "recipe" not in again.metrics
    assert weights(tmp_path / "a") == weights(tmp_path / "b"), "the best goes on as if it had run alone"


@pytest.mark.parametrize(
    "settings",
    [
        {"ranks": 2, "engine": "local"},
        {"ranks": 3, "engine": "local"},
        {"method": "pipeline", "workers": "inline"},
    ],
)
def test_ranks_and_methods_choose_alike(words: Graph, tmp_path: Path, settings: dict[str, Any]) -> None:
    train(words, tmp_path / "full")
    train(words, tmp_path / "other", **settings)
    assert choice(tmp_path / "full")["chosen"] == choice(tmp_path / "other")["chosen"]
    assert choice(tmp_path / "full")["names"] == choice(tmp_path / "other")["names"]


def test_rank_processes_and_rank_threads_race_alike(words: Graph, tmp_path: Path) -> None:
    for engine in ("local", "processes"):
        train(words, tmp_path / engine, ranks=2, engine=engine)
    assert choice(tmp_path / "local") == choice(tmp_path / "processes")
    assert weights(tmp_path / "local") == weights(tmp_path / "processes")


def test_callbacks_see_every_epoch_of_the_run_once(words: Graph, tmp_path: Path) -> None:
    seen: list[int] = []
    train(words, tmp_path / "a", callbacks=Callbacks(on_epoch=lambda epoch, *_, **__: seen.append(epoch)))
    assert seen == list(range(1, seen[-1] + 1))


def test_a_setting_that_the_user_gave_is_the_same_in_every_candidate(words: Graph, tmp_path: Path) -> None:
    train(words, tmp_path / "a", hidden=17, normalize="none")
    plan = RaceFolder(RunFolder(tmp_path / "a")).read_plan()
    assert plan is not None
    assert {each.config.model.hidden for each in plan.candidates} == {17}
    assert {each.config.data.normalize for each in plan.candidates} == {"none"}


def test_search_off_takes_the_first_recipe(words: Graph, tmp_path: Path) -> None:
    train(words, tmp_path / "race")
    off = train(words, tmp_path / "off", search="off")
    plan = RaceFolder(RunFolder(tmp_path / "race")).read_plan()
    assert plan is not None
    assert plan.candidates[0].config.model == off.settings.model
    assert not (tmp_path / "off" / "race").exists()


def test_without_validation_nodes_the_first_recipe_is_taken(words: Graph, tmp_path: Path) -> None:
    run = train(replace(words, val_mask=None), tmp_path / "a")
    assert run.metrics["finished"]
    assert not (tmp_path / "a" / "race").exists()


def test_kinds_of_models_race(words: Graph, tmp_path: Path) -> None:
    run = train(words, tmp_path / "a", model="auto")
    assert run.metrics["model"] in ("gcn", "sage", "gat")
    assert any(name.startswith("sage ") for name in choice(tmp_path / "a")["names"])


def test_kinds_of_models_do_not_race_for_links(words: Graph, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name a kind"):
        train(words, tmp_path / "a", model="auto", task="link")


def test_seeds_share_the_choice_of_the_first(words: Graph, tmp_path: Path) -> None:
    run = train(words, tmp_path / "a", seeds=2)
    kept = {(tmp_path / "a" / f"seed-{seed}" / "config.toml").read_text().split("seed")[0] for seed in (0, 1)}
    assert len(kept) == 1
    assert run.metrics["candidates"] == 4


COMMAND = (sys.executable, "-m", "siafu")


def start(*arguments: str, folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_is_killed_in_its_race_ends_with_the_same_weights(
    words: Graph, tmp_path: Path, ranks: int
) -> None:
    write_store(words, tmp_path / "words")
    arguments = (
        "train",
        "words",
        "--epochs",
        "40",
        "--set",
        "train.checkpoint_seconds=0",
        "--ranks",
        str(ranks),
    )
    assert start(*arguments, "--out", "whole", folder=tmp_path).wait() == 0
    killed = start(*arguments, "--out", "killed", folder=tmp_path)
    second = RunFolder(tmp_path / "killed" / "race" / "1")
    while not second.checkpoint.is_file():
        assert killed.poll() is None, "it ended before it was killed"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed" / "race" / "result.json").exists()
    assert start("resume", "killed", folder=tmp_path).wait() == 0
    assert choice(tmp_path / "whole") == choice(tmp_path / "killed")
    assert weights(tmp_path / "whole") == weights(tmp_path / "killed")


def test_a_stop_within_the_race_can_be_resumed(words: Graph, tmp_path: Path) -> None:
    asked: list[int] = []

    def stop_at_third() -> str | None:
        asked.append(1)
        return "SIGINT" if len(asked) == 3 else None

    stopped = train(words, tmp_path / "a", callbacks=Callbacks(should_stop=stop_at_third))
    assert not stopped.metrics["finished"]
    assert stopped.metrics["stopped_by"] == "SIGINT"
    resumed = siafu.resume(tmp_path / "a", graph=words)
    train(words, tmp_path / "b")
    assert resumed.metrics["finished"]
    assert weights(tmp_path / "a") == weights(tmp_path / "b")


def test_a_damaged_plan_is_refused(words: Graph, tmp_path: Path) -> None:
    train(words, tmp_path / "a", callbacks=Callbacks(should_stop=lambda: "SIGINT"))
    plan = tmp_path / "a" / "race" / "plan.json"
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"rounds": [1]}))
    with pytest.raises(ValueError, match=r"plan\.json: changed or damaged"):
        siafu.resume(tmp_path / "a", graph=words)


def test_the_report_shows_the_race_and_no_resumption(words: Graph, tmp_path: Path) -> None:
    train(words, tmp_path / "a")
    write_report([read_run(tmp_path / "a")], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Race of recipes" in page
    assert f"{choice(tmp_path / 'a')['names'][choice(tmp_path / 'a')['chosen']]} (chosen)" in page
    assert "Resumed from" not in page
    train(words, tmp_path / "off", search="off")
    write_report([read_run(tmp_path / "off")], tmp_path / "off.html")
    assert "Race of recipes" not in (tmp_path / "off.html").read_text()


def test_a_run_whose_race_is_over_but_not_installed_goes_on_with_the_result(
    words: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RunFolder.write_config

    def fail_for_the_chosen(folder: RunFolder, text: str) -> None:
        if folder.path == tmp_path / "a" and 'search = "off"' in text:
            raise OSError("the disk is full")
        write(folder, text)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_config", fail_for_the_chosen)
        with pytest.raises(OSError, match="the disk is full"):
            train(words, tmp_path / "a")
    assert siafu.resume(tmp_path / "a", graph=words).metrics["finished"]
    train(words, tmp_path / "b")
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
