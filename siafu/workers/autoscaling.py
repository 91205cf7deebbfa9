"""Autoscaling: how many workers to have. The policies return values, start nothing, and know no thread and no clock.

The fast loop follows the queue, as Dorylus does, up to a bound. The slow loop finds that bound by hill climbing: it
maximises the value V = 1 / (time x cost) over the number of leases, and states the reason for its choice.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MAX_INITIAL_WORKERS = 100  # per server, as in Dorylus


@dataclass(frozen=True)
class QueueStats:
    """The state of a server's task queue over a period, ordinarily an epoch.

    Attributes:
        workers: the number of workers.
        waiting_first, waiting_last: tasks that waited for a worker, at the beginning and at the end.
        idle: workers that waited for a task, on average.
    """

    workers: int
    waiting_first: int
    waiting_last: int
    idle: float = 0.0


def initial_workers(intervals: int, max_workers: int) -> int:
    """Return the number of workers with which a server starts."""
    return max(0, min(intervals, MAX_INITIAL_WORKERS, max_workers))


def follow_queue(stats: QueueStats, max_workers: int) -> int:
    """Return the number of workers that a server should have next, from 0 to ``max_workers``.

    If the queue grew, workers are added: as many as it grew by, and at most as many as there are. If it shrank or
    workers are idle, half of the surplus is removed, so that the number does not oscillate.
    """
    growth = stats.waiting_last - stats.waiting_first
    if growth > 0:
        wanted = stats.workers + min(growth, max(stats.workers, 1))
    else:
        surplus = max(min(-growth, stats.workers // 2), math.floor(stats.idle))
        wanted = stats.workers - math.ceil(surplus / 2)
    return max(0, min(wanted, max_workers))


@dataclass(frozen=True)
class EpochCost:
    """The cost of one epoch: the number of leases during it, its seconds and its dollars."""

    leases: int
    seconds: float
    dollars: float


@dataclass(frozen=True)
class LeasePoint:
    """The median cost of the epochs with one number of leases."""

    leases: int
    seconds: float
    dollars: float

    @property
    def value(self) -> float:
        """V = 1 / (time x cost)."""
        return 1 / max(self.seconds * self.dollars, 1e-300)


@dataclass(frozen=True)
class HillClimbConfig:
    """The configuration of the slow loop.

    Attributes:
        max_leases: the largest number of leases; more than there are tasks at a time never help.
        epochs_per_point: epochs measured with each number of leases; their medians are compared.
        warm_up: epochs that are skipped after each change, while leases start or end.
        clear_drop: V falling by this share ends a direction; of smaller drops, which may be noise, it takes two.
        min_gain: leases are used only if they raise V by this share, which is more than noise.
        max_points: numbers of leases that are tried before it settles.
        drift: the relative change of an epoch's time after which it climbs again.
    """

    max_leases: int
    epochs_per_point: int = 5
    warm_up: int = 1
    clear_drop: float = 0.15
    min_gain: float = 0.05
    max_points: int = 12
    drift: float = 0.2

    def grid(self) -> list[int]:
        """Return the numbers of leases that are tried: 0, 1, 2, 4, … and the maximum."""
        doubled = [2**power for power in range(self.max_leases.bit_length()) if 2**power < self.max_leases]
        return [0, *doubled, self.max_leases] if self.max_leases > 0 else [0]


@dataclass(frozen=True)
class HillClimb:
    """The state of the slow loop: use ``leases``, measure an epoch, and go on with :meth:`after`.

    Attributes:
        config: its configuration.
        leases: the number of leases to use now.
        start: the number with which it began.
        settled: whether it has chosen its number.
        reason: for this number, in a sentence with figures.
        points: the measurements, by the number of leases.
        epochs: measured with the present number, the newest last.
        skipped: epochs that were skipped since the last change.
    """

    config: HillClimbConfig
    leases: int
    start: int
    settled: bool = False
    reason: str = ""
    points: Mapping[int, LeasePoint] = field(default_factory=dict)
    epochs: tuple[EpochCost, ...] = ()
    skipped: int = 0

    def after(self, epoch: EpochCost) -> "HillClimb":
        """Return the state after an epoch was measured; epochs with another number of leases are ignored."""
        if epoch.leases != self.leases:
            return self
        if self.skipped < self.config.warm_up:
            return replace(self, skipped=self.skipped + 1)
        now = replace(self, epochs=(*self.epochs, epoch)[-self.config.epochs_per_point :])
        if len(now.epochs) < self.config.epochs_per_point:
            return now
        point = _median(now.epochs)
        return _check_drift(now, point) if self.settled else _next(now, point)


def begin_climb(config: HillClimbConfig, intervals: int) -> HillClimb:
    """Return the initial state of the slow loop, at the number on the grid nearest to :func:`initial_workers`."""
    start = _nearest(config.grid(), initial_workers(intervals, config.max_leases))
    return HillClimb(config, start, start, reason=f"{_count(start)}: measured first, nothing is known yet")


def _next(climb: HillClimb, point: LeasePoint) -> HillClimb:
    """Go on to another number of leases, or settle on the best."""
    points = {**climb.points, point.leases: point}
    leases = _untried(climb.config, points, climb.start)
    if leases is None or len(points) >= climb.config.max_points:
        best = _choose(climb.config, points)
        return replace(
            climb,
            leases=best.leases,
            settled=True,
            reason=_explain(best, points),
            points=points,
            epochs=climb.epochs if best.leases == climb.leases else (),
            skipped=climb.skipped if best.leases == climb.leases else 0,
        )
    best = _best(points)
    reason = f"{_count(leases)}: tried next; the best so far is {_figures(best)}"
    return replace(climb, leases=leases, reason=reason, points=points, epochs=(), skipped=0)


def _check_drift(climb: HillClimb, point: LeasePoint) -> HillClimb:
    """Stay, unless the time of an epoch has drifted: then climb again, from the present number."""
    before = climb.points[climb.leases]
    change = point.seconds / max(before.seconds, 1e-300)
    if 1 / (1 + climb.config.drift) <= change <= 1 + climb.config.drift:
        return climb
    reason = (
        f"{_count(climb.leases)}: an epoch takes {_s(point.seconds)} where it took {_s(before.seconds)}; "
        "other numbers are tried again"
    )
    again = HillClimb(climb.config, climb.leases, climb.leases, reason=reason, epochs=climb.epochs)
    return replace(_next(again, point), reason=reason)


def _untried(config: HillClimbConfig, points: Mapping[int, LeasePoint], start: int) -> int | None:
    """Return the number to measure next: the start, 0, then upwards, then downwards if upwards did not help."""
    grid = config.grid()
    for leases in (start, 0):
        if leases not in points:
            return leases
    if len(grid) == 1:
        return None
    place = grid.index(start) or 1  # from a start at 0, go on above it
    up = _along(config, points, grid[place:])
    if up is not None:
        return up
    if max(points[leases].value for leases in grid[place:] if leases in points) > points[grid[place]].value:
        return None
    return _along(config, points, grid[place:0:-1])


def _along(config: HillClimbConfig, points: Mapping[int, LeasePoint], grid: list[int]) -> int | None:
    """Return the next number of a direction; None at its end, or once V falls."""
    best, falls = 0.0, 0
    for leases in grid:
        if leases not in points:
            return leases
        value = points[leases].value
        falls = 0 if value > best else falls + 1
        if falls > 1 or value < best * (1 - config.clear_drop):
            return None
        best = max(best, value)
    return None


def _choose(config: HillClimbConfig, points: Mapping[int, LeasePoint]) -> LeasePoint:
    """Return the best point, or that without leases if the best is hardly better."""
    best = _best(points)
    return best if best.value > points[0].value * (1 + config.min_gain) else points[0]


def _best(points: Mapping[int, LeasePoint]) -> LeasePoint:
    """Return the point of the highest V; among equals the one with the fewest leases."""
    return max((points[leases] for leases in sorted(points)), key=lambda point: point.value)


def _explain(best: LeasePoint, points: Mapping[int, LeasePoint]) -> str:
    """Compare the choice with 0 leases; or, if it is 0 leases, with the best other number."""
    without = points[0]
    others = [point for point in points.values() if point.leases]
    if not others:
        return f"0 leases: {_s(best.seconds)} at {_usd(best.dollars)} an epoch; there may be none"
    beside = best if best.leases else _best({point.leases: point for point in others})
    return (
        f"{_count(best.leases)}: an epoch took {_s(without.seconds)} at {_usd(without.dollars)} without and "
        f"{_s(beside.seconds)} at {_usd(beside.dollars)} with {beside.leases}; {_change(beside.value / without.value)}"
    )


def _change(ratio: float) -> str:
    """Describe the effect of leases on V."""
    if ratio > 1.005:
        return f"V rises by {ratio:.3g}x"
    return f"V falls by {1 / ratio:.3g}x" if ratio < 0.995 else "V is the same"


def _median(epochs: tuple[EpochCost, ...]) -> LeasePoint:
    return LeasePoint(
        epochs[0].leases,
        statistics.median(epoch.seconds for epoch in epochs),
        statistics.median(epoch.dollars for epoch in epochs),
    )


def _nearest(grid: list[int], wanted: int) -> int:
    return min(grid, key=lambda leases: (abs(math.log2(leases + 1) - math.log2(wanted + 1)), leases))


def _figures(point: LeasePoint) -> str:
    return f"{_count(point.leases)}, {_s(point.seconds)} at {_usd(point.dollars)} an epoch"


def _count(leases: int) -> str:
    return f"{leases} lease" if leases == 1 else f"{leases} leases"


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _usd(dollars: float) -> str:
    """Format dollars with two significant digits, never in powers of ten."""
    digits = 2 if dollars >= 1 else 1 - math.floor(math.log10(max(dollars, 1e-12)))
    return f"${dollars:.{digits}f}"
