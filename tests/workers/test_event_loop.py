"""A loop does what it is asked, when it is time, and when a connection is ready."""

import os
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from selectors import EVENT_READ

import pytest
from known_tasks import LONG_S

from siafu.workers.event_loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("loop")
    yield loop
    loop.close()
    loop.close()  # once more does no harm


def settle(loop: Loop) -> None:
    """Wait until it has done all that it was asked so far."""
    done = threading.Event()
    loop.ask(done.set)
    assert done.wait(LONG_S)


def test_what_many_threads_ask_is_done_once_each_in_one_thread(loop: Loop) -> None:
    found: SimpleQueue[tuple[int, int]] = SimpleQueue()

    def ask(number: int) -> None:
        for _ in range(500):
            loop.ask(lambda: found.put((number, threading.get_ident())))

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for asker in askers:
        asker.start()
    done = [found.get(timeout=LONG_S) for _ in range(2000)]
    for asker in askers:
        asker.join()
    assert sorted(number for number, _ in done) == sorted(500 * [0, 1, 2, 3])
    assert len({thread for _, thread in done}) == 1
    assert found.empty()


def test_times_are_kept_in_their_order(loop: Loop) -> None:
    found: SimpleQueue[tuple[str, float]] = SimpleQueue()
    now_s = time.monotonic()

    def note(what: str) -> None:
        found.put((what, time.monotonic()))

    def begin() -> None:
        loop.at(now_s + 0.1, lambda: note("late"))
        loop.at(now_s + 0.05, lambda: note("early"))

    loop.ask(begin)
    (first, first_s), (second, second_s) = found.get(timeout=LONG_S), found.get(timeout=LONG_S)
    assert (first, second) == ("early", "late")
    assert first_s >= now_s + 0.05
    assert second_s >= now_s + 0.1


def test_a_connection_is_waited_for_until_told_otherwise(loop: Loop) -> None:
    reads, writes = os.pipe()
    found: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        found.put(os.read(reads, 100))

    loop.ask(lambda: loop.wait_for(reads, EVENT_READ, read))
    os.write(writes, b"first")
    assert found.get(timeout=LONG_S) == b"first"
    os.write(writes, b"second")
    assert found.get(timeout=LONG_S) == b"second"
    loop.ask(lambda: loop.wait_for(reads, 0, read))
    settle(loop)
    os.write(writes, b"third")
    settle(loop)
    assert found.empty()
    assert os.read(reads, 100) == b"third"
    os.close(reads)
    os.close(writes)
