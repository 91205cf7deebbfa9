"""Waiting tasks: the most urgent comes first, and a worker gets intervals that it had before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.workers.affinity_queue import AffinityQueue
from siafu.workers.task import Direction, Key


def key_at(interval: int, *, epoch: int = 0) -> Key:
    return Key(epoch, 0, Direction.FORWARD, interval)


def filled(intervals: list[int], *, epoch: int = 0, into: AffinityQueue | None = None) -> AffinityQueue:
    waiting = AffinityQueue() if into is None else into
    for interval in intervals:
        waiting.put(key_at(interval, epoch=epoch), (epoch, interval))
    return waiting


def test_a_new_worker_gets_the_most_urgent_task() -> None:
    waiting = filled([2, 0, 1])
    assert [waiting.take("a") for _ in range(4)] == [key_at(0), key_at(1), key_at(2), None]


def test_a_worker_prefers_intervals_that_it_had_before() -> None:
    waiting = filled([0, 1, 2])
    assert [waiting.take(worker) for worker in "aba"] == [key_at(0), key_at(1), key_at(2)]
    filled([0, 1, 2], epoch=1, into=waiting)
    assert [waiting.take(worker) for worker in "baa"] == [key_at(i, epoch=1) for i in (1, 0, 2)]


def test_a_more_urgent_task_comes_before_a_preferred_one() -> None:
    waiting = filled([0, 1])
    assert [waiting.take(worker) for worker in "ab"] == [key_at(0), key_at(1)]
    filled([1], epoch=2, into=waiting)
    filled([0], epoch=1, into=waiting)
    assert waiting.take("b") == key_at(0, epoch=1)
    assert waiting.take("b") == key_at(1, epoch=2)


def test_the_preferred_workers_are_the_last_that_had_the_interval() -> None:
    waiting = filled([0])
    assert waiting.preferred_workers() == []
    waiting.take("a")
    assert waiting.preferred_workers() == []  # nothing waits
    for epoch, worker in enumerate("abcdeb", 1):
        filled([0], epoch=epoch, into=waiting)
        waiting.take(worker)
    filled([0, 1], epoch=7, into=waiting)
    assert waiting.preferred_workers() == [*"bcde"]
    waiting.forget("b")
    assert waiting.preferred_workers() == [*"cde"]
    assert waiting.take("a") == key_at(0, epoch=7)
    assert waiting.preferred_workers() == []


def test_a_discarded_task_is_not_taken() -> None:
    waiting = filled([0, 1])
    waiting.discard(key_at(0))
    waiting.discard(key_at(7))
    assert len(waiting) == 1
    assert waiting.take("a") == key_at(1)
    assert waiting.take("a") is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4)), max_size=40))
@settings(deadline=None)
def test_each_task_is_taken_once(moves: list[tuple[str, int]]) -> None:
    waiting, put, taken = AffinityQueue(), set(), []
    for number, (worker, interval) in enumerate(moves):
        match number % 4:
            case 0 | 1:
                put.add(key_at(interval, epoch=number))
                filled([interval], epoch=number, into=waiting)
            case 2:
                taken.append(waiting.take(worker))
            case 3:
                waiting.forget(worker)
    assert len(waiting) == len(put) - len(taken)
    while len(waiting):
        taken.append(waiting.take("c"))
    assert None not in taken
    assert len(taken) == len(put)
    assert set(taken) == put
