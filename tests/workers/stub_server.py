"""A graph server of tests: it puts tasks, and checks what comes of them."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from known_tasks import LONG_S, SETUP, compute, expected, task_at, weights_at

from siafu.workers.listener import Pool
from siafu.workers.local_worker import start_local
from siafu.workers.result_check import Expected
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_queue import Done, Failed, Tasks


class Server:
    """Tasks and a pool; ``on_done`` is told of each task that was committed."""

    def __init__(
        self, on_done: Callable[[Done], None] = lambda _: None, *, hedging: bool = True, **of_pool: Any
    ) -> None:
        self.outcomes: list[Done | Failed] = []
        self._on_done, self._ended = on_done, threading.Semaphore(0)
        self.tasks = Tasks(self._deliver, hedging=hedging)
        self.tasks.publish(0, weights_at(0))
        self.pool = Pool(self.tasks, SETUP, **{"expected": Expected(_compute), **of_pool})
        self._local = start_local(self.tasks, _compute)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self.tasks.close()
        self._local.join(LONG_S)
        left = [thread.name for thread in threading.enumerate() if thread is self._local]
        assert not left

    def _deliver(self, outcome: Done | Failed) -> None:
        self.outcomes.append(outcome)
        if isinstance(outcome, Done):
            self._on_done(outcome)
        self._ended.release()

    def put(self, number: int, **particulars: Any) -> list[Task]:
        found = [task_at(interval, **particulars) for interval in range(number)]
        for task in found:
            self.tasks.put(task, (task.key.epoch, task.key.interval))
        return found

    def wait(self, number: int) -> list[Done | Failed]:
        """So many outcomes."""
        for _ in range(number):
            assert self._ended.acquire(timeout=LONG_S), (
                self.tasks.counts,
                self.pool.refused,
                self.pool.served,
            )
        return self.outcomes


def _compute(task: Task, weights: Arrays) -> Result:
    return compute(task, {"layers.0.weight": weights["layers.0.weight"]})


def assert_right(outcomes: Sequence[Done | Failed], tasks: Sequence[Task]) -> None:
    """Each task was committed once, with the result that it must have."""
    assert sorted(outcome.task.key for outcome in outcomes) == sorted(task.key for task in tasks)
    for outcome in outcomes:
        assert isinstance(outcome, Done), str(outcome)
        right = expected(outcome.task)
        np.testing.assert_array_equal(outcome.result.arrays["z"], right.arrays["z"])
        np.testing.assert_array_equal(outcome.result.grads["layers.0.weight"], right.grads["layers.0.weight"])
