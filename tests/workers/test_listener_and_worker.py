"""A listener and its workers: each task is committed once, whatever happens to workers."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stub_server import Server, assert_right
from stub_tasks import LONG_S, SETUP, compute, computing, expected, task_at, until, weights_at

from siafu.workers.connection import ConnectionLost, FrameConnection
from siafu.workers.lease import Lease
from siafu.workers.session import SessionLimits, WorkerUsage
from siafu.workers.setup import Setup
from siafu.workers.supervisor import LeaseError, LeaseSupervisor
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_frames import Frame, FrameKind
from siafu.workers.task_outcome import CompletedTask, FailedTask
from siafu.workers.worker import CannotServe, LeaseReport, _connect, serve
from siafu.workers.worker_processes import ProcessPlatform

HERE = Path(__file__).parent


def processes(pause_s: float = 0.0) -> ProcessPlatform:
    return ProcessPlatform([sys.executable, str(HERE / "worker_program.py"), str(pause_s)])


@pytest.fixture
def threads() -> Iterator[Callable[..., Future[LeaseReport]]]:
    """Workers in threads."""
    with ThreadPoolExecutor(8) as pool:
        yield lambda *given, **named: pool.submit(serve, *given, **named)


def served_by(server: Server, worker: str) -> WorkerUsage:
    return next(found for found in server.listener.usage if found.worker == worker)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_workers_do_the_tasks(threads: Callable[..., Future[LeaseReport]], tls: bool) -> None:
    with Server(tls=tls) as server:
        reports = [
            threads(server.listener.issue_lease(seconds=60), computing(), request_id=f"r{n}")
            for n in range(3)
        ]
        until(lambda: sum(bool(usage.report) for usage in server.listener.usage) == 3)
        tasks = server.put(50)
        assert_right(server.wait(50), tasks)
    found = [report.result(LONG_S) for report in reports]
    assert sum(report.tasks for report in found) == 50 + server.tasks.counts.dropped
    assert {report.reason for report in found} == {"the graph server said stop"}
    for usage in server.listener.usage:
        assert usage.ended == ""
        assert usage.left_s is not None
        assert usage.left_s >= usage.came_s
        assert usage.report["request_id"][0] == "r"
        assert usage.report["memory_mb"] > 1
        assert usage.report["init_s"] >= 0
        assert usage.bytes_in > 0
        assert usage.bytes_out > 0
        assert 0 < usage.compute_s == pytest.approx(0.001 * usage.tasks)
        assert 0 < usage.busy_s < LONG_S


def test_a_killed_and_a_stopped_worker_lose_no_task_and_commit_none_twice() -> None:
    counts: Counter[str] = Counter()
    hurt: dict[str, int] = {}

    def on_done(done: CompletedTask) -> None:
        counts[done.worker] += 1
        if counts[done.worker] == 3 and done.worker not in hurt and len(hurt) < 2:
            hurt[done.worker] = signal.SIGKILL if not hurt else signal.SIGSTOP
            os.kill(served_by(server, done.worker).report["pid"], hurt[done.worker])

    server = Server(on_done, hedging=False, limits=SessionLimits(silence_s=1.0))
    with server, LeaseSupervisor(processes(0.01)) as supervisor:
        supervisor.set_target(lambda: server.listener.issue_lease(seconds=60), 3)
        tasks = server.put(120)
        assert_right(server.wait(120), tasks)
        ends = [served_by(server, worker).ended for worker in hurt]
        server.listener.close()
    assert list(hurt.values()) == [signal.SIGKILL, signal.SIGSTOP]
    assert ends[0] in (
        "it closed the connection",
        "the connection broke: [Errno 104] Connection reset by peer",
    )
    assert ends[1] == "it was silent for 1.0 s"
    assert server.tasks.counts.relaunched >= 2
    assert "its process was killed by signal 9" in {ended.reason for ended in supervisor.take_ended()}
    assert len(server.listener.usage) >= 4  # the killed one was followed by another


def test_only_weights_of_the_stage_are_sent_and_only_once(
    threads: Callable[..., Future[LeaseReport]],
) -> None:
    sent: list[Arrays] = []

    def remember(task: Task, weights: Arrays) -> Result:
        sent.append(weights)
        return compute(task, weights)

    with Server() as server:
        threads(server.listener.issue_lease(seconds=60), lambda _: remember)
        server.put(10)
        server.wait(10)
        server.tasks.publish(1, weights_at(1))
        server.put(10, epoch=1, version=1)
        outcomes = server.wait(10)
    assert len({id(weights["layers.0.weight"]) for weights in sent}) == 2
    assert_right(outcomes, [task_at(n, epoch=e, version=e) for e in range(2) for n in range(10)])


def test_static_rows_are_sent_once_to_a_worker_that_caches_them(
    threads: Callable[..., Future[LeaseReport]],
) -> None:
    with Server() as server:
        threads(server.listener.issue_lease(seconds=60), computing())
        sent = []
        for epoch in range(3):
            server.put(4, epoch=epoch, rows=5000)
            outcomes = server.wait(4)
            sent.append(server.listener.usage[0].bytes_out)
    assert_right(outcomes, [task_at(n, epoch=e, rows=5000) for e in range(3) for n in range(4)])
    inputs = 4 * task_at(0, rows=5000).arrays["x"].nbytes
    assert sent[0] > inputs
    assert sent[2] - sent[1] < sent[1] - sent[0] + 100 < 4000  # heads of frames alone


def test_tasks_of_an_interval_go_to_the_worker_that_had_it(
    threads: Callable[..., Future[LeaseReport]],
) -> None:
    with Server(hedging=False, limits=SessionLimits(tasks=1)) as server:
        for _ in range(2):
            threads(server.listener.issue_lease(seconds=60), computing(0.005))
        until(lambda: sum(bool(usage.report) for usage in server.listener.usage) == 2)
        for epoch in range(6):
            server.put(8, epoch=epoch)
            outcomes = server.wait(8)
    by_interval: dict[int, Counter[str]] = {}
    for done in outcomes:
        assert isinstance(done, CompletedTask)
        by_interval.setdefault(done.task.key.interval, Counter())[done.worker] += 1
    stayed = sum(max(counts.values()) for counts in by_interval.values())
    assert stayed > 0.75 * len(outcomes)  # by chance about two in three


def test_the_next_task_is_sent_while_a_worker_computes(threads: Callable[..., Future[LeaseReport]]) -> None:
    held, go = threading.Event(), threading.Event()

    def hold(task: Task, weights: Arrays) -> Result:
        held.set()
        assert go.wait(LONG_S)
        return compute(task, weights)

    with Server() as server:
        threads(server.listener.issue_lease(seconds=60), lambda _: hold)
        server.put(3)
        assert held.wait(LONG_S)
        until(lambda: server.tasks.backlog == 1)
        go.set()
        server.wait(3)


def test_an_error_of_the_compute_ends_the_run_and_not_the_workers(
    threads: Callable[..., Future[LeaseReport]],
) -> None:
    with Server() as server:
        threads(server.listener.issue_lease(seconds=60), computing())
        threads(server.listener.issue_lease(seconds=60), computing())
        bad = task_at(-1)
        server.tasks.put(bad, (0,))
        server.put(5)
        outcomes = server.wait(6)
        (failed,) = [outcome for outcome in outcomes if isinstance(outcome, FailedTask)]
        assert failed.task is bad
        assert len(failed.reasons) == 3
        assert "ValueError: shapes (5,4) and (3,3) not aligned (stub_tasks.py:" in failed.reasons[0]
        assert failed.reasons[2].startswith("local: ValueError: shapes")
        until(lambda: server.listener.num_ready == 2)


def test_a_worker_leaves_when_its_lease_ends_and_begins_nothing_it_could_not_end(
    threads: Callable[..., Future[LeaseReport]],
) -> None:
    with Server() as server:
        short = threads(server.listener.issue_lease(seconds=1.6), computing(0.1))
        server.put(40)
        assert short.result(LONG_S).tasks < 10
        threads(server.listener.issue_lease(seconds=60), computing())
        assert_right(server.wait(40), [task_at(interval) for interval in range(40)])
        assert server.tasks.counts.relaunched == 0


def test_workers_can_be_dismissed(threads: Callable[..., Future[LeaseReport]]) -> None:
    with Server() as server:
        reports = [threads(server.listener.issue_lease(seconds=60), computing()) for _ in range(2)]
        until(lambda: server.listener.num_ready == 2)
        assert server.listener.dismiss(1) == 1
        (done,) = wait(reports, LONG_S, FIRST_COMPLETED).done
        assert done.result().reason == "the graph server said stop"
        server.put(10, epoch=1)
        server.wait(10)
        until(lambda: server.listener.num_ready == 1)


def test_a_worker_that_cannot_do_the_tensor_work_says_why(
    threads: Callable[..., Future[LeaseReport]],
) -> None:
    def refuse(setup: Setup) -> Any:
        raise NotImplementedError(f"there is no NumPy code for {setup.task}")

    with Server() as server:
        report = threads(server.listener.issue_lease(seconds=60), refuse)
        with pytest.raises(CannotServe, match="NotImplementedError: there is no NumPy code for classes"):
            report.result(LONG_S)
    (usage,) = server.listener.usage
    assert usage.ended.startswith("it cannot serve: NotImplementedError: there is no NumPy code for classes")


def test_a_task_whose_weights_were_retired_is_not_sent(threads: Callable[..., Future[LeaseReport]]) -> None:
    with Server() as server:
        threads(server.listener.issue_lease(seconds=60), computing())
        server.tasks.put(task_at(0, version=7), (0,))
        (failed,) = server.wait(1)
        assert isinstance(failed, FailedTask)
        assert "version 7 of the weights was retired" in failed.reasons[0]


def test_a_worker_ends_when_the_server_is_gone(threads: Callable[..., Future[LeaseReport]]) -> None:
    with Server(limits=SessionLimits(close_s=0.0)) as server:
        report = threads(server.listener.issue_lease(seconds=60), computing())
        server.put(1)
        server.wait(1)
        for session in list(server.listener._sessions.values()):
            session.connection.shut()
        assert report.result(LONG_S).reason.startswith("the graph server is gone")


# A worker that does not keep to the protocol


class ManualWorker:
    """The worker's end of a connection, driven by the test."""

    def __init__(self, lease: Lease) -> None:
        self.connection = _connect(lease)
        assert Setup.from_json(self.receive(FrameKind.SETUP).head["setup"]) == SETUP
        self.connection.send(FrameKind.READY, {})

    def receive(self, kind: FrameKind) -> Frame:
        frame = self.connection.receive(silence_s=LONG_S)
        assert frame.kind == kind
        return frame

    def take(self) -> dict[str, Any]:
        key = self.receive(FrameKind.OFFER).head["key"]
        self.connection.send(FrameKind.ACCEPT, {"key": key, "weights": True, "static": True})
        assert self.receive(FrameKind.TASK).head["key"] == key
        return {"key": key}

    def assert_dropped(self) -> None:
        with suppress(ConnectionLost):
            while True:
                self.connection.receive(silence_s=LONG_S)


def test_a_hundred_workers_take_no_thread_of_their_own() -> None:
    with Server(limits=SessionLimits(silence_s=LONG_S, tasks=1)) as server:
        before = threading.active_count()
        manual_workers = [ManualWorker(server.listener.issue_lease(seconds=60)) for _ in range(100)]
        until(lambda: server.listener.num_ready == 100)
        until(lambda: threading.active_count() == before)
        tasks = {task.key: task for task in server.put(300)}
        for _ in range(3):
            for key, manual in [(tuple(manual.take()["key"]), manual) for manual in manual_workers]:
                result = expected(tasks[key])
                head = {"key": list(key), "seconds": 0.0}
                given = {"rows/z": result.arrays["z"]} | {f"grads/{n}": g for n, g in result.grads.items()}
                manual.connection.send(FrameKind.RESULT, head, given)
        assert_right(server.wait(300), list(tasks.values()))
        for manual in manual_workers:
            manual.connection.close()


@pytest.fixture
def server(
    threads: Callable[..., Future[LeaseReport]],
) -> Iterator[Server]:  # and is closed before they are joined
    with Server(limits=SessionLimits(silence_s=1.2, frame_bytes=10_000)) as server:
        yield server


@pytest.fixture
def manual(server: Server) -> Iterator[ManualWorker]:
    manual = ManualWorker(server.listener.issue_lease(seconds=60))
    with closing(manual.connection):
        yield manual


def assert_goes_on(server: Server, tasks: list[Task], threads: Callable[..., Future[LeaseReport]]) -> None:
    threads(server.listener.issue_lease(seconds=60), computing())
    assert_right(server.wait(len(tasks)), tasks)


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda connection, task: None, "it was silent for 1.2 s"),
        (lambda connection, task: connection.shut(), "it closed the connection"),
        (
            lambda connection, task: connection._stream._sock.sendall(b"\x00" * 99),
            "a frame begins with b'\\x00\\x00\\x00\\x00'",
        ),
        (
            lambda connection, task: connection.send(
                FrameKind.RESULT, {**task, "seconds": 0.0}, {"rows/z": np.zeros(5000)}
            ),
            "expected at most 10000",
        ),
        (
            lambda connection, task: connection.send(FrameKind.RESULT, task),
            "a RESULT frame has seconds None, expected float",
        ),
        (
            lambda connection, task: connection.send(FrameKind.RESULT, {"key": [9, 0, 0, 9], "seconds": 0.0}),
            "a RESULT frame of task [9, 0, 0, 9], which it was not given",
        ),
        (
            lambda connection, task: connection.send(FrameKind.RESULT, {"key": [0, 0, 5, 0]}),
            "a RESULT frame is about task [0, 0, 5, 0], which is none",
        ),
        (lambda connection, task: connection.send(FrameKind.SETUP), "a SETUP frame, which no worker sends"),
        (
            lambda connection, task: connection.send(FrameKind.FAILED, task),
            "a FAILED frame has reason None, expected str",
        ),
        (
            lambda connection, task: connection.send(
                FrameKind.ACCEPT, {"key": [9, 0, 0, 9], "weights": True, "static": True}
            ),
            "an ACCEPT frame of a task that it was not offered",
        ),
        (
            lambda connection, task: connection.send(FrameKind.DECLINE, {"key": [9, 0, 0, 9]}),
            "a DECLINE frame of task [9, 0, 0, 9], which it was not given",
        ),
    ],
    ids=[
        "silent",
        "gone",
        "noise",
        "oversize",
        "no seconds",
        "not its own",
        "no key",
        "no worker's",
        "why",
        "accepts another",
        "declines another",
    ],
)
def test_a_worker_that_breaks_the_rules_is_lost_and_the_run_goes_on(
    server: Server,
    manual: ManualWorker,
    threads: Callable[..., Future[LeaseReport]],
    say: Callable[[FrameConnection, dict[str, Any]], None],
    reason: str,
) -> None:
    tasks = server.put(4)
    task = manual.take()
    say(manual.connection, task)
    manual.assert_dropped()
    assert_goes_on(server, tasks, threads)
    assert reason in served_by(server, "worker-1").ended


def test_a_result_that_was_damaged_on_its_way_is_not_committed(
    server: Server,
    manual: ManualWorker,
    threads: Callable[..., Future[LeaseReport]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = server.put(1)
    task = manual.take()
    write = manual.connection._write

    def damage(pieces: list[memoryview]) -> None:
        write([*pieces[:-1], memoryview(bytes(pieces[-1])[:-1] + b"\x07")])

    monkeypatch.setattr(manual.connection, "_write", damage)
    manual.connection.send(FrameKind.RESULT, {**task, "seconds": 0.0}, {"rows/z": np.zeros(4)})
    manual.assert_dropped()
    assert_goes_on(server, tasks, threads)
    assert "the checksum of a frame's payload is wrong" in served_by(server, "worker-1").ended


def test_an_offer_that_was_declined_is_made_to_another(
    server: Server, manual: ManualWorker, threads: Callable[..., Future[LeaseReport]]
) -> None:
    tasks = server.put(2)
    key = manual.receive(FrameKind.OFFER).head["key"]
    manual.connection.send(FrameKind.DECLINE, {"key": key, "reason": "the lease ends"})
    manual.receive(FrameKind.STOP)
    manual.connection.send(FrameKind.CLOSE, {"reason": "the lease ends"})
    manual.assert_dropped()
    assert_goes_on(server, tasks, threads)
    assert server.tasks.counts.relaunched == 0
    assert served_by(server, "worker-1").ended == ""


# ProcessPlatform


def test_the_worker_process_starts_without_torch() -> None:
    script = "import sys, siafu.workers.worker, siafu.workers.handler\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LONG_S)


def test_a_worker_process_that_cannot_serve_says_why() -> None:
    lease = Lease("run", "worker-1", "127.0.0.1", 9, "00", time.time() + 60)  # where nobody listens
    with pytest.raises(
        LeaseError, match=r"the graph server at 127\.0\.0\.1:9: \[Errno 111\] Connection refused"
    ):
        ProcessPlatform().run_worker(lease)
    with pytest.raises(LeaseError, match=r"no process could be started: .*nonesuch"):
        ProcessPlatform(["/nonesuch"]).run_worker(lease)


def test_worker_processes_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(
        "import sys, time\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from stub_server import Server\n"
        "from siafu.workers.supervisor import LeaseSupervisor\n"
        "from siafu.workers.worker_processes import ProcessPlatform\n"
        "server, platform = Server(), ProcessPlatform()\n"
        "supervisor = LeaseSupervisor(platform)\n"
        "supervisor.set_target(lambda: server.listener.issue_lease(seconds=60), 1)\n"
        "while not platform.pids: time.sleep(0.001)\n"
        "print(platform.pids[0], flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        worker = int(rank.stdout.readline())
        descriptor = os.pidfd_open(worker)
        rank.kill()
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(1000 * LONG_S), "the worker outlives its rank"
    finally:
        os.close(descriptor)
