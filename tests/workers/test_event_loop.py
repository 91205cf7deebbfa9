"""An event loop runs calls, timers, and callbacks of descriptors that are ready."""

import os
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from selectors import EVENT_READ

import pytest
from stub_tasks import LONG_S

from siafu.workers.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop("loop")
    yield loop
    loop.close()
    loop.close()  # once more does no harm


def settle(loop: EventLoop) -> None:
    """Wait until the loop has run all calls so far."""
    done = threading.Event()
    loop.call_soon(done.set)
    assert done.wait(LONG_S)


def test_calls_of_many_threads_run_once_each_in_one_thread(loop: EventLoop) -> None:
    found: SimpleQueue[tuple[int, int]] = SimpleQueue()

    def ask(number: int) -> None:
        for _ in range(500):
            loop.call_soon(lambda: found.put((number, threading.get_ident())))

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for asker in askers:
        asker.start()
    done = [found.get(timeout=LONG_S) for _ in range(2000)]
    for asker in askers:
        asker.join()
    assert sorted(number for number, _ in done) == sorted(500 * [0, 1, 2, 3])
    assert len({thread for _, thread in done}) == 1
    assert found.empty()


def test_timers_run_in_their_order(loop: EventLoop) -> None:
    found: SimpleQueue[tuple[str, float]] = SimpleQueue()
    now_s = time.monotonic()

    def note(what: str) -> None:
        found.put((what, time.monotonic()))

    def begin() -> None:
        loop.call_at(now_s + 0.1, lambda: note("late"))
        loop.call_at(now_s + 0.05, lambda: note("early"))

    loop.call_soon(begin)
    (first, first_s), (second, second_s) = found.get(timeout=LONG_S), found.get(timeout=LONG_S)
    assert (first, second) == ("early", "late")
    assert first_s >= now_s + 0.05
    assert second_s >= now_s + 0.1


def test_a_descriptor_is_watched_until_it_is_removed(loop: EventLoop) -> None:
    reads, writes = os.pipe()
    found: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        found.put(os.read(reads, 100))

    loop.call_soon(lambda: loop.watch(reads, EVENT_READ, read))
    os.write(writes, b"first")
    assert found.get(timeout=LONG_S) == b"first"
    os.write(writes, b"second")
    assert found.get(timeout=LONG_S) == b"second"
    loop.call_soon(lambda: loop.watch(reads, 0, read))
    settle(loop)
    os.write(writes, b"third")
    settle(loop)
    assert found.empty()
    assert os.read(reads, 100) == b"third"
    os.close(reads)
    os.close(writes)
