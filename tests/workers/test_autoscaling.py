"""Autoscaling finds the best number of workers, on models of an epoch's time."""

import random
from collections.abc import Callable

import pytest

from siafu.workers.autoscaling import (
    EpochCost,
    HillClimb,
    HillClimbConfig,
    QueueStats,
    begin_climb,
    follow_queue,
    initial_workers,
)

SERVERS = 2 * 0.432 / 3600  # dollars a second
LEASE = 1769 / 1024 * 1.66667e-5

Seconds = Callable[[int], float]


def amdahl(*, graph: float, tensor: float, tasks: int, latency: float = 0.01, cores: int = 8) -> Seconds:
    """Model graph work, then tensor work on leases with a latency per task, or on the servers' cores without leases."""

    def seconds(leases: int) -> float:
        if not leases:
            return graph + tensor / cores
        at_once = min(leases, tasks)
        return graph + tensor / at_once + latency * tasks / at_once

    return seconds


def waves(*, graph: float, tensor: float, tasks: int, latency: float = 0.01, cores: int = 8) -> Seconds:
    """Model tasks of equal size: one more lease helps only if it saves a round."""

    def seconds(leases: int) -> float:
        if not leases:
            return graph + tensor / cores
        return graph + -(-tasks // leases) * (tensor / tasks + latency)

    return seconds


NARROW = amdahl(graph=1.2, tensor=0.2, tasks=64)
WIDE = amdahl(graph=1.0, tensor=400, tasks=2000)
MODELS = {
    "narrow": (NARROW, 64),
    "wide until it costs more than it saves": (WIDE, 2000),
    "wide until there are no more tasks": (waves(graph=1.0, tensor=400, tasks=100), 100),
    "in between": (amdahl(graph=2.0, tensor=120, tasks=512), 512),
    "far": (amdahl(graph=1.0, tensor=60, tasks=1000, latency=0.2), 1000),
}


def dollars(leases: int, seconds: float) -> float:
    return seconds * (SERVERS + leases * LEASE)


def value(seconds: Seconds, leases: int) -> float:
    return 1 / (seconds(leases) * dollars(leases, seconds(leases)))


def measure(climb: HillClimb, seconds: Seconds, rng: random.Random, *, noise: float = 0.05) -> HillClimb:
    took = seconds(climb.leases) * max(0.5, rng.gauss(1, noise))
    return climb.after(EpochCost(climb.leases, took, dollars(climb.leases, took)))


def settle(climb: HillClimb, seconds: Seconds, rng: random.Random, *, noise: float = 0.05) -> HillClimb:
    for _ in range(200):
        if climb.settled:
            return climb
        climb = measure(climb, seconds, rng, noise=noise)
    raise AssertionError("it never settles")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", MODELS)
def test_it_comes_within_a_tenth_of_the_best_value_in_twelve_points(name: str, seed: int) -> None:
    seconds, tasks = MODELS[name]
    climb = settle(begin_climb(HillClimbConfig(max_leases=tasks), tasks), seconds, random.Random(seed))
    best = max(value(seconds, leases) for leases in range(tasks + 1))
    assert value(seconds, climb.leases) >= 0.9 * best, climb.reason
    assert len(climb.points) <= 12


def test_no_leases_are_the_answer_for_a_narrow_model_and_the_reason_has_figures() -> None:
    climb = settle(begin_climb(HillClimbConfig(max_leases=64), 64), NARROW, random.Random(0), noise=0.0)
    assert climb.leases == 0
    assert climb.reason == (
        "0 leases: an epoch took 1.22 s at $0.00029 without and 1.41 s at $0.00050 with 4; V falls by 1.96x"
    )


def test_the_reason_for_many_leases_has_figures_too() -> None:
    climb = settle(begin_climb(HillClimbConfig(max_leases=2000), 2000), WIDE, random.Random(0), noise=0.0)
    assert climb.leases == 512
    assert climb.reason == (
        "512 leases: an epoch took 51 s at $0.012 without and 1.82 s at $0.027 with 512; V rises by 12.6x"
    )


def test_leases_with_hardly_any_gain_are_not_used() -> None:
    def hardly(leases: int) -> float:
        return 1.0 if not leases else 0.985 / (1 + leases * LEASE / SERVERS) ** 0.5

    climb = settle(begin_climb(HillClimbConfig(max_leases=1), 1), hardly, random.Random(0), noise=0.0)
    assert climb.points[1].value > climb.points[0].value
    assert (climb.leases, climb.reason.split(":")[0]) == (0, "0 leases")


def test_with_a_maximum_of_no_leases_there_are_none() -> None:
    climb = settle(begin_climb(HillClimbConfig(max_leases=0), 32), WIDE, random.Random(0), noise=0.0)
    assert climb.leases == 0
    assert climb.reason.startswith("0 leases: 51 s at $0.012 an epoch")


def test_the_first_epoch_after_a_change_is_left_out_and_medians_are_compared() -> None:
    climb = begin_climb(HillClimbConfig(max_leases=4, epochs_per_point=3, warm_up=1), 4)
    for seconds in (99.0, 2.0, 50.0, 1.0):
        assert climb.leases == 4
        climb = climb.after(EpochCost(4, seconds, seconds / 10))
    assert climb.leases == 0
    assert (climb.points[4].seconds, climb.points[4].dollars) == (2.0, 0.2)


def test_an_epoch_with_another_number_of_leases_is_ignored() -> None:
    climb = begin_climb(HillClimbConfig(max_leases=4), 4)
    assert climb.after(EpochCost(3, 1.0, 1.0)) is climb


def test_it_stays_where_it_settled_while_epochs_take_their_time() -> None:
    rng = random.Random(3)
    climb = settle(begin_climb(HillClimbConfig(max_leases=512), 512), MODELS["in between"][0], rng)
    chosen = climb.leases
    for _ in range(60):
        climb = measure(climb, MODELS["in between"][0], rng)
        assert (climb.settled, climb.leases) == (True, chosen)


def test_it_climbs_again_when_an_epochs_time_has_drifted() -> None:
    rng = random.Random(4)
    climb = settle(begin_climb(HillClimbConfig(max_leases=2000), 2000), WIDE, rng)
    assert climb.leases > 100
    for _ in range(20):
        climb = measure(climb, NARROW, rng)
    assert not climb.settled
    assert climb.start > 100
    climb = settle(climb, NARROW, rng)
    assert climb.leases == 0


def test_leases_come_back_when_the_work_grows() -> None:
    rng = random.Random(5)
    climb = settle(begin_climb(HillClimbConfig(max_leases=64), 64), NARROW, rng)
    wider = amdahl(graph=1.2, tensor=200, tasks=64)
    for _ in range(6):
        climb = measure(climb, wider, rng)
    assert "an epoch takes 2" in climb.reason
    assert "where it took 1.2" in climb.reason
    climb = settle(climb, wider, rng)
    assert value(wider, climb.leases) >= 0.9 * max(value(wider, leases) for leases in range(65))


def test_the_grid_doubles_from_one_to_the_most_and_has_none() -> None:
    assert HillClimbConfig(max_leases=0).grid() == [0]
    assert HillClimbConfig(max_leases=1).grid() == [0, 1]
    assert HillClimbConfig(max_leases=8).grid() == [0, 1, 2, 4, 8]
    assert HillClimbConfig(max_leases=100).grid() == [0, 1, 2, 4, 8, 16, 32, 64, 100]


@pytest.mark.parametrize(
    ("intervals", "most", "first"), [(32, 2000, 32), (400, 2000, 100), (32, 8, 8), (32, 0, 0)]
)
def test_a_server_starts_with_a_worker_an_interval_and_a_hundred_at_most(
    intervals: int, most: int, first: int
) -> None:
    assert initial_workers(intervals, most) == first


@pytest.mark.parametrize(
    ("seen", "most", "wanted"),
    [
        (QueueStats(10, 5, 8), 100, 13),  # grew by 3
        (QueueStats(10, 5, 500), 100, 20),  # twice at most
        (QueueStats(0, 0, 7), 100, 1),
        (QueueStats(10, 5, 500), 12, 12),
        (QueueStats(10, 5, 500), 0, 0),
        (QueueStats(10, 5, 5), 100, 10),
        (QueueStats(10, 9, 5), 100, 8),  # shrank by 4
        (QueueStats(10, 0, 0, idle=6.2), 100, 7),
        (QueueStats(10, 0, 0, idle=10), 100, 5),
        (QueueStats(1, 0, 0, idle=1), 100, 0),
    ],
)
def test_workers_follow_the_queue(seen: QueueStats, most: int, wanted: int) -> None:
    assert follow_queue(seen, most) == wanted


@pytest.mark.parametrize("workers", [0, 1, 49, 400])
def test_following_the_queue_ends_at_as_many_workers_as_tasks_need(workers: int) -> None:
    queue, each, coming = 0, 2, 100
    for _ in range(20):
        done = min(queue + coming, workers * each)
        left = queue + coming - done
        workers = follow_queue(QueueStats(workers, queue, left, idle=workers - done / each), 1000)
        queue = left
    assert workers == 50
