"""How long tasks take, and which of those under way are overdue. It knows no clock and no lock."""

from collections import OrderedDict, deque

from siafu.workers.task import Direction, Key

BUDGET = 0.05  # copies, per task that was committed
LEAST = 20  # durations of a kind before anything is said of it
WINDOW = 256  # durations of a kind that are remembered
SHORTEST_S = 0.005  # a copy of what takes less costs more than it can save
REFRESH = 16  # durations until a limit is worked out again


class _Kind:
    """Tasks of one stage and direction, which take about as long as each other."""

    __slots__ = ("limit_s", "running", "seconds", "unread")

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=WINDOW)
        self.unread = 0
        self.limit_s: float | None = None
        self.running: OrderedDict[Key, float] = OrderedDict()  # the longest first

    def took(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.unread += 1
        enough = len(self.seconds) >= LEAST
        if enough and (self.limit_s is None or self.unread >= REFRESH):
            ordered = sorted(self.seconds)
            self.limit_s = max(ordered[int(0.95 * len(ordered))], 2 * ordered[len(ordered) // 2], SHORTEST_S)
            self.unread = 0


class Pace:
    """The durations of a run's tasks.

    A task is overdue once it runs longer than 95 % of its kind, and than twice their median. Copies of overdue tasks
    are limited to a budget, a share of the tasks that were committed.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, Direction], _Kind] = {}
        self._committed = 0
        self.hedged = 0

    def began(self, key: Key, now_s: float) -> None:
        """A task runs, once."""
        kind = self._kinds.get(key[1:3])
        if kind is None:
            kind = self._kinds[key[1:3]] = _Kind()
        kind.running[key] = now_s

    def ended(self, key: Key) -> None:
        """A task is no longer to be watched: it ended, or has its copy."""
        kind = self._kinds.get(key[1:3])
        if kind is not None:
            kind.running.pop(key, None)

    def took(self, key: Key, seconds: float) -> None:
        """A task was committed so long after it was taken."""
        self._committed += 1
        self._kinds[key[1:3]].took(seconds)

    def next_due(self) -> tuple[float, Key] | None:
        """Which task will be overdue first, and when; None where there is none, or no budget for a copy."""
        if self.hedged + 1 > BUDGET * self._committed:
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
