"""Replays of small cases, beside results worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay import Fleet, GraphTask, ReplayTimes, TensorTask, replay

# Two phases, two intervals; graph work of 1 s each, tensor work of 4 s and 2 s in the first phase, then 3 s each.
GRAPH = [GraphTask(phase, interval, 1.0) for phase in (0, 1) for interval in (0, 1)]
TENSOR = [
    TensorTask(0, 0, 4.0, 100),
    TensorTask(0, 1, 2.0, 100),
    TensorTask(1, 0, 3.0, 50),
    TensorTask(1, 1, 3.0, 50),
]


def test_without_leases_the_server_does_everything_one_after_another() -> None:
    for staleness in (0, 1):
        found = replay(GRAPH, TENSOR, Fleet(0, bytes_per_s=1, latency_s=9), staleness=staleness)
        assert found == ReplayTimes(16.0, 0.0, 0.0, 16.0)


def test_a_lease_overlaps_with_the_server() -> None:
    # graph 0-1 1-2 | tensor 1-5 5-7 | graph 7-8 8-9 | tensor 8-11 11-14
    assert replay(GRAPH, TENSOR, Fleet(1), staleness=0) == ReplayTimes(14.0, 14.0, 12.0, 4.0)


def test_two_leases_work_beside_each_other_and_both_are_billed_to_the_end() -> None:
    # graph 0-1 1-2 | tensor 1-5, 2-4 | graph 5-6 6-7 | tensor 6-9, 7-10
    assert replay(GRAPH, TENSOR, Fleet(2), staleness=0) == ReplayTimes(10.0, 20.0, 12.0, 4.0)


def test_more_leases_than_tasks_cost_and_do_not_help() -> None:
    assert replay(GRAPH, TENSOR, Fleet(50), staleness=0) == ReplayTimes(10.0, 500.0, 12.0, 4.0)


def test_with_staleness_an_interval_goes_on_when_it_is_done() -> None:
    # graph 0-1 1-2 | tensor of 0: 1-5, of 1: 2-4 | graph of 1: 4-5, of 0: 5-6 | tensor of 1: 5-8, of 0: 6-9
    assert replay(GRAPH, TENSOR, Fleet(2), staleness=1) == ReplayTimes(9.0, 18.0, 12.0, 4.0)


def test_latency_and_bytes_hold_a_lease() -> None:
    # 0.5 s a task, and 100 bytes at 100 a second: tensor 1-6.5, 2-5.5; graph 6.5-7.5 7.5-8.5; tensor 7.5-11.5, 8.5-12.5
    found = replay(GRAPH, TENSOR, Fleet(2, bytes_per_s=100, latency_s=0.5), staleness=0)
    assert found == ReplayTimes(12.5, 25.0, 5.5 + 3.5 + 4.0 + 4.0, 4.0)


def test_a_slower_lease_computes_longer() -> None:
    # tensor 1-9, 2-6; graph 9-10 10-11; tensor 10-16, 11-17
    assert replay(GRAPH, TENSOR, Fleet(2, speed=0.5), staleness=0).seconds == 17.0


def test_all_leases_share_the_servers_connection() -> None:
    # three tasks of 100 bytes that start at once: their bytes pass after 1 s, 2 s and 3 s, then 1 s of computing
    tensor = [TensorTask(0, interval, 1.0, 100) for interval in range(3)]
    assert replay([], tensor, Fleet(3, server_bytes_per_s=100), staleness=0) == ReplayTimes(
        4.0, 12.0, 9.0, 0.0
    )
    assert replay([], tensor, Fleet(3), staleness=0).seconds == 1.0


def test_an_interval_without_work_in_a_phase_passes_through_it() -> None:
    # only interval 0 has tensor work, only interval 1 has graph work; 4 s of it keep the server
    graph = [GraphTask(0, 1, 4.0), GraphTask(1, 1, 1.0)]
    tensor = [TensorTask(0, 0, 1.0, 0), TensorTask(1, 0, 1.0, 0)]
    assert replay(graph, tensor, Fleet(1), staleness=1).seconds == 5.0
    assert replay(graph, tensor, Fleet(1), staleness=0).seconds == 5.0
    assert replay(graph, [*tensor, TensorTask(1, 1, 2.0, 0)], Fleet(1), staleness=0).seconds == 7.0


def test_nothing_takes_no_time() -> None:
    assert replay([], [], Fleet(3), staleness=0) == ReplayTimes(0.0, 0.0, 0.0, 0.0)


def test_twenty_milliseconds_a_task_are_hidden_when_all_are_in_flight() -> None:
    graph = [GraphTask(phase, interval, 0.01) for phase in range(4) for interval in range(32)]
    tensor = [TensorTask(phase, interval, 0.01, 0) for phase in range(4) for interval in range(32)]
    near, far = (replay(graph, tensor, Fleet(32, latency_s=s), staleness=0).seconds for s in (0.0, 0.02))
    assert near == pytest.approx(4 * (32 * 0.01 + 0.01))
    assert far == pytest.approx(4 * (32 * 0.01 + 0.03))


def test_two_thousand_leases_are_replayed() -> None:
    graph = [GraphTask(phase, interval, 1e-4) for phase in range(4) for interval in range(2000)]
    tensor = [TensorTask(phase, interval, 1.0, 0) for phase in range(4) for interval in range(2000)]
    found = replay(graph, tensor, Fleet(2000), staleness=0)
    assert found.seconds == pytest.approx(4 * (0.2 + 1.0))
    assert found.busy_lease_seconds == pytest.approx(8000)


jobs = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), max_size=30
)


@given(jobs, st.integers(1, 8), st.sampled_from([0, 1]))
def test_every_task_is_done_and_no_bound_is_beaten(
    given: list[tuple[int, int, int, int]], leases: int, staleness: int
) -> None:
    cells = {(phase, interval): (graph_s, tensor_s) for phase, interval, graph_s, tensor_s in given}
    graph = [GraphTask(phase, interval, float(seconds)) for (phase, interval), (seconds, _) in cells.items()]
    tensor = [
        TensorTask(phase, interval, float(seconds), 0) for (phase, interval), (_, seconds) in cells.items()
    ]
    found = replay(graph, tensor, Fleet(leases), staleness=staleness)
    of_graph, of_tensor = sum(task.seconds for task in graph), sum(task.seconds for task in tensor)
    assert (found.server_seconds, found.busy_lease_seconds) == (of_graph, of_tensor)
    assert max(of_graph, of_tensor / leases) <= found.seconds <= of_graph + of_tensor
