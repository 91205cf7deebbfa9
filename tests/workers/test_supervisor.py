"""Leases that are kept alive: one that ended is followed by another, unless that would be in vain."""

import threading
import time
from collections.abc import Callable
from itertools import count

import pytest
from stub_tasks import LONG_S

from siafu.workers import supervisor as supervisor_module
from siafu.workers.lease import Lease
from siafu.workers.supervisor import LeaseEnd, LeaseError, LeaseSupervisor


class Place:
    """A platform whose workers run until the test ends, or end as it says."""

    def __init__(self, ends: Callable[[int], LeaseError | None] | None = None) -> None:
        self._ends = ends
        self._over = threading.Event()
        self._numbers = count()
        self.began = threading.Semaphore(0)

    def run_worker(self, lease: Lease) -> None:
        number = next(self._numbers)
        self.began.release()
        if self._ends is None:
            assert self._over.wait(LONG_S)
        elif (error := self._ends(number)) is not None:
            raise error

    def close(self) -> None:
        self._over.set()


class Listener:
    def __init__(self) -> None:
        self.ended: list[LeaseEnd] = []
        self._changed = threading.Condition()

    def __call__(self, ended: LeaseEnd) -> None:
        with self._changed:
            self.ended.append(ended)
            self._changed.notify_all()

    def wait(self, until: Callable[[list[LeaseEnd]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: until(self.ended), LONG_S), self.ended


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_BACKOFF_S", 0.001)


def new_lease() -> Lease:
    return Lease("run", "worker-1", "127.0.0.1", 1, "00", time.time() + 60)


def test_the_target_number_of_leases_is_alive() -> None:
    place = Place()
    with LeaseSupervisor(place) as supervisor:
        supervisor.set_target(new_lease, 3)
        supervisor.set_target(new_lease, 5)
        for _ in range(5):
            assert place.began.acquire(timeout=LONG_S)
        assert not place.began.acquire(timeout=0.02)
    assert not [thread for thread in threading.enumerate() if thread.name == "siafu-lease"]


def test_a_lease_that_ended_is_followed_by_another() -> None:
    listener = Listener()
    with LeaseSupervisor(Place(lambda _: None), on_end=listener) as supervisor:
        supervisor.set_target(new_lease, 2)
        listener.wait(lambda ended: len(ended) >= 10)
        assert supervisor.take_ended()
    assert {(ended.reason, ended.fatal) for ended in listener.ended} == {("", False)}


def test_a_failure_now_and_then_does_not_matter() -> None:
    listener = Listener()
    place = Place(lambda number: LeaseError("it died") if number % 3 else None)
    with LeaseSupervisor(place, on_end=listener) as supervisor:
        supervisor.set_target(new_lease, 1)
        listener.wait(lambda ended: len(ended) >= 30)
    assert not any(ended.fatal for ended in listener.ended)


def test_when_all_fail_no_more_are_tried_and_the_last_reason_is_told() -> None:
    listener = Listener()
    with LeaseSupervisor(Place(lambda _: LeaseError("it died")), on_end=listener) as supervisor:
        supervisor.set_target(new_lease, 2)
        listener.wait(lambda ended: any(each.fatal for each in ended))
        assert supervisor.target == 0
    assert listener.ended[-1].reason == "it died"
    assert len(listener.ended) <= supervisor_module.MAX_FAILURES + 1


def test_a_fatal_failure_ends_the_attempts_at_once() -> None:
    listener = Listener()
    place = Place(lambda _: LeaseError("there is no function of this name", fatal=True))
    with LeaseSupervisor(place, on_end=listener) as supervisor:
        supervisor.set_target(new_lease, 1)
        listener.wait(bool)
    assert listener.ended == [LeaseEnd("worker-1", "there is no function of this name", fatal=True)]


def test_throttling_lowers_the_target_to_one_at_least() -> None:
    listener = Listener()
    place = Place(lambda _: LeaseError("too many requests", throttled=True))
    with LeaseSupervisor(place, on_end=listener) as supervisor:
        supervisor.set_target(new_lease, 4)
        listener.wait(lambda ended: any("going on with 1" in each.reason for each in ended))
        assert supervisor.target == 1
        seen = len(listener.ended)
        listener.wait(lambda ended: len(ended) > seen + 3)
    assert not any(ended.fatal for ended in listener.ended)
