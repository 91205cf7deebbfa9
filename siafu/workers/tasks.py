"""The tasks of one graph server: those that wait, those under way, and the weights they read.

Workers take tasks when they are free. A task may be taken several times; the first result is committed as a whole, its
arrays and its gradients, and every later one is dropped.
"""

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from siafu.workers.task import Arrays, Key, Result, Task

Priority = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Done:
    """A task that was committed.

    Attributes:
        task: what was asked.
        result: what came of it.
        worker: who did it.
        began_s, ended_s: when it was taken and committed, by ``time.monotonic``.
    """

    task: Task
    result: Result
    worker: str
    began_s: float
    ended_s: float


@dataclass(eq=False)
class _Entry:
    """A task that is not committed yet."""

    task: Task
    priority: Priority
    began_s: dict[str, float] = field(default_factory=dict)  # by who runs it now


class Tasks:
    """What is to be done, for workers to take. Safe to use from many threads.

    ``deliver`` is told of each task that was committed, once, in the thread that committed it.
    """

    def __init__(self, deliver: Callable[[Done], None]) -> None:
        self._deliver = deliver
        self._changed = threading.Condition()
        self._waiting: list[tuple[Priority, Key]] = []
        self._entries: dict[Key, _Entry] = {}
        self._weights: dict[int, Arrays] = {}
        self._closed = False

    def publish(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Make a version of all weights known; they must not change any more."""
        with self._changed:
            self._weights[version] = weights

    def retire(self, version: int) -> None:
        """Forget a version that no task will read."""
        with self._changed:
            self._weights.pop(version, None)

    def weights(self, version: int) -> Arrays:
        """A version of all weights, by their names in the model."""
        with self._changed:
            return self._weights[version]

    def put(self, task: Task, priority: Priority) -> None:
        """Have a task done; those of a lower priority value come first."""
        with self._changed:
            self._entries[task.key] = _Entry(task, priority)
            heapq.heappush(self._waiting, (priority, task.key))
            self._changed.notify()

    def take(self, worker: str, *, wait_s: float | None = None) -> Task | None:
        """The next task for a worker, waited for; None where none came in time, or there will be none any more."""
        until = None if wait_s is None else time.monotonic() + wait_s
        with self._changed:
            while not self._closed:
                if self._waiting:
                    _, key = heapq.heappop(self._waiting)
                    entry = self._entries.get(key)
                    if entry is not None:
                        entry.began_s[worker] = time.monotonic()
                        return entry.task
                    continue
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
        return None

    def commit(self, key: Key, worker: str, result: Result) -> bool:
        """A worker has a result; returns whether it counts, which the first does."""
        now = time.monotonic()
        with self._changed:
            entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._deliver(Done(entry.task, result, worker, entry.began_s.get(worker, now), now))
        return True

    def fail(self, key: Key, worker: str, reason: str) -> None:
        """A worker will give no result: have the task done again, at once."""
        with self._changed:
            entry = self._entries.get(key)
            if entry is None or entry.began_s.pop(worker, None) is None:
                return
            if not entry.began_s:
                heapq.heappush(self._waiting, (entry.priority, key))
                self._changed.notify()

    def close(self) -> None:
        """There will be no more tasks: who waits for one is told."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
