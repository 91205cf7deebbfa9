"""A priority queue of tasks with worker affinity. It knows no lock and no clock."""

import heapq
from itertools import islice

from siafu.workers.task import Key

Priority = tuple[int, ...]
_Entry = tuple[Priority, Key]
_WORKERS_PER_INTERVAL = 4  # with fewer, rows are sent more often
_INTERVALS_TRIED = 16  # of a worker that asks for a task


class AffinityQueue:
    """A priority queue that prefers to give a worker tasks of intervals that it had before.

    The worker's cache of such an interval (rows that never change, a forward pass) is then used again. Affinity breaks
    ties alone: it may change the order by the last number of a priority, and by no number before it.
    """

    def __init__(self) -> None:
        self._waiting: set[Key] = set()
        self._heap: list[_Entry] = []  # may hold tasks that were taken or discarded
        self._newest: dict[int, _Entry] = {}  # the entry that was last put, by interval
        self._workers_of: dict[int, list[str]] = {}  # workers that had an interval, the most recent last
        self._intervals_of: dict[str, dict[int, None]] = {}  # the same, by worker

    def __len__(self) -> int:
        """Return the number of tasks that wait."""
        return len(self._waiting)

    def put(self, key: Key, priority: Priority) -> None:
        """Add a task; lower priority values come first."""
        entry = priority, key
        self._waiting.add(key)
        self._newest[key.interval] = entry
        heapq.heappush(self._heap, entry)

    def take(self, worker: str) -> Key | None:
        """Take the next task for a worker, which from then on has had its interval; None if the queue is empty."""
        first = self._first()
        if first is None:
            return None
        own = self._intervals_of.setdefault(worker, {})
        key = first[1] if first[1].interval in own else self._preferred(own, first)[1]
        self._waiting.remove(key)
        if key.interval not in own:
            self._remember(key.interval, worker)
        return key

    def preferred_workers(self) -> list[str]:
        """Return the workers that had the interval of the first task."""
        first = self._first()
        return [] if first is None else self._workers_of.get(first[1].interval, [])

    def discard(self, key: Key) -> None:
        """Remove a task, if it waits."""
        self._waiting.discard(key)

    def forget(self, worker: str) -> None:
        """Forget the intervals of a worker that left."""
        for interval in self._intervals_of.pop(worker, ()):
            self._workers_of[interval].remove(worker)

    def _first(self) -> _Entry | None:
        heap, waiting = self._heap, self._waiting
        while heap and heap[0][1] not in waiting:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _preferred(self, own: dict[int, None], first: _Entry) -> _Entry:
        """Return an entry of a worker's own intervals that is as urgent as the first; else the first."""
        for interval in islice(own, _INTERVALS_TRIED):
            entry = self._newest[interval]
            if entry[1] in self._waiting and entry[0][:-1] <= first[0][:-1]:
                return entry
        return first

    def _remember(self, interval: int, worker: str) -> None:
        workers = self._workers_of.setdefault(interval, [])
        workers.append(worker)
        self._intervals_of[worker][interval] = None
        if len(workers) > _WORKERS_PER_INTERVAL:
            del self._intervals_of[workers.pop(0)][interval]
