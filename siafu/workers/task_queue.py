"""The tasks of one graph server: those that wait, those under way, and the weights they read.

Workers take tasks when they are free. A task may be taken several times; the first result is committed as a whole, its
arrays and its gradients, and every later one is dropped. What a worker gave up, or was lost with, is done again at
once; what two gave up is left to a local worker; what that one gives up too ends the run. A local worker also does what
another one gave a wrong result for, or one that is not finite though all that it read was.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from siafu.workers.affinity_queue import Priority, Waiting
from siafu.workers.result_check import is_finite
from siafu.workers.stragglers import Pace
from siafu.workers.task import Arrays, Key, Result, Task

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
    local: bool = False  # it is left to a local worker
    distrusted: bool = False  # it will be
    doubted: set[str] = field(default_factory=set)  # workers whose result was not finite


class Taker(Protocol):
    """Someone who waits for a task, one at a time. Both calls come from any thread, and may not call back."""

    worker: str

    def serve(self, task: Task | None) -> None:
        """Here it is; None where there will be none any more."""

    def poke(self) -> None:
        """Call :meth:`Tasks.look` soon."""


class _Waiter:
    """A taker whose thread does nothing else."""

    __slots__ = ("served", "task", "wake", "worker")

    def __init__(self, worker: str) -> None:
        self.worker, self.wake = worker, threading.Lock()
        self.task: Task | None = None
        self.served = False
        self.wake.acquire()

    def serve(self, task: Task | None) -> None:
        self.task, self.served = task, True
        self.poke()

    def poke(self) -> None:
        if self.wake.locked():
            self.wake.release()


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
        self._waiting, self._waiting_local = Waiting(), Waiting()
        self._entries: dict[Key, _Entry] = {}
        self._held: dict[str, set[Key]] = {}  # what each worker has not answered yet, committed or not
        self._idle: OrderedDict[str, Taker] = OrderedDict()  # takers that hold nothing, by worker
        self._busy: OrderedDict[str, Taker] = OrderedDict()  # takers that hold something
        self._local: OrderedDict[Taker, None] = OrderedDict()
        self._gone: set[str] = set()
        self._pace = Pace()
        self._watcher: tuple[float, Taker] | None = None  # who looks for overdue tasks next, and when
        self._failures: dict[str, list[str]] = {}  # why a worker failed, each time
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
        self.put_all([(task, priority)])

    def put_all(self, tasks: Iterable[tuple[Task, Priority]]) -> None:
        """Have several tasks done: as :meth:`put` of each, but those who wait are woken once."""
        with self._lock:
            for task, priority in tasks:
                key = task.key
                assert key not in self._entries, f"{key} is put twice"
                self._entries[key] = _Entry(task, priority)
                self._put += 1
                self._waiting.put(key, priority)
            self._hand_out()

    def ask(self, taker: Taker, *, local: bool = False) -> Task | None:
        """A task for a taker, if there is one; else it is served later, and should :meth:`look` now.

        A ``local`` taker gets what two others gave up, and nothing else.
        """
        with self._lock:
            if self._closed or taker.worker in self._gone:
                taker.serve(None)
                return None
            task = self._next(taker.worker, local=local)
            if task is None:
                self._enlist(taker, local=local)
            else:
                self._rouse()
            return task

    def look(self, taker: Taker) -> float | None:
        """Serve a taker that waits an overdue task, if there is one; returns when it is to look again, if it is."""
        with self._lock:
            return self._look(taker)

    def take(self, worker: str, *, local: bool = False, wait_s: float | None = None) -> Task | None:
        """As :meth:`ask`, waited for; None also where none came in time."""
        until_s = None if wait_s is None else time.monotonic() + wait_s
        waiter = _Waiter(worker)
        task = self.ask(waiter, local=local)
        if task is not None:
            return task
        while not waiter.served:
            wake_s = self.look(waiter)
            times = [each for each in (wake_s, until_s) if each is not None]
            left_s = min(times) - time.monotonic() if times else -1.0
            if until_s is not None and time.monotonic() >= until_s:
                self._leave(waiter)
            elif not times or left_s > 0:
                waiter.wake.acquire(timeout=left_s)
        return waiter.task

    def commit(self, key: Key, worker: str, result: Result) -> bool:
        """A worker has a result; returns whether it counts, which the first does."""
        now_s = time.monotonic()
        with self._lock:
            self._lay_down(key, worker)
            entry = self._entries.pop(key, None)
            self._waiting.drop(key)
            self._waiting_local.drop(key)
            if entry is None:
                self._dropped += 1
                result.spent()
                return False
            self._committed += 1
            for other in entry.doubted if entry.doubted and is_finite(result) else ():
                self._failures.setdefault(other, []).append(_not_finite(key))
            began_s = entry.began_s.get(worker, now_s)
            self._pace.ended(key)
            if worker in entry.began_s:
                self._pace.took(key, now_s - began_s)
            self._rouse()
        self._deliver(Done(entry.task, result, worker, began_s, now_s))
        return True

    def fail(self, key: Key, worker: str, reason: str, *, distrust: bool = False) -> None:
        """A worker will give no result: have the task done again, at once; by a local worker, with ``distrust``."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and worker in entry.began_s:
                self._failures.setdefault(worker, []).append(reason)
                entry.distrusted |= distrust
            failed = self._give_up(key, worker, reason)
        if failed is not None:
            self._deliver(failed)

    def doubt(self, key: Key, worker: str) -> None:
        """A worker's result is not finite: have a local worker do the task. It failed where that one's is finite."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and worker in entry.began_s:
                entry.distrusted = True
                entry.doubted.add(worker)
            failed = self._give_up(key, worker, _not_finite(key))
        if failed is not None:
            self._deliver(failed)

    def failures(self, worker: str) -> int:
        """How often a worker has failed."""
        return len(self._failures.get(worker, ()))

    def failure(self, worker: str) -> str:
        """Why a worker failed last."""
        with self._lock:
            return self._failures[worker][-1]

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
            self._waiting.forget(worker)
            for taker in [*self._idle.values(), *self._local, *self._busy.values()]:
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
            for taker in [*self._idle.values(), *self._busy.values(), *self._local]:
                self._serve(taker, None)

    def _leave(self, taker: Taker) -> None:
        """A taker waits no more, if it still did."""
        with self._lock:
            if taker in self._local or taker in (self._idle.get(taker.worker), self._busy.get(taker.worker)):
                self._serve(taker, None)

    # What follows is called with the lock held.

    def _next(self, worker: str, *, local: bool) -> Task | None:
        """A task that waits, from now on this worker's."""
        if self._closed or worker in self._gone:
            return None
        key = (self._waiting_local if local else self._waiting).take(worker)
        return None if key is None else self._pick_up(self._entries[key], worker)

    def _pick_up(self, entry: _Entry, worker: str) -> Task:
        now_s, key = time.monotonic(), entry.task.key
        if not entry.began_s:
            self._pace.began(key, now_s)
        entry.began_s[worker] = now_s
        self._held.setdefault(worker, set()).add(key)
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
            self._idle[worker] = taker
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
        entry.local = entry.distrusted or len(entry.reasons) >= REMOTE_FAILURES
        self._relaunched += 1
        self._queue_again(entry)
        return None

    def _queue_again(self, entry: _Entry) -> None:
        self._pace.ended(entry.task.key)
        (self._waiting_local if entry.local else self._waiting).put(entry.task.key, entry.priority)
        self._hand_out()

    def _hand_out(self) -> None:
        """Give what waits to who waits: first to those that hold nothing, of these to who had its interval."""
        while self._waiting and (self._idle or self._busy):
            takers = self._idle or self._busy
            homes = (takers[home] for home in self._waiting.homes() if home in takers)
            self._hand_to(next(homes, None) or next(iter(takers.values())), local=False)
        while self._waiting_local and self._local:
            self._hand_to(next(iter(self._local)), local=True)
        self._rouse()

    def _hand_to(self, taker: Taker, *, local: bool) -> None:
        task = self._next(taker.worker, local=local)
        if task is not None:
            self._dispatch(taker, task)

    def _enlist(self, taker: Taker, *, local: bool) -> None:
        if local:
            self._local[taker] = None
        elif taker.worker in self._held:
            self._busy[taker.worker] = taker
        else:
            self._idle[taker.worker] = taker

    def _serve(self, taker: Taker, task: Task | None) -> None:
        """End someone's wait; another watches in its place."""
        self._dispatch(taker, task)
        self._rouse()

    def _dispatch(self, taker: Taker, task: Task | None) -> None:
        self._local.pop(taker, None)
        for takers in (self._idle, self._busy):
            if takers.get(taker.worker) is taker:
                del takers[taker.worker]
        if self._watcher is not None and self._watcher[1] is taker:
            self._watcher = None
        taker.serve(task)

    def _look(self, taker: Taker) -> float | None:
        """Whoever looks watches for the next overdue task, unless somebody does so already."""
        if self._watcher is not None and self._watcher[1] is taker:
            self._watcher = None
        idle = self._idle.get(taker.worker) is taker
        due = self._pace.next_due() if self._hedging and idle else None
        if due is None:
            return None
        if due[0] <= time.monotonic():
            self._serve(taker, self._hedge(due[1], taker.worker))
            return None
        if self._watcher is None or self._watcher[0] > due[0]:
            self._watcher = (due[0], taker)
        return self._watcher[0] if self._watcher[1] is taker else None

    def _hedge(self, key: Key, worker: str) -> Task:
        self._pace.ended(key)  # no third copy
        self._pace.hedged += 1
        return self._pick_up(self._entries[key], worker)

    def _rouse(self) -> None:
        """Have somebody watch if nobody does early enough."""
        if not self._idle or not self._hedging:
            return
        due = self._pace.next_due()
        if due is not None and (self._watcher is None or self._watcher[0] > due[0]):
            next(iter(self._idle.values())).poke()


def _not_finite(key: Key) -> str:
    return f"a result of stage {key.stage} that is not finite"
