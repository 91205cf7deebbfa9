"""The failure detector: silent peers, stuck peers and chains of waits, by a clock that the tests set."""

import pytest

from siafu.wire import heartbeats
from siafu.wire.heartbeats import AwakeClock, FailureDetector, Heartbeat, Suspicion, WaitTracker

DEADLINE_S, LIMIT_S = 10.0, 8.0  # with ticks of a second


class Time:
    """The time, as the detector sees it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(heartbeats.time, "monotonic", made.monotonic)
    return made


def idle(waits_for: str | None = None, *, waited_s: float = 0.0) -> Heartbeat[str]:
    return Heartbeat(1.0, 0, waits_for, "halo", waited_s)


def pass_time(clock: Time, detector: FailureDetector[str], seconds: float, **beats: Heartbeat[str]) -> None:
    """Let time pass tick by tick, with a heartbeat of some peers in each."""
    for _ in range(round(seconds / detector.tick_s)):
        clock.now += detector.tick_s
        for peer, beat in beats.items():
            detector.beat(peer, beat)
        detector.clock.now()


def made(*names: str) -> FailureDetector[str]:
    return FailureDetector(names, deadline_s=DEADLINE_S)


def test_a_peer_without_a_sign_of_life_until_two_ticks_before_the_deadline_is_silent(clock: Time) -> None:
    detector = made("a", "b")
    pass_time(clock, detector, LIMIT_S - 1)
    assert detector.suspect("a", "b", 0.0) is None
    assert not detector.is_silent("b")
    pass_time(clock, detector, 1)
    assert detector.suspect("a", "b", 0.0) == Suspicion("b", silent_s=LIMIT_S)
    detector.heard("b")
    assert detector.suspect("a", "b", 0.0) is None


def test_a_peer_that_is_alive_but_makes_no_progress_is_stuck(clock: Time) -> None:
    detector = made("a", "b")
    pass_time(clock, detector, 2 * LIMIT_S, b=idle())
    assert detector.suspect("a", "b", 0.0) == Suspicion("b")
    assert detector.suspect("a", "b", detector.clock.now() - 1) is None  # nobody has waited long for it


def test_a_peer_that_works_or_moves_data_is_waited_for(clock: Time) -> None:
    detector = made("a", "b", "c")
    for step in range(40):
        beats = {"b": Heartbeat(step * 0.5, 0, None, "w"), "c": Heartbeat(1.0, step, None, "m")}
        pass_time(clock, detector, detector.tick_s, **beats)
    assert detector.suspect("a", "b", 0.0) is None
    assert detector.suspect("a", "c", 0.0) is None


def test_the_end_of_a_chain_of_waits_is_to_blame(clock: Time) -> None:
    detector = made("a", "b", "c", "d")
    pass_time(clock, detector, 2 * LIMIT_S, b=idle("c"), c=idle("d"), d=idle())
    assert detector.suspect("a", "b", 0.0) == Suspicion("d")


def test_a_silent_peer_at_the_end_of_a_chain_is_to_blame(clock: Time) -> None:
    detector = made("a", "b", "c")
    pass_time(clock, detector, 2 * LIMIT_S, b=idle("c"))
    assert detector.suspect("a", "b", 0.0) == Suspicion("c", silent_s=2 * LIMIT_S)


def test_peers_in_a_deadlock_are_named(clock: Time) -> None:
    detector = made("a", "b", "c")
    pass_time(clock, detector, 2 * LIMIT_S, a=idle("b"), b=idle("c"), c=idle("b"))
    found = detector.suspect("a", "b", 0.0)
    assert found == Suspicion("b", cycle=("b", "c"))
    pass_time(clock, detector, 2 * LIMIT_S, a=idle("b"), b=idle("c"), c=idle("a"))
    assert detector.suspect("a", "b", 0.0) == Suspicion("b", cycle=("a", "b", "c"))


def test_a_cycle_through_a_waiter_that_still_computes_is_no_deadlock(clock: Time) -> None:
    detector = made("a", "b")
    for step in range(40):
        pass_time(clock, detector, detector.tick_s, a=Heartbeat(step * 0.9, 0, "b", "w"), b=idle("a"))
    assert detector.suspect("a", "b", 0.0) is None


def test_a_peer_that_ended_is_not_suspected(clock: Time) -> None:
    detector = made("a", "b")
    detector.end("b")
    pass_time(clock, detector, 3 * LIMIT_S)
    assert detector.suspect("a", "b", 0.0) is None


def test_an_observer_blames_whoever_is_silent_for_longest(clock: Time) -> None:
    detector = made("a", "b", "c")
    pass_time(clock, detector, 2, b=idle(), c=idle())
    pass_time(clock, detector, LIMIT_S - 1, c=idle("a", waited_s=1))
    assert detector.culprit() == Suspicion("a", silent_s=LIMIT_S + 1)
    detector.end("a")
    assert detector.culprit() is None


def test_an_observer_follows_the_chain_of_waits_to_its_end(clock: Time) -> None:
    detector = made("a", "b", "c", "d")
    pass_time(clock, detector, 1, a=idle("b", waited_s=7), b=idle("c", waited_s=2), c=idle(), d=idle())
    assert detector.culprit() is None
    pass_time(clock, detector, 1, a=idle("b", waited_s=8))
    assert detector.culprit() == Suspicion("c")
    detector.end("b")  # and waits for nobody any more
    assert detector.culprit() == Suspicion("b")


def test_an_observer_blames_no_peer_for_a_cycle(clock: Time) -> None:
    detector = made("a", "b", "c")
    pass_time(clock, detector, 1, a=idle("b", waited_s=9), b=idle("a", waited_s=9), c=idle("a", waited_s=9))
    assert detector.culprit() is None


def test_a_suspended_process_does_not_count_the_time_as_silence_of_others(clock: Time) -> None:
    detector = made("a", "b")
    clock.now += 1000  # stopped, or its machine was suspended
    assert detector.suspect("a", "b", 0.0) is None
    assert detector.culprit() is None
    awake = AwakeClock(2.0)
    clock.now += 1.5
    assert awake.now() == 1.5
    clock.now += 1000
    assert awake.now() == 3.5


def test_the_longest_wait_is_the_current_one() -> None:
    waits = WaitTracker[int]()
    assert waits.current() == (None, "start")
    with waits.waiting_for(3, "halo"):
        with waits.waiting_for(5, "gradients"):
            assert waits.current() == (3, "halo")
        assert waits.current() == (3, "halo")
    waits.phase = "halo"
    assert waits.current() == (None, "halo")
