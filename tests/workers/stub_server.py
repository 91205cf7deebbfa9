"""A graph server for tests: it puts tasks into the queue, and checks their outcomes."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stub_tasks import LONG_S, SETUP, compute, expected, task_at, weights_at

from siafu.workers.listener import WorkerListener
from siafu.workers.local_worker import start_fallback_thread
from siafu.workers.result_check import ResultChecker
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_outcome import CompletedTask, FailedTask
from siafu.workers.task_queue import TaskQueue


class Server:
    """A task queue and a listener; ``on_done`` is told of each task that was committed."""

    def __init__(
        self,
        on_done: Callable[[CompletedTask], None] = lambda _: None,
        *,
        hedging: bool = True,
        **of_listener: Any,
    ) -> None:
        self.outcomes: list[CompletedTask | FailedTask] = []
        self._on_done, self._ended = on_done, threading.Semaphore(0)
        self.tasks = TaskQueue(self._deliver, hedging=hedging)
        self.tasks.publish(0, weights_at(0))
        self.listener = WorkerListener(
            self.tasks, SETUP, **{"checker": ResultChecker(_compute), **of_listener}
        )
        self._fallback = start_fallback_thread(self.tasks, _compute)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        self.tasks.close()
        self._fallback.join(LONG_S)
        left = [thread.name for thread in threading.enumerate() if thread is self._fallback]
        assert not left

    def _deliver(self, outcome: CompletedTask | FailedTask) -> None:
        self.outcomes.append(outcome)
        if isinstance(outcome, CompletedTask):
            self._on_done(outcome)
        self._ended.release()

    def put(self, number: int, **particulars: Any) -> list[Task]:
        found = [task_at(interval, **particulars) for interval in range(number)]
        for task in found:
            self.tasks.put(task, (task.key.epoch, task.key.interval))
        return found

    def wait(self, number: int) -> list[CompletedTask | FailedTask]:
        """Wait for a number of outcomes, and return all so far."""
        for _ in range(number):
            assert self._ended.acquire(timeout=LONG_S), (
                self.tasks.counts,
                self.listener.refusals,
                self.listener.usage,
            )
        return self.outcomes


def _compute(task: Task, weights: Arrays) -> Result:
    return compute(task, {"layers.0.weight": weights["layers.0.weight"]})


def assert_right(outcomes: Sequence[CompletedTask | FailedTask], tasks: Sequence[Task]) -> None:
    """Check that each task was committed once, with the right result."""
    assert sorted(outcome.task.key for outcome in outcomes) == sorted(task.key for task in tasks)
    for outcome in outcomes:
        assert isinstance(outcome, CompletedTask), str(outcome)
        right = expected(outcome.task)
        np.testing.assert_array_equal(outcome.result.arrays["z"], right.arrays["z"])
        np.testing.assert_array_equal(outcome.result.grads["layers.0.weight"], right.grads["layers.0.weight"])
