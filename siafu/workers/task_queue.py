"""The task queue of a graph server: tasks that wait, tasks under way, and the versions of the weights they read.

Workers take tasks when they are free. A task may be taken several times: its first result is committed as a whole,
arrays and gradients, and later results are dropped. A task of a worker that failed or was lost is started again at
once. After failures on two workers it is left to a fallback worker of this process; if it fails there too, the run
ends. The fallback worker also takes tasks whose result was wrong, or not finite though all inputs were.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from siafu.workers.affinity_queue import AffinityQueue, Priority
from siafu.workers.result_check import is_finite
from siafu.workers.stragglers import StragglerDetector
from siafu.workers.task import Arrays, Key, Result, Task
from siafu.workers.task_outcome import CompletedTask, FailedTask, TaskCounts

REMOTE_FAILURES = 2  # of a task, until it is left to a fallback worker


@dataclass(eq=False, slots=True)
class _Entry:
    """A task that is not committed yet."""

    task: Task
    priority: Priority
    fallback: bool = False  # left to a fallback worker
    began_s: dict[str, float] = field(default_factory=dict)  # when its present workers took it
    reasons: list[str] = field(default_factory=list)
    distrusted: bool = False  # a worker gave a wrong result
    suspects: set[str] = field(default_factory=set)  # workers whose result was not finite


class TaskConsumer(Protocol):
    """A consumer that waits for one task at a time. Both calls come from any thread, and may not call back."""

    worker: str

    def receive(self, task: Task | None) -> None:
        """Receive the task that was requested; None if there will be none any more."""

    def wake(self) -> None:
        """Call :meth:`TaskQueue.watch_overdue` soon."""


class _BlockingConsumer:
    """A consumer whose thread does nothing but wait."""

    __slots__ = ("received", "task", "wakeup", "worker")

    def __init__(self, worker: str) -> None:
        self.worker, self.wakeup = worker, threading.Lock()
        self.task: Task | None = None
        self.received = False
        self.wakeup.acquire()

    def receive(self, task: Task | None) -> None:
        self.task, self.received = task, True
        self.wake()

    def wake(self) -> None:
        if self.wakeup.locked():
            self.wakeup.release()


class TaskQueue:
    """The tasks of one graph server. Safe to use from many threads.

    ``deliver`` is called with the outcome of each task once, in the thread that ended it. A worker must take with
    ``fallback=True``, else tasks that two workers gave up wait for ever. With ``hedging``, an idle worker takes a copy
    of a task that is overdue.
    """

    def __init__(
        self, deliver: Callable[[CompletedTask | FailedTask], None], *, hedging: bool = True
    ) -> None:
        self._deliver = deliver
        self._hedging = hedging
        self._lock = threading.Lock()
        self._queue, self._fallback_queue = AffinityQueue(), AffinityQueue()
        self._entries: dict[Key, _Entry] = {}
        self._held: dict[str, set[Key]] = {}  # tasks that each worker has not answered yet, committed or not
        self._idle: OrderedDict[str, TaskConsumer] = OrderedDict()  # consumers that hold no task, by worker
        self._busy: OrderedDict[str, TaskConsumer] = OrderedDict()  # consumers that hold some
        self._fallback: OrderedDict[TaskConsumer, None] = OrderedDict()
        self._dismissed: set[str] = set()
        self._stragglers = StragglerDetector()
        self._watcher: tuple[float, TaskConsumer] | None = None  # when it looks for overdue tasks next
        self._failures: dict[str, list[str]] = {}  # the reasons of each worker's failures
        self._put = self._committed = self._relaunched = self._dropped = 0
        self._weights: dict[int, Arrays] = {}
        self._closed = False

    def publish(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Make a version of all weights available; they must not change any more."""
        with self._lock:
            self._weights[version] = weights

    def retire(self, version: int) -> None:
        """Forget a version that no task will read; late copies of its tasks are not run any more."""
        with self._lock:
            self._weights.pop(version, None)

    def weights(self, version: int) -> Arrays:
        """Return a version of all weights, by their names in the model; KeyError if it was retired."""
        with self._lock:
            return self._weights[version]

    @property
    def counts(self) -> TaskCounts:
        """The numbers of tasks so far."""
        with self._lock:
            return TaskCounts(
                self._put,
                self._committed,
                self._relaunched,
                hedged=self._stragglers.num_hedged,
                dropped=self._dropped,
            )

    @property
    def backlog(self) -> int:
        """The number of tasks that wait for a worker."""
        with self._lock:
            return len(self._queue) + len(self._fallback_queue)

    def put(self, task: Task, priority: Priority) -> None:
        """Add a task; lower priority values come first."""
        self.put_all([(task, priority)])

    def put_all(self, tasks: Iterable[tuple[Task, Priority]]) -> None:
        """Add several tasks, and wake consumers once for all of them."""
        with self._lock:
            for task, priority in tasks:
                key = task.key
                assert key not in self._entries, f"{key} is put twice"
                self._entries[key] = _Entry(task, priority)
                self._put += 1
                self._queue.put(key, priority)
            self._dispatch()

    def request(self, consumer: TaskConsumer, *, fallback: bool = False) -> Task | None:
        """Return a task for a consumer, or None; then it receives one later, and should call :meth:`watch_overdue` now.

        A ``fallback`` consumer gets the tasks that two workers gave up, and no others.
        """
        with self._lock:
            if self._closed or consumer.worker in self._dismissed:
                consumer.receive(None)
                return None
            task = self._pop(consumer.worker, fallback=fallback)
            if task is None:
                self._enlist(consumer, fallback=fallback)
            else:
                self._ensure_watcher()
            return task

    def watch_overdue(self, consumer: TaskConsumer) -> float | None:
        """Give a waiting consumer a copy of an overdue task, if there is one.

        Returns when the consumer is to call this again, or None.
        """
        with self._lock:
            return self._watch_overdue(consumer)

    def take(self, worker: str, *, fallback: bool = False, wait_s: float | None = None) -> Task | None:
        """Take a task, and wait for one if necessary; None after ``wait_s``, or if there will be none any more."""
        until_s = None if wait_s is None else time.monotonic() + wait_s
        consumer = _BlockingConsumer(worker)
        task = self.request(consumer, fallback=fallback)
        if task is not None:
            return task
        while not consumer.received:
            wake_s = self.watch_overdue(consumer)
            times = [each for each in (wake_s, until_s) if each is not None]
            left_s = min(times) - time.monotonic() if times else -1.0
            if until_s is not None and time.monotonic() >= until_s:
                self._cancel(consumer)
            elif not times or left_s > 0:
                consumer.wakeup.acquire(timeout=left_s)
        return consumer.task

    def commit(self, key: Key, worker: str, result: Result) -> bool:
        """Commit a worker's result; returns False if another result of the task was committed before."""
        now_s = time.monotonic()
        with self._lock:
            self._unassign(key, worker)
            entry = self._entries.pop(key, None)
            self._queue.discard(key)
            self._fallback_queue.discard(key)
            if entry is None:
                self._dropped += 1
                result.release()
                return False
            self._committed += 1
            for other in entry.suspects if entry.suspects and is_finite(result) else ():
                self._failures.setdefault(other, []).append(_not_finite(key))
            began_s = entry.began_s.get(worker, now_s)
            self._stragglers.stop(key)
            if worker in entry.began_s:
                self._stragglers.record(key, now_s - began_s)
            self._ensure_watcher()
        self._deliver(CompletedTask(entry.task, result, worker, began_s, now_s))
        return True

    def fail(self, key: Key, worker: str, reason: str, *, distrust: bool = False) -> None:
        """Record a worker's failure and start the task again at once; on a fallback worker with ``distrust``."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and worker in entry.began_s:
                self._failures.setdefault(worker, []).append(reason)
                entry.distrusted |= distrust
            failed = self._give_up(key, worker, reason)
        if failed is not None:
            self._deliver(failed)

    def suspect(self, key: Key, worker: str) -> None:
        """Have a fallback worker repeat a task whose result is not finite. If its result is, the worker has failed."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and worker in entry.began_s:
                entry.distrusted = True
                entry.suspects.add(worker)
            failed = self._give_up(key, worker, _not_finite(key))
        if failed is not None:
            self._deliver(failed)

    def num_failures(self, worker: str) -> int:
        """Return how often a worker has failed."""
        return len(self._failures.get(worker, ()))

    def last_failure(self, worker: str) -> str:
        """Return the reason of a worker's last failure."""
        with self._lock:
            return self._failures[worker][-1]

    def release(self, key: Key, worker: str) -> None:
        """Put a task back that a worker took but did not begin; this is no failure."""
        with self._lock:
            self._unassign(key, worker)
            entry = self._entries.get(key)
            if entry is not None and entry.began_s.pop(worker, None) is not None and not entry.began_s:
                self._requeue(entry)

    def dismiss(self, worker: str) -> None:
        """Give a worker no more tasks; results of tasks that it holds may still be committed."""
        with self._lock:
            self._dismissed.add(worker)
            self._queue.forget(worker)
            for consumer in [*self._idle.values(), *self._fallback, *self._busy.values()]:
                if consumer.worker == worker:
                    self._answer(consumer, None)

    def lose(self, worker: str, reason: str | None) -> None:
        """Remove a worker that left. Its tasks fail, or wait again without a failure if ``reason`` is None."""
        self.dismiss(worker)
        with self._lock:
            keys = sorted(self._held.get(worker, ()))
        for key in keys:
            if reason is None:
                self.release(key, worker)
            else:
                self.fail(key, worker, reason)

    def close(self) -> None:
        """Close the queue: consumers that wait receive None."""
        with self._lock:
            self._closed = True
            for consumer in [*self._idle.values(), *self._busy.values(), *self._fallback]:
                self._answer(consumer, None)

    def _cancel(self, consumer: TaskConsumer) -> None:
        """End the wait of a consumer, if it still waits."""
        with self._lock:
            waiting = (self._idle.get(consumer.worker), self._busy.get(consumer.worker))
            if consumer in self._fallback or consumer in waiting:
                self._answer(consumer, None)

    # The methods below are called with the lock held.

    def _pop(self, worker: str, *, fallback: bool) -> Task | None:
        """Take a task off the queue and assign it to a worker."""
        if self._closed or worker in self._dismissed:
            return None
        key = (self._fallback_queue if fallback else self._queue).take(worker)
        return None if key is None else self._assign(self._entries[key], worker)

    def _assign(self, entry: _Entry, worker: str) -> Task:
        now_s, key = time.monotonic(), entry.task.key
        if not entry.began_s:
            self._stragglers.start(key, now_s)
        entry.began_s[worker] = now_s
        self._held.setdefault(worker, set()).add(key)
        return entry.task

    def _unassign(self, key: Key, worker: str) -> None:
        held = self._held.get(worker)
        if held is None:
            return
        held.discard(key)
        if held:
            return
        del self._held[worker]
        consumer = self._busy.pop(worker, None)
        if consumer is not None:
            self._idle[worker] = consumer
            self._ensure_watcher()

    def _give_up(self, key: Key, worker: str, reason: str) -> FailedTask | None:
        self._unassign(key, worker)
        entry = self._entries.get(key)
        if entry is None or entry.began_s.pop(worker, None) is None:
            return None
        entry.reasons.append(f"{worker}: {reason}")
        if entry.began_s:
            return None
        if entry.fallback:
            del self._entries[key]
            self._stragglers.stop(key)
            return FailedTask(entry.task, tuple(entry.reasons))
        entry.fallback = entry.distrusted or len(entry.reasons) >= REMOTE_FAILURES
        self._relaunched += 1
        self._requeue(entry)
        return None

    def _requeue(self, entry: _Entry) -> None:
        self._stragglers.stop(entry.task.key)
        (self._fallback_queue if entry.fallback else self._queue).put(entry.task.key, entry.priority)
        self._dispatch()

    def _dispatch(self) -> None:
        """Give waiting tasks to waiting consumers: first to idle ones, of these to one that had the interval."""
        while self._queue and (self._idle or self._busy):
            consumers = self._idle or self._busy
            preferred = (consumers[name] for name in self._queue.preferred_workers() if name in consumers)
            self._dispatch_to(next(preferred, None) or next(iter(consumers.values())), fallback=False)
        while self._fallback_queue and self._fallback:
            self._dispatch_to(next(iter(self._fallback)), fallback=True)
        self._ensure_watcher()

    def _dispatch_to(self, consumer: TaskConsumer, *, fallback: bool) -> None:
        task = self._pop(consumer.worker, fallback=fallback)
        if task is not None:
            self._hand_over(consumer, task)

    def _enlist(self, consumer: TaskConsumer, *, fallback: bool) -> None:
        if fallback:
            self._fallback[consumer] = None
        elif consumer.worker in self._held:
            self._busy[consumer.worker] = consumer
        else:
            self._idle[consumer.worker] = consumer

    def _answer(self, consumer: TaskConsumer, task: Task | None) -> None:
        """End the wait of a consumer, and have another one watch in its place."""
        self._hand_over(consumer, task)
        self._ensure_watcher()

    def _hand_over(self, consumer: TaskConsumer, task: Task | None) -> None:
        self._fallback.pop(consumer, None)
        for consumers in (self._idle, self._busy):
            if consumers.get(consumer.worker) is consumer:
                del consumers[consumer.worker]
        if self._watcher is not None and self._watcher[1] is consumer:
            self._watcher = None
        consumer.receive(task)

    def _watch_overdue(self, consumer: TaskConsumer) -> float | None:
        """Hedge an overdue task; else make the consumer the watcher, unless another one watches early enough."""
        if self._watcher is not None and self._watcher[1] is consumer:
            self._watcher = None
        idle = self._idle.get(consumer.worker) is consumer
        due = self._stragglers.next_overdue() if self._hedging and idle else None
        if due is None:
            return None
        if due[0] <= time.monotonic():
            self._answer(consumer, self._hedge(due[1], consumer.worker))
            return None
        if self._watcher is None or self._watcher[0] > due[0]:
            self._watcher = (due[0], consumer)
        return self._watcher[0] if self._watcher[1] is consumer else None

    def _hedge(self, key: Key, worker: str) -> Task:
        self._stragglers.stop(key)  # no third copy
        self._stragglers.num_hedged += 1
        return self._assign(self._entries[key], worker)

    def _ensure_watcher(self) -> None:
        """Wake an idle consumer to watch for the next overdue task, if nobody watches early enough."""
        if not self._idle or not self._hedging:
            return
        due = self._stragglers.next_overdue()
        if due is not None and (self._watcher is None or self._watcher[0] > due[0]):
            next(iter(self._idle.values())).wake()


def _not_finite(key: Key) -> str:
    return f"a result of stage {key.stage} that is not finite"
