"""Results that a worker writes into shared memory, and locations that are refused."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from stub_server import Server, assert_right
from stub_tasks import LONG_S, compute, computing, task_at, until, weights_at

from siafu.wire.frames import FrameError
from siafu.workers.result_slots import ResultSlots, slot_bytes, write_to_slot
from siafu.workers.shared_memory import Segments
from siafu.workers.task import Task
from siafu.workers.task_frames import Frame, FrameKind
from siafu.workers.task_messages import pack_result, unpack_result
from siafu.workers.task_outcome import CompletedTask
from siafu.workers.worker import InheritedSockets, serve

ARRAYS = {"z": np.arange(15, dtype=np.float32).reshape(5, 3), "none": np.zeros((0, 3)), "loss": np.ones(1)}


@pytest.fixture
def slots() -> Iterator[ResultSlots]:
    slots = ResultSlots()
    yield slots
    slots.close()


def test_arrays_in_a_slot_are_read_as_written(slots: ResultSlots) -> None:
    slot = slots.take(slot_bytes(ARRAYS))
    assert slot is not None
    laid = write_to_slot(ARRAYS, slot.memory.map)
    assert laid is not None
    for name, (offset, dtype, shape) in laid.items():
        np.testing.assert_array_equal(slot.array(offset, np.dtype(dtype), tuple(shape)), ARRAYS[name])


def test_arrays_that_do_not_fit_are_not_written(slots: ResultSlots) -> None:
    slot = slots.take(slot_bytes(ARRAYS) - 1)
    assert slot is not None
    assert write_to_slot(ARRAYS, slot.memory.map) is None


def test_a_slot_is_used_again_once_it_is_free_and_a_small_one_gives_way_to_a_larger(
    slots: ResultSlots,
) -> None:
    first = slots.take(64)
    assert first is not None
    assert slots.take(64) is not first
    first.free()
    assert slots.take(64) is first
    first.free()
    larger = slots.take(100_000)  # its descriptor may be that of the one it stands for
    assert larger is not None
    assert larger.number != first.number
    assert larger.replaces == first.number


def test_too_many_slots_are_not_made(slots: ResultSlots) -> None:
    assert slots.take(0) is None  # of a result of which nothing is known
    found = [slots.take(64) for _ in range(9)]
    assert [slot is None for slot in found] == [False] * 8 + [True]


@pytest.mark.parametrize(
    "place",
    [[0, "float32", [5, 4]], [-64, "float32", [1]], [2, "float32", [1]], [0, "float32", [-1]], [0], "there"],
    ids=["beyond", "before", "not aligned", "negative", "short", "no list"],
)
def test_a_place_outside_the_slot_is_refused(slots: ResultSlots, place: object) -> None:
    frame = Frame(FrameKind.RESULT, {"key": [0, 0, 0, 0], "seconds": 0.0, "in_slot": {"rows/z": place}})
    with pytest.raises(FrameError, match=r"where it had no room|in memory of 64 bytes"):
        unpack_result(frame, slots.take(64))
    with pytest.raises(FrameError, match="where it had no room"):
        unpack_result(frame, None)


def test_an_unknown_dtype_is_refused(slots: ResultSlots) -> None:
    frame = Frame(
        FrameKind.RESULT, {"key": [0, 0, 0, 0], "seconds": 0.0, "in_slot": {"rows/z": [0, "object", [1]]}}
    )
    with pytest.raises(FrameError, match="is of 'object', expected one of bool"):
        unpack_result(frame, slots.take(64))


def test_gradients_outlive_the_slot(slots: ResultSlots) -> None:
    slot, task = slots.take(4096), task_at(3)
    assert slot is not None
    right = compute(task, {"layers.0.weight": weights_at(0)["layers.0.weight"]})
    head, arrays = pack_result(task, right, slot.memory.map)
    assert not arrays
    result = unpack_result(Frame(FrameKind.RESULT, head), slot)
    result.release()
    again = slots.take(64)
    assert again is slot
    write_to_slot({"z": np.full(64, 9.0)}, slot.memory.map)
    np.testing.assert_array_equal(result.grads["layers.0.weight"], right.grads["layers.0.weight"])


@pytest.fixture
def segments() -> Iterator[Segments]:
    segments = Segments()
    yield segments
    segments.close()


def shared_weights(segments: Segments) -> dict[str, np.ndarray]:
    weights = segments.copies(weights_at(0))
    for name, value in weights_at(0).items():
        weights[name][...] = value
    return weights


def inherit(server: Server) -> InheritedSockets:
    """Return the sockets that a worker process of this host would inherit."""
    pairs = [socket.socketpair() for _ in range(2)]
    server.listener.adopt(*(near for near, _ in pairs))
    return InheritedSockets(*(far for _, far in pairs))


def test_rows_weights_and_results_of_a_worker_of_this_host_are_not_sent(segments: Segments) -> None:
    x = segments.rows(5000, 4, np.dtype(np.float32))
    x[:] = np.arange(5000, dtype=np.float32)[:, None]
    tasks = [Task(task_at(interval).key, 0, {"x": x}) for interval in range(40)]
    found: list[np.ndarray] = []

    def read(done: CompletedTask) -> None:
        found.append(done.result.arrays["z"].copy())
        done.result.release()

    with Server(read, segments=segments) as server, ThreadPoolExecutor(1) as pool:
        server.tasks.publish(0, shared_weights(segments))
        pool.submit(serve, server.listener.issue_lease(seconds=60), computing(), inherited=inherit(server))
        for task in tasks:
            server.tasks.put(task, (0, task.key.interval))
        outcomes = server.wait(len(tasks))
        (usage,) = server.listener.usage
        server.listener.close()
    assert [outcome.task.key for outcome in outcomes] == [task.key for task in tasks]
    for z in found:
        np.testing.assert_array_equal(z, x @ weights_at(0)["layers.0.weight"])
    size = x.nbytes * 3 // 4
    assert usage.bytes_in < 4 * size  # the first ones, of which nothing was known
    assert usage.bytes_out < size


def test_such_a_worker_declines_tasks_that_it_could_not_finish_before_its_lease_ends(
    segments: Segments,
) -> None:
    with Server(segments=segments) as server, ThreadPoolExecutor(2) as pool:
        server.tasks.publish(0, shared_weights(segments))
        short = pool.submit(
            serve, server.listener.issue_lease(seconds=1.6), computing(0.1), inherited=inherit(server)
        )
        tasks = server.put(40)
        done = short.result(LONG_S).tasks
        assert done < 10
        until(
            lambda: [each.tasks for each in server.listener.usage] == [done]
        )  # the last is read a moment later
        pool.submit(serve, server.listener.issue_lease(seconds=60), computing())
        assert_right(server.wait(40), tasks)
        assert server.tasks.counts.relaunched == 0
        server.listener.close()
