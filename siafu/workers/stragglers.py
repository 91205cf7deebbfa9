"""Straggler detection: how long tasks take, and which running tasks are overdue. It knows no clock and no lock."""

from collections import OrderedDict, deque

from siafu.workers.task import Direction, Key

HEDGE_BUDGET = 0.05  # copies, per task that was committed
MIN_SAMPLES = 20  # durations of a kind before any of its tasks counts as overdue
WINDOW = 256  # durations of a kind that are remembered
MIN_LIMIT_S = 0.005  # copying a shorter task costs more than it can save
REFRESH = 16  # durations until a limit is computed again


class _Kind:
    """Tasks of one stage and direction, which take about as long as each other."""

    __slots__ = ("limit_s", "running", "seconds", "unread")

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=WINDOW)
        self.unread = 0
        self.limit_s: float | None = None
        self.running: OrderedDict[Key, float] = OrderedDict()  # when each began, the earliest first

    def add_duration(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.unread += 1
        enough = len(self.seconds) >= MIN_SAMPLES
        if enough and (self.limit_s is None or self.unread >= REFRESH):
            ordered = sorted(self.seconds)
            self.limit_s = max(ordered[int(0.95 * len(ordered))], 2 * ordered[len(ordered) // 2], MIN_LIMIT_S)
            self.unread = 0


class StragglerDetector:
    """Finds the running task that is overdue first.

    A task is overdue once it runs longer than 95 % of its kind, and than twice their median. Copies of overdue tasks
    (hedged tasks) are limited to a budget, a share of the tasks that were committed.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, Direction], _Kind] = {}
        self._committed = 0
        self.num_hedged = 0

    def start(self, key: Key, now_s: float) -> None:
        """Watch a task that a worker began."""
        kind = self._kinds.get(key[1:3])
        if kind is None:
            kind = self._kinds[key[1:3]] = _Kind()
        kind.running[key] = now_s

    def stop(self, key: Key) -> None:
        """Watch a task no longer: it ended, or has a copy."""
        kind = self._kinds.get(key[1:3])
        if kind is not None:
            kind.running.pop(key, None)

    def record(self, key: Key, seconds: float) -> None:
        """Record the duration of a committed task."""
        self._committed += 1
        self._kinds[key[1:3]].add_duration(seconds)

    def next_overdue(self) -> tuple[float, Key] | None:
        """Return when the next task becomes overdue, and which; None if there is none, or no budget for a copy."""
        if self.num_hedged + 1 > HEDGE_BUDGET * self._committed:
            return None
        first = None
        for kind in self._kinds.values():
            if kind.limit_s is None or not kind.running:
                continue
            key, began_s = next(iter(kind.running.items()))
            due = (began_s + kind.limit_s, key)
            if first is None or due < first:
                first = due
        return first
