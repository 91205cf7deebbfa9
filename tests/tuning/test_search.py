"""Searches on a small graph: what is tried, chosen, refused, and how a search goes on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import siafu
from siafu.config import parse_toml
from siafu.data import community
from siafu.dynamic import DynamicGraph, Protocol
from siafu.graph import Graph
from siafu.results.record import flatten
from siafu.run_folder import existing_folder
from siafu.training.procedure import Callbacks
from siafu.tuning import Search, Trial, attempt
from siafu.tuning.folder import shrink

pytestmark = pytest.mark.usefixtures("one_thread")

TINY: dict[str, Any] = {"model.hidden": [4, 8], "train.lr": {"low": 0.001, "high": 0.1, "log": True}}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return community(90, degree=6, classes=3, features=8)


def tune(graph: Any, out: Path, **how: Any) -> Search:
    return siafu.tune(
        graph, **{"epochs": 3, "space": TINY, "model": "gcn", "out": out, "callbacks": Callbacks()} | how
    )


def settings_of(search: Search) -> list[Any]:
    return [
        (trial.number, trial.settings, trial.val_score, trial.state, trial.curve) for trial in search.trials
    ]


def config_of(search: Search, number: int) -> dict[str, Any]:
    return flatten(
        parse_toml(existing_folder(search.directory / f"trial-{number}").read_config()).model_dump()
    )


def test_a_search_returns_its_trials_and_the_run_of_the_best(graph: Graph, tmp_path: Path) -> None:
    search = tune(graph, tmp_path / "s", trials=4)
    assert [trial.number for trial in search.trials] == [1, 2, 3, 4]
    assert {trial.state for trial in search.trials} == {"completed"}
    assert all(trial.seconds > 0 and trial.curve for trial in search.trials)
    best = max(search.trials, key=lambda trial: (trial.val_score or 0, -trial.number))
    assert search.best is not None
    assert search.best.directory == tmp_path / "s" / f"trial-{best.number}"
    assert search.best.metrics["val_score"] == best.val_score
    assert search.best.model is not None
    assert (search.stopped_by, search.metric, search.directory) == ("trials", "accuracy", tmp_path / "s")
    predicted = siafu.predict(siafu.open(tmp_path / "s" / "best"), graph)
    assert torch.equal(predicted["output"], siafu.predict(search.best, graph)["output"])


def test_each_trial_is_an_ordinary_run_without_a_race(graph: Graph, tmp_path: Path) -> None:
    search = tune(graph, tmp_path / "s", trials=3)
    for trial in search.trials:
        config = config_of(search, trial.number)
        assert config["train.search"] == "off"
        assert {key: config[key] for key in trial.settings} == trial.settings


def test_the_same_seed_gives_the_same_search(graph: Graph, tmp_path: Path) -> None:
    first = tune(graph, tmp_path / "a", trials=5, seed=3)
    assert settings_of(tune(graph, tmp_path / "b", trials=5, seed=3)) == settings_of(first)
    assert settings_of(tune(graph, tmp_path / "c", trials=5, seed=4)) != settings_of(first)


def test_a_search_that_is_extended_equals_one_that_was_not_stopped(graph: Graph, tmp_path: Path) -> None:
    whole = tune(graph, tmp_path / "a", trials=6)
    tune(graph, tmp_path / "b", trials=2)
    assert settings_of(tune(graph, tmp_path / "b", trials=6)) == settings_of(whole)


def test_a_finished_search_only_gives_its_result(graph: Graph, tmp_path: Path) -> None:
    first = tune(graph, tmp_path / "s", trials=2)
    before = (tmp_path / "s" / "journal.jsonl").read_bytes()
    again = tune(graph, tmp_path / "s", trials=2)
    assert again.summary == first.summary
    assert (tmp_path / "s" / "journal.jsonl").read_bytes() == before


def test_settings_that_the_user_gave_are_never_varied(graph: Graph, tmp_path: Path) -> None:
    fixed: dict[str, Any] = {"hidden": 8, "dropout": 0.15, "lr": 0.07}
    search = siafu.tune(
        graph,
        **fixed,
        model="gat",
        epochs=2,
        config={"data": {"normalize": "none"}},
        trials=9,
        out=tmp_path / "s",
        callbacks=Callbacks(),
    )
    expected = {
        **{"model.hidden": 8, "model.dropout": 0.15, "train.lr": 0.07, "model.kind": "gat"},
        **{"train.epochs": 2, "data.normalize": "none"},
    }
    for trial in search.trials:
        assert not trial.settings.keys() & expected.keys()
        if (tmp_path / "s" / f"trial-{trial.number}" / "config.toml").is_file():
            config = config_of(search, trial.number)
            assert {key: config[key] for key in expected} == expected
    assert len({str(trial.settings) for trial in search.trials}) == len(search.trials)


def test_the_first_trial_is_the_default_run(graph: Graph, tmp_path: Path) -> None:
    search = siafu.tune(graph, epochs=4, trials=1, out=tmp_path / "s", callbacks=Callbacks())
    plain = siafu.train(graph, epochs=4, search="off", out=tmp_path / "r", callbacks=Callbacks())
    assert search.best is not None
    assert search.best.settings == plain.settings
    assert search.best.metrics["val_score"] == plain.metrics["val_score"]
    (trial,) = search.trials
    assert trial.recipe == "defaults"
    assert trial.settings["model.kind"] == "gcn"


def test_lines_tell_each_trial_and_the_best(graph: Graph, tmp_path: Path) -> None:
    said: list[str] = []
    tune(graph, tmp_path / "s", trials=2, callbacks=Callbacks(say=said.append))
    assert said[0].startswith("community: 90 nodes")
    assert said[1].startswith("searching model.hidden, train.lr in ")
    assert said[1].endswith("fixed: train.epochs = 3, model.kind = gcn")
    assert said[2].startswith("trial 1 of 2: ")
    assert " columns, lr " in said[2]
    assert "(best " in said[3]


def no_validation(graph: Graph) -> Graph:
    assert graph.val_mask is not None
    return replace(graph, val_mask=torch.zeros_like(graph.val_mask))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seeds": 2}, "seeds is set, but each trial of a search is one run"),
    ({"baseline": True}, "baseline is set"),
    ({"engine": "torchrun"}, "engine is torchrun, which siafu tune does not start"),
    ({"model": nn.Linear(1, 1)}, "model is a module of your own"),
    ({"model": "custom"}, "model is a module of your own"),
    ({"search": "auto"}, "train.search is set"),
    ({"trials": 0}, "trials is 0; expected at least 1"),
    ({"time": "5 days"}, "time is 5 days; expected a time such as 30m"),
    ({"time": 0}, "time is 0; expected"),
    ({"space": {"model.heads": [2]}}, "space: model.heads is no setting of gcn"),
    ({"space": {"model.hidden": [0]}}, "space: model.hidden is 0"),
    ({"space": None, "method": "lazy", "recipe": "frugal"}, "lazy.recipe is frugal, which has no settings"),
    ({"metric": "map"}, "train.metric is map, which does not fit these labels"),
    ({"hiden": 3}, "hiden is not a setting"),
]


@pytest.mark.parametrize(("how", "message"), REFUSED)
def test_what_no_search_can_do_is_refused_before_anything_is_written(
    graph: Graph, tmp_path: Path, how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tune(graph, tmp_path / "s", **how)
    assert not (tmp_path / "s").exists()


def test_a_graph_without_validation_nodes_is_refused(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="no validation nodes, by which a search chooses; give a split with some"
    ):
        tune(no_validation(graph), tmp_path / "s")


def test_a_space_with_nothing_left_is_refused(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing is left to search"):
        siafu.tune(
            replace(graph, x=None),
            model="sgc",
            layers=2,
            dropout=0.0,
            lr=0.1,
            weight_decay=0.0,
            epochs=2,
            out=tmp_path / "s",
        )


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"epochs": 4}, "a search with other settings: train.epochs is 4, but was 3 when the search was started"),
    ({"seed": 1}, "seed is 1, but was 0"),
    ({"dropout": 0.5}, "model.dropout is 0.5, but was not set"),
    ({"space": {"model.hidden": [4]}}, "a search with another space"),
    ({"space": None}, "a search with another space"),
]


@pytest.mark.parametrize(("how", "message"), CHANGED)
def test_a_search_is_not_continued_with_other_settings(
    graph: Graph, tmp_path: Path, how: dict[str, Any], message: str
) -> None:
    tune(graph, tmp_path / "s", trials=1)
    with pytest.raises(ValueError, match=message):
        tune(graph, tmp_path / "s", trials=2, **how)


def test_a_search_is_not_continued_on_other_data(graph: Graph, tmp_path: Path) -> None:
    tune(graph, tmp_path / "s", trials=1)
    with pytest.raises(ValueError, match="a search on other data: community has the fingerprint"):
        tune(community(90, degree=6, classes=3, features=8, seed=1), tmp_path / "s", trials=2)


def test_a_damaged_header_or_journal_is_refused(graph: Graph, tmp_path: Path) -> None:
    tune(graph, tmp_path / "s", trials=1)
    journal, header = tmp_path / "s" / "journal.jsonl", tmp_path / "s" / "search.json"
    text = journal.read_text()
    journal.write_text(text.replace("0.", "9.", 1))
    with pytest.raises(ValueError, match=r"journal\.jsonl, line .*: changed or damaged"):
        tune(graph, tmp_path / "s", trials=2)
    journal.write_text(text)
    header.write_text(header.read_text().replace("accuracy", "micro_f1"))
    with pytest.raises(ValueError, match=r"search\.json: changed or damaged"):
        tune(graph, tmp_path / "s", trials=2)


def test_a_folder_that_holds_something_else_is_refused(graph: Graph, tmp_path: Path) -> None:
    siafu.train(graph, epochs=1, search="off", out=tmp_path / "run", callbacks=Callbacks())
    with pytest.raises(ValueError, match="run: holds a run and no search; choose another --out"):
        tune(graph, tmp_path / "run", trials=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: a file stands there"):
        tune(graph, tmp_path / "file", trials=1)


def test_a_trial_that_cannot_be_trained_fails_and_the_search_goes_on(graph: Graph, tmp_path: Path) -> None:
    said: list[str] = []
    space = {"model.norm": ["none", "layer", "batch"], "model.hidden": [4, 8]}
    how = {"method": "pipeline", "workers": "inline", "space": space, "trials": 4}
    search = tune(graph, tmp_path / "s", callbacks=Callbacks(say=said.append), **how)
    failed = [trial for trial in search.trials if trial.state == "failed"]
    assert failed
    assert all(trial.settings["model.norm"] == "batch" for trial in failed)
    assert failed[0].message.startswith("model.norm is batch")
    assert search.summary["failed"] == len(failed)
    assert search.summary["trials"] == 4
    assert any(": failed: model.norm is batch" in line for line in said)


def test_all_settings_of_a_small_space_are_tried_once(graph: Graph, tmp_path: Path) -> None:
    search = tune(graph, tmp_path / "s", trials=20, space={"model.hidden": [4, 8], "model.layers": [1, 2]})
    assert search.stopped_by == "space"
    tried = [(trial.settings["model.hidden"], trial.settings["model.layers"]) for trial in search.trials]
    assert sorted(tried) == [(4, 1), (4, 2), (8, 1), (8, 2)]


def test_a_search_whose_trials_all_fail_says_why(graph: Graph, tmp_path: Path) -> None:
    how = {"method": "pipeline", "workers": "inline", "space": None, "norm": "batch"}
    with pytest.raises(ValueError, match=r"model\.norm is batch"):  # before any trial: no trial can change it
        tune(graph, tmp_path / "s", **how)
    space = {"model.norm": ["batch"], "train.lr": {"low": 0.01, "high": 0.1}}
    how |= {"space": space}
    del how["norm"]
    with pytest.raises(ValueError, match=r"all 10 trials failed; the first: model\.norm is batch"):
        tune(graph, tmp_path / "s", **how)


def test_trials_that_fall_behind_are_stopped_early_and_marked(graph: Graph, tmp_path: Path) -> None:
    space = {"train.lr": {"low": 1e-7, "high": 0.1, "log": True}, "model.hidden": [8]}
    search = tune(graph, tmp_path / "s", trials=14, epochs=40, space=space)
    pruned = [trial for trial in search.trials if trial.state == "pruned"]
    assert pruned
    assert search.summary["pruned"] == len(pruned)
    assert search.summary["completed"] + len(pruned) == search.summary["trials"] == 14
    folder = existing_folder(search.directory / f"trial-{pruned[0].number}")
    assert not folder.finished
    last = [json.loads(line) for line in folder.events.read_text().splitlines() if '"stop"' in line][-1]
    assert last["reason"] == "pruned"
    assert 20 <= last["epoch"] < 40


def test_ended_trials_keep_no_checkpoint_and_no_parts_but_the_best_one(graph: Graph, tmp_path: Path) -> None:
    search = tune(graph, tmp_path / "s", trials=5)
    assert search.best is not None
    for trial in search.trials:
        folder = tmp_path / "s" / f"trial-{trial.number}"
        assert (folder / "checkpoint").is_dir() == (folder == search.best.directory)
        assert siafu.open(folder).model is not None
    (search.best.directory / "parts" / "2").mkdir(parents=True)
    shrink(search.best.directory)
    assert not {"checkpoint", "parts"} & {path.name for path in search.best.directory.iterdir()}


def test_test_scores_of_trials_that_were_not_chosen_are_nowhere_in_the_result(
    graph: Graph, tmp_path: Path
) -> None:
    search = tune(graph, tmp_path / "s", trials=3)
    assert search.best is not None
    assert search.summary["test_score"] == search.best.metrics["test_score"]
    assert not any("test" in key for key in Trial.__dataclass_fields__)
    written = json.loads((tmp_path / "s" / "trials.json").read_text())
    assert written["test_score"] == search.best.metrics["test_score"]
    assert not any("test_score" in trial for trial in written["trials"])


def test_a_time_too_short_for_one_trial_is_refused_and_more_time_goes_on(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = iter([False] * 6 + [True] * 100)
    with monkeypatch.context() as patched:
        patched.setattr("siafu.tuning.budget.Budget.is_over", lambda _: next(over))
        with pytest.raises(
            ValueError, match=r"the time budget of 60 s is too short for one trial: trial 1 had"
        ) as error:
            tune(graph, tmp_path / "s", time="1m", epochs=30)
    assert " of at most 30 epochs; give more --time (with --out " in str(error.value)
    search = tune(graph, tmp_path / "s", trials=2, epochs=30)
    assert settings_of(search) == settings_of(tune(graph, tmp_path / "whole", trials=2, epochs=30))


def test_a_trial_in_progress_when_the_time_is_over_does_not_count(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("siafu.tuning.budget.Budget.is_over", lambda _: len(ended) >= 7)
    search = tune(
        graph,
        tmp_path / "s",
        time=60,
        epochs=5,
        callbacks=Callbacks(on_epoch=lambda epoch, *_, **__: ended.append(epoch)),
    )
    assert [trial.state for trial in search.trials] == ["completed", "interrupted"]
    assert (search.stopped_by, search.summary["trials"]) == ("time", 1)
    monkeypatch.undo()
    again = tune(graph, tmp_path / "s", trials=2, epochs=5)
    assert [trial.state for trial in again.trials] == ["completed", "completed"]
    assert again.seconds > search.seconds


def test_time_that_earlier_calls_took_counts(graph: Graph, tmp_path: Path) -> None:
    first = tune(graph, tmp_path / "s", trials=2)
    again = tune(graph, tmp_path / "s", time=first.seconds / 2)
    assert (again.stopped_by, len(again.trials)) == ("time", 2)


def test_an_interrupted_search_says_how_to_go_on(graph: Graph, tmp_path: Path) -> None:
    def interrupt(epoch: int, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stop:
        tune(graph, tmp_path / "s", callbacks=Callbacks(on_epoch=interrupt))
    assert stop.value.__notes__ == [f"go on with: siafu.tune(…, out={str(tmp_path / 's')!r})"]
    search = tune(graph, tmp_path / "s", trials=1)
    assert [trial.state for trial in search.trials] == ["completed"]


def test_a_trial_whose_process_is_lost_again_and_again_fails(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost(BaseException):
        pass

    def lose(*_: Any) -> None:
        raise Lost

    with monkeypatch.context() as patched:
        patched.setattr("siafu.tuning.study.Study.add_time", lambda *_: None)
        patched.setattr(attempt, "_run", lose)
        for _ in range(3):
            with pytest.raises(Lost):
                tune(graph, tmp_path / "s", trials=2)
    said: list[str] = []
    search = tune(graph, tmp_path / "s", trials=2, callbacks=Callbacks(say=said.append))
    assert [trial.state for trial in search.trials] == ["failed", "completed", "completed"]
    assert any("its process was lost 3 times, perhaps for want of memory" in line for line in said)


def test_want_of_memory_fails_a_trial_and_other_faults_end_the_search(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, errors = attempt._run, iter([MemoryError(), RuntimeError("can't allocate memory: you tried"), None])

    def fail(*how: Any) -> Any:
        if (error := next(errors)) is not None:
            raise error
        return run(*how)

    monkeypatch.setattr(attempt, "_run", fail)
    search = tune(graph, tmp_path / "s", trials=1)
    assert [trial.message[:12] for trial in search.trials] == ["not enough m", "can't alloca", ""]
    errors = iter([RuntimeError("broken")])
    with pytest.raises(RuntimeError, match="broken"):
        tune(graph, tmp_path / "t", trials=1)


def test_models_over_time_are_searched_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    src, dst, t = draw.integers(0, 20, 400), draw.integers(0, 20, 400), draw.integers(0, 12, 400)
    protocol = Protocol(window=3, edge_life=3, negatives=5)
    graph = DynamicGraph.from_events(src, dst, t, num_nodes=20, protocol=protocol)
    search = siafu.tune(graph, epochs=2, trials=3, out=tmp_path / "s", callbacks=Callbacks())
    assert search.summary["completed"] >= 2
    assert search.best is not None
    assert search.best.settings.method == "snapshots"


@pytest.mark.parametrize("how", [{"method": "lazy"}, {"method": "sampled"}, {"ranks": 2, "engine": "local"}])
def test_every_method_and_ranks_are_searched(graph: Graph, tmp_path: Path, how: dict[str, Any]) -> None:
    search = siafu.tune(graph, epochs=2, hidden=4, trials=4, out=tmp_path / "s", callbacks=Callbacks(), **how)
    assert search.summary["trials"] == 4
