"""How often a run scores its model: by the work of training and of scoring."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import siafu
from siafu.data import community
from siafu.graph import Graph
from siafu.training.procedure import Callbacks
from siafu.training.scoring_interval import EpochWork, scoring_interval


@given(st.floats(0.1, 100), st.just(0.0) | st.floats(1e-3, 100), st.floats(0, 300), st.integers(1, 400))
def test_scoring_is_at_most_a_third_and_no_rarer_than_that_asks(
    train: float, score: float, fixed: float, epochs: int
) -> None:
    work = EpochWork(train, score, fixed)
    every = scoring_interval(work, epochs)
    assert 1 <= every <= epochs

    def share(interval: int) -> float:
        scoring = -(-epochs // interval) * score + fixed
        return scoring / (scoring + epochs * train)

    assert share(every) <= 1 / 3 + 1e-9 or every == epochs or score == 0
    if every > 1:
        assert share(every - 1) > 1 / 3 - 1e-9 or -(-epochs // (every - 1)) == -(-epochs // every)


def test_cheap_scoring_follows_every_epoch() -> None:
    assert scoring_interval(EpochWork(3.0, 1.0, 1.0), 200) == 1
    assert scoring_interval(EpochWork(1.0, 0.0), 5) == 1


@pytest.fixture(scope="module")
def graph() -> Graph:
    """20,000 nodes, 40 of which train: an epoch is one small minibatch, and a score reads the whole graph."""
    made = community(20_000, degree=12, classes=3, features=64)
    assert made.train_mask is not None
    few = made.train_mask.clone()
    few[few.nonzero()[40:, 0]] = False
    return Graph(**{**vars(made), "train_mask": few})


def sampled(graph: Graph, out: Path, **settings: Any) -> tuple[siafu.Run, list[int], list[str]]:
    """A run, its scored epochs, and what it said."""
    said: list[str] = []
    how: dict[str, Any] = {
        "method": "sampled",
        "model": "sage",
        "hidden": 16,
        "fanout": (2, 2),
        "patience": 0,
    }
    run = siafu.train(graph, out=out, callbacks=Callbacks(say=said.append), **how, **settings)
    lines = (json.loads(line) for line in (out / "events.jsonl").read_text().splitlines())
    scored = [event["epoch"] for event in lines if event["phase"] == "epoch" and "val_score" in event]
    return run, scored, [text for text in said if "train.evaluate_every" in text]


def test_a_run_scores_rarely_where_scores_are_expensive_and_says_so(graph: Graph, tmp_path: Path) -> None:
    run, scored, said = sampled(graph, tmp_path / "run", epochs=23)
    every = run.settings.train.evaluate_every
    assert isinstance(every, int)
    assert every > 1
    assert scored == sorted({*range(every, 24, every), 23})
    assert len(said) == 1
    assert f"evaluate_every = {every}" in (tmp_path / "run" / "config.toml").read_text()
    assert 0 < run.metrics["score_seconds"] < run.metrics["seconds"]


def test_a_number_of_the_user_stands(graph: Graph, tmp_path: Path) -> None:
    run, scored, said = sampled(graph, tmp_path / "run", epochs=4, evaluate_every=1)
    assert run.settings.train.evaluate_every == 1
    assert (scored, said) == ([1, 2, 3, 4], [])


def test_the_number_of_ranks_and_threads_does_not_change_it(graph: Graph, tmp_path: Path) -> None:
    found = set()
    for ranks, threads in ((1, 1), (1, 2), (2, 1)):
        how = {"ranks": ranks, "threads": threads, "engine": "local", "epochs": 12}
        found.add(sampled(graph, tmp_path / f"{ranks}-{threads}", **how)[0].settings.train.evaluate_every)
    assert len(found) == 1


def test_a_minibatch_of_many_seeds_makes_scores_cheap(tmp_path: Path) -> None:
    many = community(2000, degree=12, classes=3, features=64)
    run, _, _ = sampled(many, tmp_path / "run", epochs=3, batch_size=8)
    assert run.settings.train.evaluate_every == 1


def test_full_training_scores_after_every_epoch(graph: Graph, tmp_path: Path) -> None:
    assert siafu.train(graph, epochs=2, out=tmp_path / "run").settings.train.evaluate_every == 1


def test_ranking_all_pairs_is_rare(tmp_path: Path) -> None:
    nodes = community(1500, degree=6, classes=3, features=8)
    how: dict[str, Any] = {"task": "link", "epochs": 6, "hidden": 16}
    ranked = siafu.train(nodes, out=tmp_path / "ranked", metric="mrr", **how)
    assert ranked.settings.train.evaluate_every == 6
    drawn = siafu.train(nodes, out=tmp_path / "drawn", metric="mrr", evaluation=10, **how)
    assert drawn.settings.train.scoring_interval < 6


@pytest.mark.parametrize("value", [0, -3, "often"])
def test_what_is_no_number_of_epochs_is_refused(graph: Graph, value: Any) -> None:
    with pytest.raises(ValueError, match=r"train\.evaluate_every is .*; expected .*auto"):
        siafu.train(graph, evaluate_every=value)
