"""How many workers to have: policies that return values. They start nothing, and know no thread and no clock.

The fast loop follows the queue, as Dorylus does, within a bound. The slow loop sets that bound: it climbs the value
V = 1 / (time x cost) over the number of leases, and says why it stopped where it did.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MOST_AT_FIRST = 100  # per server, as Dorylus has it


@dataclass(frozen=True)
class Seen:
    """What a server saw of its queue over a while, ordinarily an epoch.

    Attributes:
        workers: how many there are.
        waiting_first, waiting_last: tasks that waited for a worker, at the beginning and at the end.
        idle: workers that waited for a task, on average.
    """

    workers: int
    waiting_first: int
    waiting_last: int
    idle: float = 0.0


def workers_at_first(intervals: int, most: int) -> int:
    """How many workers a server starts with."""
    return max(0, min(intervals, MOST_AT_FIRST, most))


def follow_queue(seen: Seen, most: int) -> int:
    """How many workers a server should have next, from 0 to ``most``.

    More where tasks pile up: as many as the queue grew by, at most twice what there are. Fewer where it shrinks or
    workers idle: half of the surplus, so that it doesn't swing.
    """
    grown = seen.waiting_last - seen.waiting_first
    if grown > 0:
        wanted = seen.workers + min(grown, max(seen.workers, 1))
    else:
        surplus = max(min(-grown, seen.workers // 2), math.floor(seen.idle))
        wanted = seen.workers - math.ceil(surplus / 2)
    return max(0, min(wanted, most))


@dataclass(frozen=True)
class Epoch:
    """An epoch that was measured: how many leases were asked for meanwhile, its seconds and its dollars."""

    leases: int
    seconds: float
    dollars: float


@dataclass(frozen=True)
class Point:
    """Medians over the epochs with one number of leases."""

    leases: int
    seconds: float
    dollars: float

    @property
    def value(self) -> float:
        """V = 1 / (time x cost)."""
        return 1 / max(self.seconds * self.dollars, 1e-300)


@dataclass(frozen=True)
class Rules:
    """How the slow loop climbs.

    Attributes:
        most: leases, at most; more than there are tasks at a time never help.
        epochs_per_point: measured with each number of leases; their medians are compared.
        warm_up: epochs left out after each change, in which leases start or end.
        clear: a fall of V by this share ends a direction; of a smaller one, which may be noise, it takes two.
        worth: leases are had only if they raise V by this share, which is more than noise.
        most_points: numbers of leases tried before it settles.
        drift: by how much of itself an epoch's time may change before it climbs again.
    """

    most: int
    epochs_per_point: int = 5
    warm_up: int = 1
    clear: float = 0.15
    worth: float = 0.05
    most_points: int = 12
    drift: float = 0.2

    def grid(self) -> list[int]:
        """The numbers of leases that are tried: 0, 1, 2, 4, … and the most."""
        doubled = [2**power for power in range(self.most.bit_length()) if 2**power < self.most]
        return [0, *doubled, self.most] if self.most > 0 else [0]


@dataclass(frozen=True)
class Climb:
    """Where the slow loop stands: have ``leases``, measure an epoch, and go on with :meth:`after`.

    Attributes:
        rules: how it climbs.
        leases: how many there should be now.
        start: where it began.
        settled: whether it has found its number.
        reason: why this number, in a sentence with figures.
        points: what was measured, by the number of leases.
        epochs: measured with the present number, the newest last.
        skipped: epochs left out since the last change.
    """

    rules: Rules
    leases: int
    start: int
    settled: bool = False
    reason: str = ""
    points: Mapping[int, Point] = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = ()
    skipped: int = 0

    def after(self, epoch: Epoch) -> "Climb":
        """Where it stands once an epoch was measured; one with another number of leases says nothing."""
        if epoch.leases != self.leases:
            return self
        if self.skipped < self.rules.warm_up:
            return replace(self, skipped=self.skipped + 1)
        now = replace(self, epochs=(*self.epochs, epoch)[-self.rules.epochs_per_point :])
        if len(now.epochs) < self.rules.epochs_per_point:
            return now
        point = _median(now.epochs)
        return _watch(now, point) if self.settled else _next(now, point)


def begin_climb(rules: Rules, intervals: int) -> Climb:
    """The slow loop at its beginning: the queue's rule says where, on the grid."""
    start = _nearest(rules.grid(), workers_at_first(intervals, rules.most))
    return Climb(rules, start, start, reason=f"{_count(start)}: measured first, nothing is known yet")


def _next(climb: Climb, point: Point) -> Climb:
    """Go on to another number of leases, or settle on the best."""
    points = {**climb.points, point.leases: point}
    leases = _untried(climb.rules, points, climb.start)
    if leases is None or len(points) >= climb.rules.most_points:
        best = _choose(climb.rules, points)
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


def _watch(climb: Climb, point: Point) -> Climb:
    """Stay, unless epochs take another time than they did: then climb again, from here."""
    before = climb.points[climb.leases]
    change = point.seconds / max(before.seconds, 1e-300)
    if 1 / (1 + climb.rules.drift) <= change <= 1 + climb.rules.drift:
        return climb
    reason = (
        f"{_count(climb.leases)}: an epoch takes {_s(point.seconds)} where it took {_s(before.seconds)}; "
        "other numbers are tried again"
    )
    again = Climb(climb.rules, climb.leases, climb.leases, reason=reason, epochs=climb.epochs)
    return replace(_next(again, point), reason=reason)


def _untried(rules: Rules, points: Mapping[int, Point], start: int) -> int | None:
    """The number to measure next: the start, none, then upwards, and downwards where that did not help."""
    grid = rules.grid()
    for leases in (start, 0):
        if leases not in points:
            return leases
    if len(grid) == 1:
        return None
    place = grid.index(start) or 1  # what is above 0, where it starts there
    up = _along(rules, points, grid[place:])
    if up is not None:
        return up
    if max(points[leases].value for leases in grid[place:] if leases in points) > points[grid[place]].value:
        return None
    return _along(rules, points, grid[place:0:-1])


def _along(rules: Rules, points: Mapping[int, Point], grid: list[int]) -> int | None:
    """The next number of a direction; None at its end, or where V falls."""
    best, falls = 0.0, 0
    for leases in grid:
        if leases not in points:
            return leases
        value = points[leases].value
        falls = 0 if value > best else falls + 1
        if falls > 1 or value < best * (1 - rules.clear):
            return None
        best = max(best, value)
    return None


def _choose(rules: Rules, points: Mapping[int, Point]) -> Point:
    """The best, or none where the best is hardly better."""
    best = _best(points)
    return best if best.value > points[0].value * (1 + rules.worth) else points[0]


def _best(points: Mapping[int, Point]) -> Point:
    """That of the highest V; of the fewest leases among equals."""
    return max((points[leases] for leases in sorted(points)), key=lambda point: point.value)


def _explain(best: Point, points: Mapping[int, Point]) -> str:
    """Say why, beside what it would be without leases; or beside the best with some, where none are better."""
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
    """What leases do to V."""
    if ratio > 1.005:
        return f"V rises by {ratio:.3g}x"
    return f"V falls by {1 / ratio:.3g}x" if ratio < 0.995 else "V is the same"


def _median(epochs: tuple[Epoch, ...]) -> Point:
    return Point(
        epochs[0].leases,
        statistics.median(epoch.seconds for epoch in epochs),
        statistics.median(epoch.dollars for epoch in epochs),
    )


def _nearest(grid: list[int], wanted: int) -> int:
    return min(grid, key=lambda leases: (abs(math.log2(leases + 1) - math.log2(wanted + 1)), leases))


def _figures(point: Point) -> str:
    return f"{_count(point.leases)}, {_s(point.seconds)} at {_usd(point.dollars)} an epoch"


def _count(leases: int) -> str:
    return f"{leases} lease" if leases == 1 else f"{leases} leases"


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s"


def _usd(dollars: float) -> str:
    """Two digits, never in powers of ten."""
    digits = 2 if dollars >= 1 else 1 - math.floor(math.log10(max(dollars, 1e-12)))
    return f"${dollars:.{digits}f}"
