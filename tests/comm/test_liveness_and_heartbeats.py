"""Errors for lost, stuck and deadlocked ranks, by a clock that the tests set."""

import time

import pytest

from siafu.comm.errors import CommError
from siafu.comm.liveness import Liveness
from siafu.wire.heartbeats import AwakeClock, Heartbeat, WaitTracker, work_s


class Hand:
    """A clock that the test sets."""

    time_s = 0.0

    def now(self) -> float:
        return self.time_s


class Ranks:
    """Three ranks that count as lost after 10 s; rank 0 waits."""

    def __init__(self) -> None:
        self.clock = Hand()
        self.liveness = Liveness(["a", "b", "c"], deadline_s=12)
        self.liveness.detector.clock = self.clock  # type: ignore[assignment]
        for watch in self.liveness.detector.peers.values():
            watch.heard_at = watch.moved_at = 0.0
        self.work = [0.0, 0.0, 0.0]
        self.moved = [0, 0, 0]
        self.waits_for: list[int | None] = [1, None, None]
        self.silent: set[int] = set()

    def go(
        self, seconds: int, *, busy: tuple[int, ...] = (), share: float = 1.0, moving: tuple[int, ...] = ()
    ) -> None:
        for _ in range(seconds):
            self.clock.time_s += 1
            for rank in range(3):
                self.work[rank] += share if rank in busy else 0.0001  # beats alone
                self.moved[rank] += rank in moving
                if rank not in self.silent:
                    beat = Heartbeat(self.work[rank], self.moved[rank], self.waits_for[rank], f"phase {rank}")
                    self.liveness.detector.beat(rank, beat)

    def suspect_error(self, *, since: float = 0.0) -> str | None:
        loss = self.liveness.suspect_error(0, 1, since)
        return None if loss is None else str(loss("here"))

    def culprit(self) -> int:
        loss = self.liveness.suspect_error(0, 1, 0.0)
        assert loss is not None
        error = loss("here")
        assert isinstance(error, CommError)
        return error.peer


@pytest.fixture
def ranks() -> Ranks:
    return Ranks()


def test_a_rank_that_does_nothing_is_stuck_after_the_deadline(ranks: Ranks) -> None:
    ranks.go(9)
    assert ranks.suspect_error() is None
    ranks.go(3)
    assert ranks.culprit() == 1
    assert 'rank 1 on b made no progress for 10 s while rank 0 on a waited in "here"' in str(
        ranks.suspect_error()
    )


def test_a_new_wait_does_not_end_for_earlier_idleness(ranks: Ranks) -> None:
    ranks.go(30)
    assert ranks.suspect_error(since=29) is None
    assert ranks.suspect_error(since=20) is not None


def test_computation_and_transfers_are_progress(ranks: Ranks) -> None:
    ranks.go(30, busy=(1,), share=0.1)
    assert ranks.suspect_error() is None
    ranks.go(30, moving=(1,))
    assert ranks.suspect_error() is None
    ranks.go(30, busy=(1,), share=0.01)  # what beats and other small things take
    assert ranks.suspect_error() is not None


def test_a_silent_rank_is_lost_even_if_it_computed_before(ranks: Ranks) -> None:
    ranks.go(5, busy=(1,))
    ranks.silent = {1}
    ranks.go(9, busy=(1,))
    assert ranks.suspect_error() is None
    ranks.go(1)
    assert "rank 1 on b was silent for 10 s" in str(ranks.suspect_error(since=14))


def test_the_chain_of_waits_is_followed(ranks: Ranks) -> None:
    ranks.waits_for = [1, 2, None]
    ranks.go(30, busy=(2,))
    assert ranks.suspect_error() is None
    ranks.go(30)
    assert ranks.culprit() == 2
    assert "rank 2 on c made no progress" in str(ranks.suspect_error())
    assert "rank 1 on b waits for it too" in str(ranks.suspect_error())
    ranks.silent = {2}
    ranks.go(11)
    assert "rank 2 on c was silent for 11 s" in str(ranks.suspect_error())


def test_a_cycle_of_waits_is_named(ranks: Ranks) -> None:
    ranks.waits_for = [1, 2, 0]
    ranks.go(30)
    text = str(ranks.suspect_error())
    assert "ranks wait for each other" in text
    assert 'rank 2 on c for rank 0 in "phase 2"' in text
    ranks.go(5, busy=(0,))  # another thread of this rank computes
    assert ranks.suspect_error() is None


def test_time_while_this_process_is_suspended_is_not_counted() -> None:
    clock = AwakeClock(0.01)
    first = clock.now()
    time.sleep(0.3)
    assert clock.now() - first <= 0.011
    assert clock.now() >= first


def test_the_longest_wait_is_reported() -> None:
    waits = WaitTracker[int]()
    waits.phase = "loss"
    assert waits.current() == (None, "loss")
    with waits.waiting_for(3, "first"):
        with waits.waiting_for(4, "second"):
            assert waits.current() == (3, "first")
        assert waits.current() == (3, "first")
    assert waits.current() == (None, "loss")


def test_work_grows_with_computation() -> None:
    before = work_s()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert work_s() - before > 0.04
