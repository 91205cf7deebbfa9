"""Cut the times of events into steps, numbered from 0; a step may have no event."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

MOST_DISTINCT = 1000
MOST_STEPS = 1_000_000


class Steps(NamedTuple):
    """A division of time into steps.

    Attributes:
        begin: (T,) float64, when each step begins; ascending.
        length: how long each is, or None where each distinct time is a step.
        first: when the first begins, exactly: nanoseconds since 1970 don't fit a float.
    """

    begin: Tensor
    length: float | None
    first: float

    @property
    def num_steps(self) -> int:
        """T."""
        return self.begin.numel()

    def of(self, times: Tensor) -> Tensor:
        """Return the step of each time, (M,) -> (M,) int64; times must lie in the span that was cut."""
        if self.length is None:
            return torch.searchsorted(self.begin, times.double(), right=True) - 1
        since = times - times.new_tensor(self.first)
        return (since // _exact_length(self.length, times)).to(torch.int64).clamp_(max=self.num_steps - 1)


def cut_time(
    first: float, last: float, *, step: float | None = None, steps: int | None = None, name: str = "events"
) -> Steps:
    """Cut a span of time into steps of length ``step``, the last maybe shorter, or into ``steps`` equal ones."""
    if step is not None:
        if not (math.isfinite(step) and step > 0):
            raise ValueError(f"{name}: a step of {step}; expected a positive length of time")
        count = int((last - first) // step) + 1
    else:
        assert steps is not None
        if steps < 1:
            raise ValueError(f"{name}: {steps} steps; expected at least one")
        count, step = steps, (last - first) / steps or 1.0
    if count > MOST_STEPS:
        raise ValueError(
            f"{name}: steps of {step} make {count} of the span from {first} to {last}; at most {MOST_STEPS}: "
            "give a longer step"
        )
    return Steps(first + step * torch.arange(count, dtype=torch.float64), step, first)


def steps_of_distinct(times: Tensor, *, name: str = "events") -> Steps:
    """Make each distinct time a step; refuse more than 1000."""
    if times.numel() > MOST_DISTINCT:
        span = f"{times.numel()} distinct times from {times[0].item()} to {times[-1].item()}"
        raise ValueError(
            f"{name}: {span}, more than the {MOST_DISTINCT} that each become a step; say how time is cut, by the "
            "length of a step (step=, --step) or by the number of steps (steps=, --steps)"
        )
    return Steps(times.double(), None, times[0].item())


def find_steps(
    times: Tensor, *, step: float | None = None, steps: int | None = None, name: str = "events"
) -> Steps:
    """Cut the times of events, (M,), by step length, by number of steps, or at each distinct time."""
    if step is not None and steps is not None:
        raise ValueError(
            f"{name}: both a step ({step}) and a number of steps ({steps}); expected one of them"
        )
    if times.is_floating_point() and not bool(times.isfinite().all()):
        event = int((~times.isfinite()).nonzero()[0])
        raise ValueError(f"{name}: t[{event}] is {float(times[event])}; expected a finite number")
    if step is None and steps is None:
        return steps_of_distinct(times.unique(), name=name)
    return cut_time(times.min().item(), times.max().item(), step=step, steps=steps, name=name)


def _exact_length(length: float, times: Tensor) -> float | int:
    """Return the length as an int if it is whole, so that whole times are divided exactly."""
    return int(length) if float(length).is_integer() and not times.is_floating_point() else length
