"""The budget of a search: a number of trials, a time, or both."""

import re
import time
from dataclasses import dataclass

DEFAULT_TRIALS = 50
_UNITS = {"h": 3600, "m": 60, "s": 1}
_TIME = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def parse_time(text: str | float) -> float:
    """Parse a time such as 30m, 1h30m or 90s into seconds; a number without a unit is in seconds."""
    found = _TIME.fullmatch(str(text).strip())
    parts = [float(part or 0) for part in found.groups()] if found else []
    seconds = sum(part * unit for part, unit in zip(parts, _UNITS.values(), strict=False))
    if not 0 < seconds < 1e9:
        raise ValueError(f"time is {text}; expected a time such as 30m, 1h30m or 90s")
    return seconds


@dataclass(frozen=True)
class Wanted:
    """The budget that the user gave for a search, over all processes and commands; None: no limit.

    Attributes:
        trials: the number of trials, completed or stopped early.
        seconds: the time during which trials run.
    """

    trials: int | None
    seconds: float | None

    @classmethod
    def of(cls, *, trials: int | None, time: str | float | None) -> "Wanted":
        """Check a budget; the default is a number of trials."""
        if trials is not None and trials < 1:
            raise ValueError(f"trials is {trials}; expected at least 1")
        seconds = None if time is None else parse_time(time)
        return cls(DEFAULT_TRIALS if trials is None and seconds is None else trials, seconds)


@dataclass(frozen=True)
class Budget:
    """The budget of one process.

    Attributes:
        wanted: the budget of the search.
        deadline: when this process stops, by the monotonic clock.
    """

    wanted: Wanted
    deadline: float

    @classmethod
    def of(cls, wanted: Wanted, *, spent: float) -> "Budget":
        """Make the budget of a process that joins a search whose trials have run for ``spent`` seconds."""
        left = float("inf") if wanted.seconds is None else wanted.seconds - spent
        return cls(wanted, time.monotonic() + left)

    @property
    def trials(self) -> int | None:
        """The number of trials with which the search ends."""
        return self.wanted.trials

    def is_over(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() >= self.deadline
