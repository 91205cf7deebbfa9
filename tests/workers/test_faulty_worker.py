"""Workers that return something else than their task asked for: the run is unharmed, and they are let go."""

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
from false_worker import SPOILS
from known_server import Server, assert_right
from known_tasks import LONG_S, compute, computing, task_at, weights_at
from staged import KINDS, Staged, model_of, options_of, orders, setup_of

import siafu
from siafu.training.procedure import Callbacks
from siafu.workers import worker
from siafu.workers.connection import Link, LinkLost
from siafu.workers.numpy_backend import compute as twin
from siafu.workers.result_check import Expected, is_doubtful, is_finite
from siafu.workers.setup import Setup
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_frames import Frame, Kind
from siafu.workers.task_queue import Done, Tasks
from siafu.workers.torch_compute import TorchCompute
from siafu.workers.worker import CannotServe, serve
from siafu.workers.worker_processes import Processes


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_a_wrong_result_is_a_failure_and_the_third_one_ends_the_visit(
    spoil: Callable[[Result], Result],
) -> None:
    def factory(_: Setup) -> Callable[[Task, Arrays], Result]:
        return lambda task, weights: spoil(compute(task, weights))

    said: list[str] = []
    with Server(hedging=False, say=said.append) as server, ThreadPoolExecutor(2) as pool:
        false = pool.submit(serve, server.pool.lease(seconds=60), factory)
        tasks = server.put(8)
        with pytest.raises(
            CannotServe, match="the graph server ended the lease: it was let go after 3 failures"
        ):
            false.result(LONG_S)
        pool.submit(serve, server.pool.lease(seconds=60), computing())
        assert_right(server.wait(8), tasks)
        served = next(each for each in server.pool.served if each.worker == "worker-1")
        server.pool.close()
    assert served.ended.startswith("it was let go after 3 failures; the last: a ")
    assert said == [f"worker-1: {served.ended}"]
    assert not [done for done in server.outcomes if isinstance(done, Done) and done.worker == "worker-1"]


@pytest.mark.parametrize("kind", [Kind.ACCEPT, Kind.RESULT])
def test_a_worker_that_is_let_go_while_it_sends_still_tells_why(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Link.send

    def broken(link: Link, which: Kind, *rest: Any) -> None:
        if which != kind:
            send(link, which, *rest)
            return
        server.tasks._failures["worker-1"] = ["a wrong result"] * 3  # the next heartbeat shows it
        until = time.monotonic() + LONG_S
        while not [each for each in server.pool.served if each.ended]:
            assert time.monotonic() < until
            time.sleep(0.01)  # nobody tells when a visit has ended
        raise LinkLost("the connection broke: Connection reset by peer")

    monkeypatch.setattr(Link, "send", broken)
    with Server(hedging=False) as server:
        server.put(8)
        with pytest.raises(CannotServe, match="ended the lease: it was let go after 3 failures"):
            serve(server.pool.lease(seconds=60), computing())


def test_a_server_that_goes_on_sending_over_a_broken_connection_does_not_hold_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would never come to the reason that the worker looks for."""
    send, receive, ended = Link.send, Link.receive, threading.Event()

    def broken(link: Link, which: Kind, *rest: Any) -> None:
        if which == Kind.ACCEPT:
            ended.set()
            raise LinkLost("the connection broke: Connection reset by peer")
        send(link, which, *rest)

    def endless(link: Link, *rest: Any, **limits: Any) -> Frame:
        return Frame(Kind.OFFER, {}, {}) if ended.is_set() else receive(link, *rest, **limits)

    monkeypatch.setattr(Link, "send", broken)
    monkeypatch.setattr(Link, "receive", endless)
    monkeypatch.setattr(worker, "_LAST_WORD_S", 0.05)
    with Server(hedging=False) as server:
        server.put(1)
        assert "is gone: the connection broke" in serve(server.pool.lease(seconds=60), computing()).reason
        server.pool.close()


def test_the_reason_names_what_came_and_what_was_expected() -> None:
    expected, weights = Expected(compute), {"layers.0.weight": weights_at(0)["layers.0.weight"]}
    right = compute(task_at(1), weights)
    faults = [expected.fault(task_at(1), weights, spoil(right)) for spoil in SPOILS]
    assert expected.fault(task_at(1), weights, right) is None
    assert faults[0] == "array z of float32 (1, 3), expected float32 (5, 3)"
    assert faults[2] == "array z of float16 (5, 3), expected float32 (5, 3)"
    assert faults[4] == "arrays [], expected ['z']"
    assert faults[5] == "arrays ['more', 'z'], expected ['z']"
    assert faults[6] == "gradients [], expected ['layers.0.weight']"


def test_a_result_that_is_not_finite_is_taken_where_this_process_finds_the_same() -> None:
    """As in training that diverges: the worker is not to blame, and the task is not done for ever."""
    outcomes: list[Done] = []
    tasks = Tasks(outcomes.append, hedging=False)  # type: ignore[arg-type]
    tasks.publish(0, weights_at(0))
    task = task_at(0)
    nan = Result({"z": np.full((5, 3), np.nan, np.float32)}, {})
    tasks.put(task, (0,))
    assert tasks.take("worker-1") is task
    tasks.doubt(task.key, "worker-1")
    assert tasks.take("local", local=True) is task
    assert tasks.commit(task.key, "local", nan)
    assert tasks.failures("worker-1") == 0
    assert [done.worker for done in outcomes] == ["local"]


def test_what_is_not_finite_is_not_doubted_where_the_inputs_were_not_either() -> None:
    task, weights = task_at(1), dict(weights_at(0))
    assert is_doubtful(task, weights)
    assert not is_doubtful(task, {**weights, "w": np.array([1.0, np.inf])})
    assert not is_doubtful(Task(task.key, 0, {"x": np.full((5, 4), np.nan)}), weights)
    assert is_doubtful(Task(task.key, 0, {**task.arrays, "y": np.array([np.nan])}), weights)
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
            by_torch, by_twin = Expected(TorchCompute(setup)), Expected(partial(twin, setup))
            do = TorchCompute(setup)

            def checked(task: Task, weights: Arrays) -> Result:
                result = do(task, weights)  # noqa: B023
                for expected in (by_torch, by_twin):  # noqa: B023
                    assert expected.fault(task, weights, result) is None
                return result

            Staged(checked, model, setup).run()


def test_a_run_whose_workers_spoil_their_results_ends_as_one_without_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    program = [sys.executable, str(Path(__file__).with_name("false_worker.py"))]
    monkeypatch.setattr(crew, "Processes", lambda adopt: Processes(program, adopt=adopt))
    for workers in ("processes", "inline"):
        siafu.train(
            siafu.load("karate"),
            method="pipeline",
            workers=workers,
            num_workers=2,
            intervals=4,
            epochs=20,
            patience=0,
            threads=1,
            out=tmp_path / workers,
            callbacks=Callbacks(say=said.append),
        )
    assert any("it was let go after 3 failures; the last: a " in text for text in said), said
    weights = [(tmp_path / workers / "model.safetensors").read_bytes() for workers in ("processes", "inline")]
    assert weights[0] == weights[1]
