"""The contract of TaskQueue: order, commits, repeated tasks, hedging, and failures that end a run."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stub_tasks import LONG_S, compute, task_at, until, weights_at

from siafu.workers import task_queue as queue_module
from siafu.workers.local_worker import run_tasks, start_fallback_thread
from siafu.workers.task import Arrays, Key, Result, Task
from siafu.workers.task_outcome import CompletedTask, FailedTask, TaskCounts
from siafu.workers.task_queue import TaskQueue

NOTHING = Result({})


class Clock:
    """Replaces the module ``time`` of the queue; the test advances it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(queue_module, "time", clock)
    return clock


@contextmanager
def waiting_for_task(
    tasks: TaskQueue, worker: str, *, fallback: bool = False
) -> Iterator[Future[Task | None]]:
    """A worker that waits for a task, in a thread of its own; the queue is closed at the end."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(tasks.take, worker, fallback=fallback)
        consumers = tasks._fallback if fallback else tasks._idle
        until(lambda: bool(consumers) or future.done())
        try:
            yield future
        finally:
            tasks.close()


def begun(outcomes: list[CompletedTask | FailedTask] | None = None, *, hedging: bool = True) -> TaskQueue:
    return TaskQueue((outcomes if outcomes is not None else []).append, hedging=hedging)


def do_many(tasks: TaskQueue, clock: Clock, number: int, *, seconds: float = 1.0, epoch: int = 0) -> None:
    """Run a number of tasks that take the same time."""
    for interval in range(number):
        task = task_at(interval, epoch=epoch)
        tasks.put(task, (0,))
        assert tasks.take("quick") is task
        clock.now_s += seconds
        assert tasks.commit(task.key, "quick", NOTHING)


def test_the_task_of_the_lowest_priority_value_is_taken_first() -> None:
    tasks = begun()
    for interval in (2, 0, 1):
        tasks.put(task_at(interval), (interval,))
    taken = [tasks.take("a") for _ in range(3)]
    assert [task.key.interval for task in taken if task] == [0, 1, 2]
    assert tasks.take("a", wait_s=0) is None


def test_the_first_result_is_committed_and_a_later_one_is_dropped() -> None:
    outcomes: list[CompletedTask | FailedTask] = []
    tasks = begun(outcomes)
    tasks.put(task_at(0), (0,))
    task = tasks.take("a")
    assert task is not None
    first, second = Result({"z": np.zeros(1)}), Result({"z": np.ones(1)})
    assert tasks.commit(task.key, "a", first)
    assert not tasks.commit(task.key, "b", second)
    (done,) = outcomes
    assert isinstance(done, CompletedTask)
    assert (done.task, done.result, done.worker) == (task, first, "a")
    assert done.began_s <= done.ended_s
    assert tasks.counts == TaskCounts(put=1, committed=1, dropped=1)


def test_a_task_that_was_given_up_is_started_again_at_once() -> None:
    tasks = begun()
    tasks.put(task_at(0), (0,))
    tasks.put(task_at(1), (1,))
    task = tasks.take("a")
    assert task is not None
    tasks.fail(task.key, "a", "it broke")
    assert tasks.take("b") is task  # before the other one
    assert tasks.counts.relaunched == 1


def test_tasks_of_a_lost_worker_are_started_again_and_it_gets_no_more() -> None:
    tasks = begun()
    for interval in range(3):
        tasks.put(task_at(interval), (interval,))
    held = [tasks.take("a"), tasks.take("a")]
    tasks.lose("a", "it was silent")
    assert tasks.take("a") is None
    assert [tasks.take("b"), tasks.take("b")] == held
    assert tasks.counts.relaunched == 2


def test_a_result_that_comes_after_its_worker_was_lost_is_still_committed() -> None:
    outcomes: list[CompletedTask | FailedTask] = []
    tasks = begun(outcomes)
    tasks.put(task_at(0), (0,))
    task = tasks.take("a")
    assert task is not None
    tasks.lose("a", "it was silent")
    assert tasks.commit(task.key, "a", NOTHING)
    assert tasks.take("b", wait_s=0) is None
    assert len(outcomes) == 1


def test_a_task_that_was_not_begun_waits_again_and_this_is_no_failure() -> None:
    outcomes: list[CompletedTask | FailedTask] = []
    tasks = begun(outcomes)
    tasks.put(task_at(0), (0,))
    for _ in range(5):
        task = tasks.take("a")
        assert task is not None
        tasks.release(task.key, "a")
    tasks.take("b")
    tasks.lose("b", None)
    assert tasks.take("a") is not None
    assert tasks.counts == TaskCounts(put=1)
    assert not outcomes


def test_after_two_failures_a_task_is_for_fallback_workers_alone() -> None:
    tasks = begun()
    tasks.put(task_at(0), (0,))
    tasks.put(task_at(1), (1,))
    assert tasks.take("local", fallback=True, wait_s=0) is None
    for worker in ("a", "b"):
        task = tasks.take(worker)
        assert task is not None
        assert task.key.interval == 0
        tasks.fail(task.key, worker, "it broke")
    other = tasks.take("c", wait_s=0)
    assert other is not None
    assert other.key.interval == 1
    assert tasks.take("local", fallback=True) is task
    assert tasks.commit(task.key, "local", NOTHING)


def test_a_waiting_fallback_worker_gets_a_task_that_two_others_gave_up() -> None:
    tasks = begun()
    with waiting_for_task(tasks, "local", fallback=True) as future:
        tasks.put(task_at(0), (0,))
        for worker in ("a", "b"):
            task = tasks.take(worker)
            assert task is not None
            tasks.fail(task.key, worker, "it broke")
        assert future.result(LONG_S) is task


def test_a_task_that_fails_here_too_is_delivered_as_an_error() -> None:
    outcomes: list[CompletedTask | FailedTask] = []
    tasks = begun(outcomes)
    tasks.put(task_at(-1), (0,))
    tasks.publish(0, weights_at(0))

    def refuse(task: Task, _: Arrays) -> Result:
        raise ValueError("shapes (5,4) and (3,3) not aligned")

    for worker in ("a", "b"):
        task = tasks.take(worker)
        assert task is not None
        tasks.fail(task.key, worker, "its process was killed by signal 9")
    ended = threading.Event()
    tasks._deliver = lambda outcome: (outcomes.append(outcome), ended.set())[0]
    local = start_fallback_thread(tasks, refuse)
    assert ended.wait(LONG_S)
    tasks.close()
    local.join(LONG_S)
    (failed,) = outcomes
    assert isinstance(failed, FailedTask)
    assert str(failed) == (
        "a task of epoch 0 (stage 0, forward, interval -1) was given up by a: its process was killed by signal 9; "
        "then b: its process was killed by signal 9; then local: ValueError: shapes (5,4) and (3,3) not aligned"
    )
    assert tasks.take("a") is None


def test_threads_share_the_tasks_and_each_is_committed_once() -> None:
    outcomes: list[CompletedTask | FailedTask] = []
    ended = threading.Semaphore(0)

    def deliver(outcome: CompletedTask | FailedTask) -> None:
        outcomes.append(outcome)
        ended.release()

    tasks = TaskQueue(deliver, hedging=False)
    tasks.publish(0, {"layers.0.weight": weights_at(0)["layers.0.weight"]})
    workers = [threading.Thread(target=run_tasks, args=(tasks, f"w{n}", compute)) for n in range(4)]
    for worker in workers:
        worker.start()
    for interval in range(200):
        tasks.put(task_at(interval), (interval,))
    for _ in range(200):
        assert ended.acquire(timeout=LONG_S)
    tasks.close()
    for worker in workers:
        worker.join(LONG_S)
        assert not worker.is_alive()
    keys = [outcome.task.key for outcome in outcomes]
    assert sorted(keys) == sorted(set(keys))
    assert len(keys) == 200


def test_weights_are_there_until_they_are_retired() -> None:
    tasks, weights = begun(), weights_at(0)
    tasks.publish(0, weights)
    assert tasks.weights(0) is weights
    tasks.retire(0)
    with pytest.raises(KeyError):
        tasks.weights(0)


def test_a_waiting_worker_wakes_when_the_queue_is_closed_or_it_is_dismissed() -> None:
    tasks = begun()
    with waiting_for_task(tasks, "a") as future:
        tasks.dismiss("a")
        assert future.result(LONG_S) is None
    tasks = begun()
    with waiting_for_task(tasks, "a") as future:
        tasks.close()
        assert future.result(LONG_S) is None


def test_an_idle_worker_gets_a_task_before_a_busy_one() -> None:
    tasks = begun()
    tasks.put(task_at(0), (0,))
    tasks.take("busy")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(tasks.take, "busy")
        until(lambda: "busy" in tasks._busy)
        with waiting_for_task(tasks, "idle") as future:
            task = task_at(1)
            tasks.put(task, (0,))
            assert future.result(LONG_S) is task
        assert second.result(LONG_S) is None


def test_nothing_is_kept_of_a_task_that_was_committed(clock: Clock) -> None:
    tasks = begun()
    do_many(tasks, clock, 50)
    assert not tasks._entries
    assert not tasks._held
    assert not tasks._queue
    assert not any(kind.running for kind in tasks._stragglers._kinds.values())


# Hedging: a second copy of what takes long.


def late_task(tasks: TaskQueue, clock: Clock, *, seen: int = 40) -> Task:
    """Return a task that a slow worker took, after others that took a second each."""
    do_many(tasks, clock, seen)
    task = task_at(99, epoch=1)
    tasks.put(task, (0,))
    assert tasks.take("slow") is task
    return task


def test_an_idle_worker_takes_a_copy_of_a_task_that_runs_overly_long(clock: Clock) -> None:
    tasks = begun()
    task = late_task(tasks, clock)
    clock.now_s += 1.9
    assert tasks.take("idle", wait_s=0) is None  # less than twice the median
    clock.now_s += 0.2
    assert tasks.take("idle", wait_s=0) is task
    assert tasks.counts.hedged == 1
    clock.now_s += 100
    assert tasks.take("third", wait_s=0) is None  # no third copy
    assert tasks.commit(task.key, "idle", NOTHING)
    assert not tasks.commit(task.key, "slow", NOTHING)
    assert tasks.counts.dropped == 1


def test_a_worker_that_waits_wakes_when_a_task_becomes_overdue() -> None:
    tasks = begun()
    for interval in range(40):
        task = task_at(interval)
        tasks.put(task, (0,))
        tasks.take("quick")
        tasks.commit(task.key, "quick", NOTHING)
    with waiting_for_task(tasks, "idle") as future, waiting_for_task(tasks, "idle too") as other:
        tasks.put(task_at(99), (0,))
        done, left = (future, other) if future in _done_first(future, other) else (other, future)
        task = done.result(LONG_S)
        assert task is not None  # the one that waited first has the task itself
        began_s = time.perf_counter()
        assert left.result(LONG_S) is task
        assert time.perf_counter() - began_s < 1.0  # 5 ms is the least
    assert tasks.counts.hedged == 1


def _done_first(*futures: Future[Task | None]) -> set[Future[Task | None]]:
    from concurrent.futures import FIRST_COMPLETED, wait

    return wait(futures, LONG_S, FIRST_COMPLETED)[0]


def test_nothing_is_hedged_before_enough_tasks_were_seen(clock: Clock) -> None:
    tasks = begun()
    late_task(tasks, clock, seen=19)
    clock.now_s += 1000
    assert tasks.take("idle", wait_s=0) is None


def test_nothing_is_hedged_if_hedging_is_off(clock: Clock) -> None:
    tasks = begun(hedging=False)
    late_task(tasks, clock)
    clock.now_s += 1000
    assert tasks.take("idle", wait_s=0) is None


def test_a_worker_that_holds_a_task_takes_no_copy_of_another(clock: Clock) -> None:
    tasks = begun()
    late_task(tasks, clock)
    tasks.put(task_at(98, epoch=1), (0,))
    assert tasks.take("busy") is not None
    clock.now_s += 100
    assert tasks.take("busy", wait_s=0) is None


def test_copies_are_limited_to_a_twentieth_of_the_tasks(clock: Clock) -> None:
    tasks = begun()
    late_task(tasks, clock)
    for interval in range(5):
        tasks.put(task_at(interval, epoch=2), (0,))
        assert tasks.take(f"slow{interval}") is not None
    clock.now_s += 100
    names = (f"idle{number}" for number in count())
    copies = [tasks.take(next(names), wait_s=0) for _ in range(6)]
    assert sum(copy is not None for copy in copies) == 2  # of 40


def test_a_copy_that_fails_leaves_the_other_one_running(clock: Clock) -> None:
    tasks = begun()
    task = late_task(tasks, clock)
    clock.now_s += 100
    assert tasks.take("idle", wait_s=0) is task
    tasks.fail(task.key, "idle", "it broke")
    assert tasks.counts.relaunched == 0
    assert tasks.commit(task.key, "slow", NOTHING)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_workers_do_each_task_ends_once(data: st.DataObject) -> None:
    outcomes: list[CompletedTask | FailedTask] = []
    tasks = begun(outcomes)
    total = data.draw(st.integers(1, 6), "tasks")
    for interval in range(total):
        tasks.put(task_at(interval), (interval % 2,))
    held: list[tuple[str, Key]] = []
    names = (f"w{number}" for number in count())
    while len(outcomes) < total:
        name = next(names)
        fallback = data.draw(st.booleans(), "fallback")
        task = tasks.take(name, fallback=fallback, wait_s=0) or tasks.take(
            name, fallback=not fallback, wait_s=0
        )
        if task is not None:
            held.append((name, task.key))
        if not held:
            continue
        worker, key = held.pop(data.draw(st.integers(0, len(held) - 1), "whose"))
        act: Callable[[], object] = data.draw(
            st.sampled_from([
                lambda w=worker, k=key: tasks.commit(k, w, NOTHING),
                lambda w=worker, k=key: tasks.fail(k, w, "it broke"),
                lambda w=worker: tasks.lose(w, "it was silent"),
            ]),
            "what it does",
        )  # fmt: skip
        act()
    assert sorted(outcome.task.key.interval for outcome in outcomes) == list(range(total))
    assert not tasks._entries
    for outcome in outcomes:
        assert isinstance(outcome, CompletedTask) or len(outcome.reasons) == 3
