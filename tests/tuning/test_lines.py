"""What a search says of its trials, and how a budget is read."""

import pytest

from siafu.tuning.budget import Budget, Wanted, parse_time
from siafu.tuning.lines import describe_settings, trial_line
from siafu.tuning.trial import State, Trial, best_of

SETTINGS = {
    **{
        "model.hidden": 256,
        "model.kind": "gcn",
        "model.layers": 3,
        "model.norm": "none",
        "model.residual": True,
    },
    **{"model.input_dropout": None, "train.weight_decay": 0.0, "data.normalize": "none"},
}


def trial(number: int, state: State, score: float | None, **more: object) -> Trial:
    return Trial(number, {"model.kind": "gat"}, score, state, 1.0, **more)  # type: ignore[arg-type]


def test_settings_are_described_with_the_kind_first() -> None:
    described = describe_settings(SETTINGS)
    assert described == "gcn, 256 columns, 3 layers, residual, weight decay 0, normalize none"
    assert describe_settings(SETTINGS, "defaults") == "the defaults"


def test_a_line_tells_the_score_and_the_best_trial() -> None:
    best, pruned = trial(3, "completed", 0.82), trial(7, "pruned", 0.5, curve=((10, 0.4), (20, 0.5)))
    line = trial_line(best, best, metric="accuracy", total=20)
    assert line == "trial 3 of 20: gat: 82.0 % (best 82.0 %, trial 3)"
    line = trial_line(pruned, best, metric="accuracy", total=None)
    assert line == "trial 7: gat: pruned after epoch 20 at 50.0 % (best 82.0 %, trial 3)"
    failed = trial(8, "failed", None, message="the loss is nan\nmore")
    assert (
        trial_line(failed, None, metric="accuracy", total=9) == "trial 8 of 9: gat: failed: the loss is nan"
    )


def test_the_first_of_equal_trials_is_the_best() -> None:
    trials = [
        trial(1, "pruned", 0.9),
        trial(2, "completed", 0.8),
        trial(3, "completed", 0.8),
        trial(4, "failed", None),
    ]
    best = best_of(trials, higher_is_better=True)
    assert best is not None
    assert best.number == 2
    lower = best_of([*trials, trial(5, "completed", 0.1)], higher_is_better=False)
    assert lower is not None
    assert lower.number == 5
    assert best_of(trials[:1], higher_is_better=True) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("45", 45), (45, 45), ("2m30s", 150)],
)
def test_a_time_is_read_with_its_units(text: str | float, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "-3s", "0", "m", "1e99h", "30 min", "nan", float("inf")])
def test_a_bad_time_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match=r"^time is .*; expected a time such as 30m, 1h30m or 90s$"):
        parse_time(text)


def test_fifty_trials_are_the_budget_if_none_is_given() -> None:
    assert Wanted.of(trials=None, time=None) == Wanted(50, None)
    assert Wanted.of(trials=None, time="1m") == Wanted(None, 60)
    assert not Budget.of(Wanted(3, None), spent=10**9).is_over()
    assert Budget.of(Wanted(None, 60), spent=60).is_over()
    assert not Budget.of(Wanted(None, 60), spent=1).is_over()
