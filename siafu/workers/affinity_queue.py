"""Tasks that wait for a worker. It knows no lock and no clock."""

import heapq
from itertools import islice

from siafu.workers.task import Key

Priority = tuple[int, ...]
_Place = tuple[Priority, Key]
_HOMES = 4  # of an interval: with fewer, rows travel more often
_LOOKS = 16  # at intervals that a worker had, for one that waits


class Waiting:
    """A queue by priority in which a worker gets first what is of an interval that it had before, as one of the last.

    So what it keeps of an interval, rows that never change or a forward pass, is used again. That breaks no order but
    that of the last number of a priority: what is more urgent by those before it comes first, whoever asks.
    """

    def __init__(self) -> None:
        self._waits: set[Key] = set()
        self._queue: list[_Place] = []  # with some that wait no more
        self._at: dict[int, _Place] = {}  # what was last put of an interval
        self._homes: dict[int, list[str]] = {}  # who had an interval, the last one last
        self._had: dict[str, dict[int, None]] = {}  # the same, by worker

    def __len__(self) -> int:
        """How many there are."""
        return len(self._waits)

    def put(self, key: Key, priority: Priority) -> None:
        """One more; those of a lower priority value come first."""
        place = priority, key
        self._waits.add(key)
        self._at[key.interval] = place
        heapq.heappush(self._queue, place)

    def take(self, worker: str) -> Key | None:
        """The next one for a worker, who has had its interval from now on; None where there is none."""
        first = self._first()
        if first is None:
            return None
        had = self._had.setdefault(worker, {})
        key = first[1] if first[1].interval in had else self._own(had, first)[1]
        self._waits.remove(key)
        if key.interval not in had:
            self._come_home(key.interval, worker)
        return key

    def homes(self) -> list[str]:
        """Who had the interval of the one that comes first."""
        first = self._first()
        return [] if first is None else self._homes.get(first[1].interval, [])

    def drop(self, key: Key) -> None:
        """It need not be done any more."""
        self._waits.discard(key)

    def forget(self, worker: str) -> None:
        """A worker is gone: its intervals are the others'."""
        for interval in self._had.pop(worker, ()):
            self._homes[interval].remove(worker)

    def _first(self) -> _Place | None:
        queue, waits = self._queue, self._waits
        while queue and queue[0][1] not in waits:
            heapq.heappop(queue)
        return queue[0] if queue else None

    def _own(self, had: dict[int, None], first: _Place) -> _Place:
        """One of an interval that a worker had, if one waits that is as urgent as the first; else the first."""
        for interval in islice(had, _LOOKS):
            place = self._at[interval]
            if place[1] in self._waits and place[0][:-1] <= first[0][:-1]:
                return place
        return first

    def _come_home(self, interval: int, worker: str) -> None:
        homes = self._homes.setdefault(interval, [])
        homes.append(worker)
        self._had[worker][interval] = None
        if len(homes) > _HOMES:
            del self._had[homes.pop(0)][interval]
