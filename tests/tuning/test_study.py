"""The study: sampled values, queued recipes, early stopping, lost processes."""

from pathlib import Path

import pytest

from siafu.tuning.space import Choices, Entry, Range, Settings
from siafu.tuning.study import Study

SPACE = (
    Entry("model.kind", Choices(("gcn", "appnp"))),
    Entry("model.hidden", Choices((8, 16, 32))),
    Entry("model.hops", Range(1, 5)),
    Entry("model.norm", Choices(("none", "layer"))),
    Entry("train.lr", Range(0.001, 0.1, log=True)),
    Entry("train.epochs", Choices((7,))),
)


def study(path: Path, *, seed: int = 0, higher_is_better: bool = True, prune_from: int = 2) -> Study:
    return Study(
        path / "j", SPACE, kind="gcn", seed=seed, higher_is_better=higher_is_better, prune_from=prune_from
    )


def sampled(path: Path, *, seed: int = 0, opened_again: bool = False) -> list[Settings]:
    path.mkdir()
    found, one = [], study(path, seed=seed)
    for number in range(14):
        one = study(path, seed=seed) if opened_again else one
        found.append(one.ask().settings)
        one.complete(number % 5, found[-1])
    return found


def test_the_same_seed_gives_the_same_trials_also_after_a_restart(tmp_path: Path) -> None:
    first = sampled(tmp_path / "a")
    assert sampled(tmp_path / "b", opened_again=True) == first
    assert sampled(tmp_path / "c", seed=1) != first


def test_a_trial_has_the_settings_of_its_kind(tmp_path: Path) -> None:
    found = sampled(tmp_path / "a")
    common = {"model.kind", "model.hidden", "train.lr", "train.epochs"}
    for settings in found:
        assert settings.keys() == common | {"model.norm" if settings["model.kind"] == "gcn" else "model.hops"}
        assert settings["train.epochs"] == 7
        assert 0.001 <= settings["train.lr"] <= 0.1
        assert settings["model.hidden"] in (8, 16, 32)
    assert {settings["model.kind"] for settings in found} == {"gcn", "appnp"}


def test_queued_trials_come_first_and_once(tmp_path: Path) -> None:
    recipes: list[tuple[str, Settings, Settings]] = [
        ("defaults", {}, {"model.kind": "gcn", "model.hidden": 16}),
        ("wide", {"model.hidden": 32}, {"model.kind": "gcn", "model.hidden": 32, "train.epochs": 7}),
    ]
    for _ in range(2):
        study(tmp_path).queue(recipes)
    one = study(tmp_path)
    assert [one.ask()[:] for _ in range(2)] == [(1, {}, "defaults"), (2, {"model.hidden": 32}, "wide")]
    third = one.ask()
    assert (third.number, third.recipe) == (3, "")


def test_a_trial_that_is_behind_others_at_the_same_epoch_is_stopped(tmp_path: Path) -> None:
    one = study(tmp_path)
    for score in (0.5, 0.6, 0.7, 0.8, 0.9):
        one.ask()
        assert not any(one.report(epoch, score) for epoch in (1, 2, 3))
        one.complete(score, {})
    one.ask()
    assert not one.report(1, 0.1), "too early"
    assert one.report(2, 0.1)
    one.prune()
    one.ask()
    assert not one.report(2, 0.75)
    trial = one.trials()[5]
    assert (trial.state, trial.val_score, trial.curve) == ("pruned", 0.1, ((1, 0.1), (2, 0.1)))


def test_lower_scores_may_be_better(tmp_path: Path) -> None:
    one = study(tmp_path, higher_is_better=False)
    for score in (0.5, 0.6, 0.7, 0.8, 0.9):
        one.ask()
        one.report(2, score)
        one.complete(score, {})
    one.ask()
    assert one.report(2, 1.1)
    one.ask()
    assert not one.report(2, 0.1)


def test_a_trial_that_is_taken_over_has_its_settings_and_its_best_score(tmp_path: Path) -> None:
    one = study(tmp_path)
    asked = one.ask()
    one.begin()
    one.report(1, 0.4)
    one.report(2, 0.5)
    two = study(tmp_path)
    assert [trial.state for trial in two.trials()] == ["interrupted"]
    assert two.take_over(1) == asked
    assert two.best_so_far() == 0.5
    assert not two.report(2, 0.3), "reported before"
    assert two.num_losses == 1
    two.begin()
    two.add_time(10.0, 12.0)
    assert two.num_losses == 1
    two.complete(0.6, {"model.hidden": 8})
    (trial,) = one.trials()
    assert (trial.state, trial.val_score, trial.seconds) == ("completed", 0.6, 2.0)
    assert trial.settings == {"model.hidden": 8}


def test_time_is_counted_once_where_processes_run_at_once(tmp_path: Path) -> None:
    one = study(tmp_path)
    for began, ended in ((0.0, 10.0), (5.0, 12.0), (20.0, 21.0), (6.0, 7.0)):
        one.ask()
        one.add_time(began, ended)
        one.complete(0.5, {})
    assert one.seconds() == pytest.approx(13)


def test_a_failed_trial_keeps_its_message(tmp_path: Path) -> None:
    one = study(tmp_path)
    one.ask()
    one.fail("the loss is nan")
    (trial,) = one.trials()
    assert (trial.state, trial.message, trial.val_score) == ("failed", "the loss is nan", None)


def test_importance_names_the_setting_that_matters(tmp_path: Path) -> None:
    one = study(tmp_path)
    assert one.importance() == {}
    for _ in range(24):
        settings = one.ask().settings
        one.complete(1.0 if settings["model.kind"] == "gcn" else 0.0, settings)
    found = one.importance()
    assert max(found, key=lambda name: found[name]) == "model.kind"
    assert study(tmp_path).importance() == found
