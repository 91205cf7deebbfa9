"""The tasks of one graph server: those that wait, those under way, and the weights they read.

Workers take tasks when they are free. A task may be taken several times; the first result is committed as a whole, its
arrays and its gradients, and every later one is dropped. What a worker gave up, or was lost with, is done again at
once; what two gave up is left to a local worker; what that one gives up too ends the run.
"""

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from siafu.workers.pace import Pace
from siafu.workers.task import Arrays, Key, Result, Task

Priority = tuple[int, ...]

REMOTE_FAILURES = 2  # of a task, until it is left to a local worker


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


@dataclass(frozen=True, eq=False)
class Failed:
    """A task that could not be done, here neither: the run must end.

    Attributes:
        task: what was asked.
        reasons: who gave it up, and why, in order.
    """

    task: Task
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        key, given_up = self.task.key, "; then ".join(self.reasons)
        return (
            f"a task of epoch {key.epoch} (stage {key.stage}, {key.direction.name.lower()}, "
            f"interval {key.interval}) was given up by {given_up}"
        )


@dataclass(frozen=True)
class Counts:
    """What became of the tasks so far.

    Attributes:
        put: tasks that were to be done.
        committed: those that were.
        relaunched: how often one was done again because a worker gave it up or was lost.
        hedged: second copies of tasks that took long.
        dropped: results that came after another of the same task.
    """

    put: int = 0
    committed: int = 0
    relaunched: int = 0
    hedged: int = 0
    dropped: int = 0


@dataclass(eq=False, slots=True)
class _Entry:
    """A task that is not committed yet."""

    task: Task
    priority: Priority
    began_s: dict[str, float] = field(default_factory=dict)  # by who runs it now
    reasons: list[str] = field(default_factory=list)
    waits: bool = True
    local: bool = False


@dataclass(eq=False, slots=True)
class _Taker:
    """Someone who waits for a task; ``wake`` is released when there is one, or none ever, or to look again."""

    worker: str
    wake: threading.Lock
    task: Task | None = None
    served: bool = False


class Tasks:
    """What is to be done, for workers to take. Safe to use from many threads.

    ``deliver`` is told of each task once, in the thread that ended it: that it was committed, or that it failed.
    Somebody has to take with ``local=True``, or what two workers gave up waits for ever.
    With ``hedging``, a worker that has nothing to do takes a copy of a task that runs overly long.
    """

    def __init__(self, deliver: Callable[[Done | Failed], None], *, hedging: bool = True) -> None:
        self._deliver = deliver
        self._hedging = hedging
        self._lock = threading.Lock()
        self._waiting: list[tuple[Priority, Key]] = []
        self._waiting_local: list[tuple[Priority, Key]] = []
        self._entries: dict[Key, _Entry] = {}
        self._held: dict[str, set[Key]] = {}  # what each worker has not answered yet, committed or not
        self._idle: OrderedDict[_Taker, None] = OrderedDict()  # takers that hold nothing
        self._busy: OrderedDict[str, _Taker] = OrderedDict()  # takers that hold something, by worker
        self._local: OrderedDict[_Taker, None] = OrderedDict()
        self._gone: set[str] = set()
        self._pace = Pace()
        self._watcher: tuple[float, _Taker] | None = None  # who looks for overdue tasks next, and when
        self._put = self._committed = self._relaunched = self._dropped = 0
        self._weights: dict[int, Arrays] = {}
        self._closed = False

    def publish(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Make a version of all weights known; they must not change any more."""
        with self._lock:
            self._weights[version] = weights

    def retire(self, version: int) -> None:
        """Forget a version that no task will read; late copies of its tasks are not run any more."""
        with self._lock:
            self._weights.pop(version, None)

    def weights(self, version: int) -> Arrays:
        """A version of all weights, by their names in the model; KeyError where it was retired."""
        with self._lock:
            return self._weights[version]

    @property
    def counts(self) -> Counts:
        """What became of the tasks so far."""
        with self._lock:
            return Counts(
                self._put, self._committed, self._relaunched, hedged=self._pace.hedged, dropped=self._dropped
            )

    @property
    def backlog(self) -> int:
        """How many tasks wait for a worker."""
        with self._lock:
            return len(self._waiting) + len(self._waiting_local)

    def put(self, task: Task, priority: Priority) -> None:
        """Have a task done; those of a lower priority value come first."""
        with self._lock:
            assert task.key not in self._entries, f"{task.key} is put twice"
            self._entries[task.key] = _Entry(task, priority)
            self._put += 1
            heapq.heappush(self._waiting, (priority, task.key))
            self._hand_out()

    def take(self, worker: str, *, local: bool = False, wait_s: float | None = None) -> Task | None:
        """The next task for a worker, waited for; None where none came in time, or there will be none any more.

        A ``local`` taker gets what two others gave up, and nothing else. One name takes in one thread at a time.
        """
        until_s = None if wait_s is None else time.monotonic() + wait_s
        with self._lock:
            task = self._next(worker, local=local)
            if task is not None or self._closed or worker in self._gone:
                return task
            taker = self._enlist(worker, local=local)
            wake_s = self._watch(taker, until_s)
        while True:
            taker.wake.acquire(timeout=-1 if wake_s is None else max(0.0, wake_s - time.monotonic()))
            with self._lock:
                wake_s = self._look(taker, until_s)
                if taker.served:
                    return taker.task

    def commit(self, key: Key, worker: str, result: Result) -> bool:
        """A worker has a result; returns whether it counts, which the first does."""
        now_s = time.monotonic()
        with self._lock:
            self._lay_down(key, worker)
            entry = self._entries.pop(key, None)
            if entry is None:
                self._dropped += 1
                return False
            self._committed += 1
            began_s = entry.began_s.get(worker, now_s)
            self._pace.ended(key)
            if worker in entry.began_s:
                self._pace.took(key, now_s - began_s)
            self._rouse()
        self._deliver(Done(entry.task, result, worker, began_s, now_s))
        return True

    def fail(self, key: Key, worker: str, reason: str) -> None:
        """A worker will give no result: have the task done again, at once."""
        with self._lock:
            failed = self._give_up(key, worker, reason)
        if failed is not None:
            self._deliver(failed)

    def release(self, key: Key, worker: str) -> None:
        """A worker did not begin a task: it waits again, as if it had not been taken."""
        with self._lock:
            self._lay_down(key, worker)
            entry = self._entries.get(key)
            if entry is not None and entry.began_s.pop(worker, None) is not None and not entry.began_s:
                self._queue_again(entry)

    def dismiss(self, worker: str) -> None:
        """Give a worker nothing any more; what it holds it may still commit."""
        with self._lock:
            self._gone.add(worker)
            for takers in (list(self._idle), list(self._local), list(self._busy.values())):
                for taker in takers:
                    if taker.worker == worker:
                        self._serve(taker, None)

    def lose(self, worker: str, reason: str | None) -> None:
        """A worker is gone: all that it held fails, or waits again where it left as it should, for no reason."""
        self.dismiss(worker)
        with self._lock:
            keys = sorted(self._held.get(worker, ()))
        for key in keys:
            if reason is None:
                self.release(key, worker)
            else:
                self.fail(key, worker, reason)

    def close(self) -> None:
        """There will be no more tasks: who waits for one is told."""
        with self._lock:
            self._closed = True
            for taker in [*self._idle, *self._busy.values(), *self._local]:
                self._serve(taker, None)

    # What follows is called with the lock held.

    def _next(self, worker: str, *, local: bool) -> Task | None:
        """A task that waits, from now on this worker's."""
        if self._closed or worker in self._gone:
            return None
        queue = self._waiting_local if local else self._waiting
        while queue:
            _, key = heapq.heappop(queue)
            entry = self._entries.get(key)
            if entry is not None and entry.waits and entry.local == local:
                entry.waits = False
                return self._pick_up(entry, worker)
        return None

    def _pick_up(self, entry: _Entry, worker: str) -> Task:
        now_s, key = time.monotonic(), entry.task.key
        if not entry.began_s:
            self._pace.began(key, now_s)
        entry.began_s[worker] = now_s
        self._held.setdefault(worker, set()).add(key)
        self._rouse()
        return entry.task

    def _lay_down(self, key: Key, worker: str) -> None:
        held = self._held.get(worker)
        if held is None:
            return
        held.discard(key)
        if held:
            return
        del self._held[worker]
        taker = self._busy.pop(worker, None)
        if taker is not None:
            self._idle[taker] = None
            self._rouse()

    def _give_up(self, key: Key, worker: str, reason: str) -> Failed | None:
        self._lay_down(key, worker)
        entry = self._entries.get(key)
        if entry is None or entry.began_s.pop(worker, None) is None:
            return None
        entry.reasons.append(f"{worker}: {reason}")
        if entry.began_s:
            return None
        if entry.local:
            del self._entries[key]
            self._pace.ended(key)
            return Failed(entry.task, tuple(entry.reasons))
        entry.local = len(entry.reasons) >= REMOTE_FAILURES
        self._relaunched += 1
        self._queue_again(entry)
        return None

    def _queue_again(self, entry: _Entry) -> None:
        entry.waits = True
        self._pace.ended(entry.task.key)
        heapq.heappush(
            self._waiting_local if entry.local else self._waiting, (entry.priority, entry.task.key)
        )
        self._hand_out()

    def _hand_out(self) -> None:
        """Give what waits to who waits: first to those that hold nothing."""
        while self._waiting and (self._idle or self._busy):
            self._hand_to(next(iter(self._idle or self._busy.values())), local=False)
        while self._waiting_local and self._local:
            self._hand_to(next(iter(self._local)), local=True)

    def _hand_to(self, taker: _Taker, *, local: bool) -> None:
        task = self._next(taker.worker, local=local)
        if task is not None:
            self._serve(taker, task)

    def _enlist(self, worker: str, *, local: bool) -> _Taker:
        taker = _Taker(worker, threading.Lock())
        taker.wake.acquire()
        if local:
            self._local[taker] = None
        elif worker in self._held:
            self._busy[worker] = taker
        else:
            self._idle[taker] = None
        return taker

    def _serve(self, taker: _Taker, task: Task | None) -> None:
        """End someone's wait."""
        self._idle.pop(taker, None)
        self._local.pop(taker, None)
        if self._busy.get(taker.worker) is taker:
            del self._busy[taker.worker]
        taker.task, taker.served = task, True
        self._poke(taker)

    def _poke(self, taker: _Taker) -> None:
        if taker.wake.locked():
            taker.wake.release()

    def _look(self, taker: _Taker, until_s: float | None) -> float | None:
        """A taker woke: it was served, or looks for an overdue task; returns when it wakes again."""
        if self._watcher is not None and self._watcher[1] is taker:
            self._watcher = None
        now_s = time.monotonic()
        if not taker.served and taker in self._idle:
            due = self._pace.next_due() if self._hedging else None
            if due is not None and due[0] <= now_s:
                self._serve(taker, self._hedge(due[1], taker.worker))
        if not taker.served and until_s is not None and now_s >= until_s:
            self._serve(taker, None)
        if taker.served:
            self._rouse()
            return None
        return self._watch(taker, until_s)

    def _hedge(self, key: Key, worker: str) -> Task:
        self._pace.ended(key)  # no third copy
        self._pace.hedged += 1
        return self._pick_up(self._entries[key], worker)

    def _watch(self, taker: _Taker, until_s: float | None) -> float | None:
        """When a taker is to wake: one of those that hold nothing does when the next task becomes overdue."""
        due = self._pace.next_due() if self._hedging and taker in self._idle else None
        if due is None or (self._watcher is not None and self._watcher[0] <= due[0]):
            return until_s
        self._watcher = (due[0], taker)
        return due[0] if until_s is None else min(due[0], until_s)

    def _rouse(self) -> None:
        """Have somebody watch if nobody does early enough."""
        if not self._idle or not self._hedging:
            return
        due = self._pace.next_due()
        if due is not None and (self._watcher is None or self._watcher[0] > due[0]):
            self._poke(next(iter(self._idle)))
