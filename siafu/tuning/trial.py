"""``Trial``: the record of one trial of a search."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["completed", "pruned", "failed", "interrupted"]


@dataclass(frozen=True)
class Trial:
    """One trial: settings that were tried, and what came of them.

    Attributes:
        number: its number, from 1; its run is in the folder ``trial-<number>`` of the search.
        settings: the values of the searched settings, by keys such as ``model.hidden``.
        val_score: the validation score of a completed trial, the best so far of a pruned one; else None.
        state: ``completed``; ``pruned``: stopped early, since others were better at the same epoch; ``failed``: its
            settings cannot be trained; ``interrupted``: it runs in another process, or its process has stopped.
        seconds: the time it took.
        recipe: the name of the recipe that it tried; empty where the settings were sampled.
        message: the error of a failed trial.
        curve: pairs of an epoch and the best validation score up to it.
    """

    number: int
    settings: dict[str, Any]
    val_score: float | None
    state: State
    seconds: float
    recipe: str = ""
    message: str = ""
    curve: tuple[tuple[int, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)


def count(trials: Sequence[Trial], *states: State) -> int:
    """Count the trials in any of the states."""
    return sum(trial.state in states for trial in trials)


def best_of(trials: Sequence[Trial], *, higher_is_better: bool) -> Trial | None:
    """Return the completed trial with the best validation score, the first of those that are equal."""
    completed = [trial for trial in trials if trial.state == "completed" and trial.val_score is not None]
    sign = -1 if higher_is_better else 1
    return min(completed, key=lambda trial: (sign * (trial.val_score or 0), trial.number), default=None)
