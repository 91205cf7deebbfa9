"""Workers with wrong results are dismissed, and do not harm the run."""

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_worker import CORRUPTIONS
from staged import KINDS, Staged, model_of, options_of, orders, setup_of
from stub_server import Server, assert_right
from stub_tasks import LONG_S, compute, computing, task_at, weights_at

import siafu
from siafu.training.procedure import Callbacks
from siafu.workers import worker, worker_pool
from siafu.workers.connection import ConnectionLost, FrameConnection
from siafu.workers.numpy_backend import compute as compute_numpy
from siafu.workers.result_check import ResultChecker, inputs_are_finite, is_finite
from siafu.workers.setup import Setup
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_frames import Frame, FrameKind
from siafu.workers.task_outcome import CompletedTask
from siafu.workers.task_queue import TaskQueue
from siafu.workers.torch_compute import TorchCompute
from siafu.workers.worker import CannotServe, serve
from siafu.workers.worker_processes import ProcessPlatform


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_a_wrong_result_is_a_failure_and_the_third_one_ends_the_session(
    corrupt: Callable[[Result], Result],
) -> None:
    def factory(_: Setup) -> Callable[[Task, Arrays], Result]:
        return lambda task, weights: corrupt(compute(task, weights))

    messages: list[str] = []
    with Server(hedging=False, say=messages.append) as server, ThreadPoolExecutor(2) as pool:
        false = pool.submit(serve, server.listener.issue_lease(seconds=60), factory)
        tasks = server.put(8)
        with pytest.raises(
            CannotServe, match="the graph server ended the lease: it was dismissed after 3 failures"
        ):
            false.result(LONG_S)
        pool.submit(serve, server.listener.issue_lease(seconds=60), computing())
        assert_right(server.wait(8), tasks)
        usage = next(each for each in server.listener.usage if each.worker == "worker-1")
        server.listener.close()
    assert usage.ended.startswith("it was dismissed after 3 failures; the last: a ")
    assert messages == [f"worker-1: {usage.ended}"]
    assert not [
        done for done in server.outcomes if isinstance(done, CompletedTask) and done.worker == "worker-1"
    ]


@pytest.mark.parametrize("kind", [FrameKind.ACCEPT, FrameKind.RESULT])
def test_a_worker_that_is_dismissed_while_it_sends_still_gives_the_reason(
    kind: FrameKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = FrameConnection.send

    def broken(connection: FrameConnection, which: FrameKind, *rest: Any) -> None:
        if which != kind:
            send(connection, which, *rest)
            return
        server.tasks._failures["worker-1"] = ["a wrong result"] * 3  # the next heartbeat shows it
        until = time.monotonic() + LONG_S
        while not [each for each in server.listener.usage if each.ended]:
            assert time.monotonic() < until
            time.sleep(0.01)  # nobody tells when a session has ended
        raise ConnectionLost("the connection broke: Connection reset by peer")

    monkeypatch.setattr(FrameConnection, "send", broken)
    with Server(hedging=False) as server:
        server.put(8)
        with pytest.raises(CannotServe, match="ended the lease: it was dismissed after 3 failures"):
            serve(server.listener.issue_lease(seconds=60), computing())


def test_a_server_that_goes_on_sending_over_a_broken_connection_does_not_hold_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reason that the worker looks for would never come."""
    send, receive, ended = FrameConnection.send, FrameConnection.receive, threading.Event()

    def broken(connection: FrameConnection, which: FrameKind, *rest: Any) -> None:
        if which == FrameKind.ACCEPT:
            ended.set()
            raise ConnectionLost("the connection broke: Connection reset by peer")
        send(connection, which, *rest)

    def endless(connection: FrameConnection, *rest: Any, **limits: Any) -> Frame:
        return Frame(FrameKind.OFFER, {}, {}) if ended.is_set() else receive(connection, *rest, **limits)

    monkeypatch.setattr(FrameConnection, "send", broken)
    monkeypatch.setattr(FrameConnection, "receive", endless)
    monkeypatch.setattr(worker, "_LAST_FRAMES_S", 0.05)
    with Server(hedging=False) as server:
        server.put(1)
        assert (
            "is gone: the connection broke"
            in serve(server.listener.issue_lease(seconds=60), computing()).reason
        )
        server.listener.close()


def test_the_fault_names_what_was_found_and_expected() -> None:
    checker, weights = ResultChecker(compute), {"layers.0.weight": weights_at(0)["layers.0.weight"]}
    right = compute(task_at(1), weights)
    faults = [checker.find_fault(task_at(1), weights, corrupt(right)) for corrupt in CORRUPTIONS]
    assert checker.find_fault(task_at(1), weights, right) is None
    assert faults[0] == "array z of float32 (1, 3), expected float32 (5, 3)"
    assert faults[2] == "array z of float16 (5, 3), expected float32 (5, 3)"
    assert faults[4] == "arrays [], expected ['z']"
    assert faults[5] == "arrays ['more', 'z'], expected ['z']"
    assert faults[6] == "gradients [], expected ['layers.0.weight']"


def test_a_result_that_is_not_finite_is_committed_if_this_process_finds_the_same() -> None:
    """Training that diverges is not the worker's fault, and the task is not repeated for ever."""
    outcomes: list[CompletedTask] = []
    tasks = TaskQueue(outcomes.append, hedging=False)  # type: ignore[arg-type]
    tasks.publish(0, weights_at(0))
    task = task_at(0)
    nan = Result({"z": np.full((5, 3), np.nan, np.float32)}, {})
    tasks.put(task, (0,))
    assert tasks.take("worker-1") is task
    tasks.suspect(task.key, "worker-1")
    assert tasks.take("local", fallback=True) is task
    assert tasks.commit(task.key, "local", nan)
    assert tasks.num_failures("worker-1") == 0
    assert [done.worker for done in outcomes] == ["local"]


def test_a_result_that_is_not_finite_is_suspect_only_if_all_inputs_were_finite() -> None:
    task, weights = task_at(1), dict(weights_at(0))
    assert inputs_are_finite(task, weights)
    assert not inputs_are_finite(task, {**weights, "w": np.array([1.0, np.inf])})
    assert not inputs_are_finite(Task(task.key, 0, {"x": np.full((5, 4), np.nan)}), weights)
    assert inputs_are_finite(Task(task.key, 0, {**task.arrays, "y": np.array([np.nan])}), weights)
    large = np.full(5, 3e38, np.float32)  # whose sum overflows
    assert is_finite(Result({"z": large}))
    assert not is_finite(Result({"z": large}, {"w": np.array([0.0, -np.inf])}))


@pytest.mark.parametrize("kind", KINDS)
def test_every_result_of_every_model_is_as_expected(kind: str) -> None:
    for layers in (1, 2, 3):
        for place, options in enumerate(options_of(layers)[::3]):
            every = list(orders(kind, layers))
            kept, first = every[place % len(every)]
            model = model_of(kind, layers=layers, **options)
            setup = setup_of(model, kept=kept, first=first)
            by_torch, by_numpy = (
                ResultChecker(TorchCompute(setup)),
                ResultChecker(partial(compute_numpy, setup)),
            )
            do = TorchCompute(setup)

            def checked(task: Task, weights: Arrays) -> Result:
                result = do(task, weights)  # noqa: B023
                for checker in (by_torch, by_numpy):  # noqa: B023
                    assert checker.find_fault(task, weights, result) is None
                return result

            Staged(checked, model, setup).run()


def test_a_run_with_faulty_workers_ends_as_one_without_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    program = [sys.executable, str(Path(__file__).with_name("faulty_worker.py"))]
    monkeypatch.setattr(worker_pool, "ProcessPlatform", lambda adopt: ProcessPlatform(program, adopt=adopt))
    monkeypatch.setattr(worker_pool.WorkerPool, "_compute_until_ready", lambda _: None)
    for workers, count in (("processes", {"num_workers": 2}), ("inline", {})):
        siafu.train(
            siafu.load("karate"),
            method="pipeline",
            workers=workers,
            **count,
            intervals=4,
            epochs=20,
            patience=0,
            threads=1,
            out=tmp_path / workers,
            callbacks=Callbacks(say=messages.append),
        )
    assert any("it was dismissed after 3 failures; the last: a " in text for text in messages), messages
    weights = [(tmp_path / workers / "model.safetensors").read_bytes() for workers in ("processes", "inline")]
    assert weights[0] == weights[1]


def test_a_run_does_not_wait_for_its_worker_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    program = [sys.executable, "-c", "import time; time.sleep(1000)"]
    monkeypatch.setattr(worker_pool, "ProcessPlatform", lambda adopt: ProcessPlatform(program, adopt=adopt))
    for workers, count in (("processes", {"num_workers": 2}), ("inline", {})):
        siafu.train(
            siafu.load("karate"),
            method="pipeline",
            workers=workers,
            **count,
            intervals=4,
            epochs=20,
            out=tmp_path / workers,
            callbacks=Callbacks(say=messages.append),
        )
    assert not [text for text in messages if "no worker is there" in text]
    weights = [(tmp_path / workers / "model.safetensors").read_bytes() for workers in ("processes", "inline")]
    assert weights[0] == weights[1]
