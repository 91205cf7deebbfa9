"""Tasks that wait for a worker. It knows no lock and no clock."""

import heapq

from siafu.workers.task import Key

Priority = tuple[int, ...]
_Place = tuple[Priority, Key]
_HOMES = 4  # of an interval: with fewer, rows travel more often


class Waiting:
    """A queue by priority in which a worker gets first what is of an interval that it had before, as one of the last.

    So what it keeps of an interval, rows that never change or a forward pass, is used again. That breaks no order but
    that of the last number of a priority: what is more urgent by those before it comes first, whoever asks.
    """

    def __init__(self) -> None:
        self._waits: set[Key] = set()
        self._queue: list[_Place] = []  # with some that wait no more
        self._homes: dict[int, list[str]] = {}  # who had an interval, the last one last
        self._own: dict[str, list[_Place]] = {}  # the same places, for those who had their intervals

    def __len__(self) -> int:
        """How many there are."""
        return len(self._waits)

    def put(self, key: Key, priority: Priority) -> None:
        """One more; those of a lower priority value come first."""
        self._waits.add(key)
        heapq.heappush(self._queue, (priority, key))
        for home in self._homes.get(key.interval, ()):
            heapq.heappush(self._own[home], (priority, key))

    def take(self, worker: str) -> Key | None:
        """The next one for a worker, who has had its interval from now on; None where there is none."""
        first, own = self._first(self._queue), self._first(self._own.get(worker, []))
        if first is None:
            return None
        _, key = first if own is None or own[0][:-1] > first[0][:-1] else own
        self._waits.remove(key)
        homes = self._homes.setdefault(key.interval, [])
        if worker not in homes:
            homes.append(worker)
            del homes[:-_HOMES]
            self._own.setdefault(worker, [])
        return key

    def homes(self) -> list[str]:
        """Who had the interval of the one that comes first."""
        first = self._first(self._queue)
        return [] if first is None else self._homes.get(first[1].interval, [])

    def drop(self, key: Key) -> None:
        """It need not be done any more."""
        self._waits.discard(key)

    def forget(self, worker: str) -> None:
        """A worker is gone: its intervals are nobody's."""
        if self._own.pop(worker, None) is not None:
            for homes in self._homes.values():
                if worker in homes:
                    homes.remove(worker)

    def _first(self, queue: list[_Place]) -> _Place | None:
        while queue and queue[0][1] not in self._waits:
            heapq.heappop(queue)
        return queue[0] if queue else None
