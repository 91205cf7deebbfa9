"""A pool and workers that dial in: tasks are done once each, whatever becomes of the workers."""

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
from known_server import Server, assert_right
from known_tasks import LONG_S, SETUP, compute, computing, expected, task_at, until, weights_at

from siafu.workers.connection import Link, LinkLost
from siafu.workers.lease import Lease
from siafu.workers.session import Limits, Served
from siafu.workers.setup import Setup
from siafu.workers.supervisor import Launcher, LeaseError
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_frames import Frame, Kind
from siafu.workers.task_queue import Done, Failed
from siafu.workers.worker import CannotServe, Report, _dial, serve
from siafu.workers.worker_processes import Processes

HERE = Path(__file__).parent


def processes(pause_s: float = 0.0) -> Processes:
    return Processes([sys.executable, str(HERE / "worker_program.py"), str(pause_s)])


@pytest.fixture
def threads() -> Iterator[Callable[..., Future[Report]]]:
    """Workers in threads, which serve a lease."""
    with ThreadPoolExecutor(8) as pool:
        yield lambda *given, **named: pool.submit(serve, *given, **named)


def served_by(server: Server, worker: str) -> Served:
    return next(found for found in server.pool.served if found.worker == worker)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_workers_do_the_tasks(threads: Callable[..., Future[Report]], tls: bool) -> None:
    with Server(tls=tls) as server:
        reports = [threads(server.pool.lease(seconds=60), computing(), request_id=f"r{n}") for n in range(3)]
        until(lambda: sum(bool(served.report) for served in server.pool.served) == 3)
        tasks = server.put(50)
        assert_right(server.wait(50), tasks)
    found = [report.result(LONG_S) for report in reports]
    assert sum(report.tasks for report in found) == 50 + server.tasks.counts.dropped
    assert {report.reason for report in found} == {"the graph server said stop"}
    for served in server.pool.served:
        assert served.ended == ""
        assert served.left_s is not None
        assert served.left_s >= served.came_s
        assert served.report["request_id"][0] == "r"
        assert served.report["memory_mb"] > 1
        assert served.report["init_s"] >= 0
        assert served.bytes_in > 0
        assert served.bytes_out > 0
        assert 0 < served.compute_s == pytest.approx(0.001 * served.tasks)
        assert 0 < served.busy_s < LONG_S


def test_a_killed_and_a_stopped_worker_cost_no_task_and_count_none_twice() -> None:
    counts: Counter[str] = Counter()
    hurt: dict[str, int] = {}

    def on_done(done: Done) -> None:
        counts[done.worker] += 1
        if counts[done.worker] == 3 and done.worker not in hurt and len(hurt) < 2:
            hurt[done.worker] = signal.SIGKILL if not hurt else signal.SIGSTOP
            os.kill(served_by(server, done.worker).report["pid"], hurt[done.worker])

    server = Server(on_done, hedging=False, limits=Limits(silence_s=1.0))
    with server, Launcher(processes(0.01)) as launcher:
        launcher.start(lambda: server.pool.lease(seconds=60), 3)
        tasks = server.put(120)
        assert_right(server.wait(120), tasks)
        ends = [served_by(server, worker).ended for worker in hurt]
        server.pool.close()
    assert list(hurt.values()) == [signal.SIGKILL, signal.SIGSTOP]
    assert ends[0] in (
        "it closed the connection",
        "the connection broke: [Errno 104] Connection reset by peer",
    )
    assert ends[1] == "it was silent for 1.0 s"
    assert server.tasks.counts.relaunched >= 2
    assert "its process was killed by signal 9" in {ended.reason for ended in launcher.ended()}
    assert len(server.pool.served) >= 4  # the killed one was followed by another


def test_weights_travel_once_and_those_of_the_stage_alone(threads: Callable[..., Future[Report]]) -> None:
    sent: list[Arrays] = []

    def remember(task: Task, weights: Arrays) -> Result:
        sent.append(weights)
        return compute(task, weights)

    with Server() as server:
        threads(server.pool.lease(seconds=60), lambda _: remember)
        server.put(10)
        server.wait(10)
        server.tasks.publish(1, weights_at(1))
        server.put(10, epoch=1, version=1)
        outcomes = server.wait(10)
    assert len({id(weights["layers.0.weight"]) for weights in sent}) == 2
    assert_right(outcomes, [task_at(n, epoch=e, version=e) for e in range(2) for n in range(10)])


def test_rows_that_never_change_travel_once_to_who_keeps_them(threads: Callable[..., Future[Report]]) -> None:
    with Server() as server:
        threads(server.pool.lease(seconds=60), computing())
        sent = []
        for epoch in range(3):
            server.put(4, epoch=epoch, rows=5000)
            outcomes = server.wait(4)
            sent.append(server.pool.served[0].bytes_out)
    assert_right(outcomes, [task_at(n, epoch=e, rows=5000) for e in range(3) for n in range(4)])
    inputs = 4 * task_at(0, rows=5000).arrays["x"].nbytes
    assert sent[0] > inputs
    assert sent[2] - sent[1] < sent[1] - sent[0] + 100 < 4000  # heads of frames alone


def test_tasks_of_an_interval_go_to_the_worker_that_had_it(threads: Callable[..., Future[Report]]) -> None:
    with Server(hedging=False, limits=Limits(tasks=1)) as server:
        for _ in range(2):
            threads(server.pool.lease(seconds=60), computing(0.005))
        until(lambda: sum(bool(served.report) for served in server.pool.served) == 2)
        for epoch in range(6):
            server.put(8, epoch=epoch)
            outcomes = server.wait(8)
    by_interval: dict[int, Counter[str]] = {}
    for done in outcomes:
        assert isinstance(done, Done)
        by_interval.setdefault(done.task.key.interval, Counter())[done.worker] += 1
    stayed = sum(max(counts.values()) for counts in by_interval.values())
    assert stayed > 0.75 * len(outcomes)  # by chance about two in three


def test_the_next_task_travels_while_a_worker_computes(threads: Callable[..., Future[Report]]) -> None:
    held, go = threading.Event(), threading.Event()

    def hold(task: Task, weights: Arrays) -> Result:
        held.set()
        assert go.wait(LONG_S)
        return compute(task, weights)

    with Server() as server:
        threads(server.pool.lease(seconds=60), lambda _: hold)
        server.put(3)
        assert held.wait(LONG_S)
        until(lambda: server.tasks.backlog == 1)
        go.set()
        server.wait(3)


def test_an_error_of_the_compute_ends_the_run_and_not_the_workers(
    threads: Callable[..., Future[Report]],
) -> None:
    with Server() as server:
        threads(server.pool.lease(seconds=60), computing())
        threads(server.pool.lease(seconds=60), computing())
        bad = task_at(-1)
        server.tasks.put(bad, (0,))
        server.put(5)
        outcomes = server.wait(6)
        (failed,) = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
        assert failed.task is bad
        assert len(failed.reasons) == 3
        assert "ValueError: shapes (5,4) and (3,3) not aligned (known_tasks.py:" in failed.reasons[0]
        assert failed.reasons[2].startswith("local: ValueError: shapes")
        until(lambda: server.pool.present == 2)


def test_a_worker_leaves_when_its_lease_ends_and_begins_nothing_it_could_not_end(
    threads: Callable[..., Future[Report]],
) -> None:
    with Server() as server:
        short = threads(server.pool.lease(seconds=1.6), computing(0.1))
        server.put(40)
        assert short.result(LONG_S).tasks < 10
        threads(server.pool.lease(seconds=60), computing())
        assert_right(server.wait(40), [task_at(interval) for interval in range(40)])
        assert server.tasks.counts.relaunched == 0


def test_workers_can_be_sent_away(threads: Callable[..., Future[Report]]) -> None:
    with Server() as server:
        reports = [threads(server.pool.lease(seconds=60), computing()) for _ in range(2)]
        until(lambda: server.pool.present == 2)
        assert server.pool.dismiss(1) == 1
        (done,) = wait(reports, LONG_S, FIRST_COMPLETED).done
        assert done.result().reason == "the graph server said stop"
        server.put(10, epoch=1)
        server.wait(10)
        until(lambda: server.pool.present == 1)


def test_a_worker_that_cannot_do_the_tensor_work_says_why(threads: Callable[..., Future[Report]]) -> None:
    def refuse(setup: Setup) -> Any:
        raise NotImplementedError(f"there is no twin of {setup.task}")

    with Server() as server:
        report = threads(server.pool.lease(seconds=60), refuse)
        with pytest.raises(CannotServe, match="NotImplementedError: there is no twin of classes"):
            report.result(LONG_S)
    (served,) = server.pool.served
    assert served.ended.startswith("it cannot serve: NotImplementedError: there is no twin of classes")


def test_a_task_whose_weights_were_retired_is_not_sent(threads: Callable[..., Future[Report]]) -> None:
    with Server() as server:
        threads(server.pool.lease(seconds=60), computing())
        server.tasks.put(task_at(0, version=7), (0,))
        (failed,) = server.wait(1)
        assert isinstance(failed, Failed)
        assert "version 7 of the weights was retired" in failed.reasons[0]


def test_a_worker_ends_when_the_server_is_gone(threads: Callable[..., Future[Report]]) -> None:
    with Server(limits=Limits(close_s=0.0)) as server:
        report = threads(server.pool.lease(seconds=60), computing())
        server.put(1)
        server.wait(1)
        for visit in list(server.pool._visits.values()):
            visit.link.shut()
        assert report.result(LONG_S).reason.startswith("the graph server is gone")


# A worker that does not keep to the protocol


class Odd:
    """The worker's end of a connection, driven by hand."""

    def __init__(self, lease: Lease) -> None:
        self.link = _dial(lease)
        assert Setup.from_json(self.receive(Kind.SETUP).head["setup"]) == SETUP
        self.link.send(Kind.READY, {})

    def receive(self, kind: Kind) -> Frame:
        frame = self.link.receive(silence_s=LONG_S)
        assert frame.kind == kind
        return frame

    def take(self) -> dict[str, Any]:
        key = self.receive(Kind.OFFER).head["key"]
        self.link.send(Kind.ACCEPT, {"key": key, "weights": True, "static": True})
        assert self.receive(Kind.TASK).head["key"] == key
        return {"key": key}

    def assert_dropped(self) -> None:
        with suppress(LinkLost):
            while True:
                self.link.receive(silence_s=LONG_S)


def test_a_hundred_workers_take_no_thread_of_their_own() -> None:
    with Server(limits=Limits(silence_s=LONG_S, tasks=1)) as server:
        before = threading.active_count()
        odds = [Odd(server.pool.lease(seconds=60)) for _ in range(100)]
        until(lambda: server.pool.present == 100)
        until(lambda: threading.active_count() == before)
        tasks = {task.key: task for task in server.put(300)}
        for _ in range(3):
            for key, odd in [(tuple(odd.take()["key"]), odd) for odd in odds]:
                result = expected(tasks[key])
                head = {"key": list(key), "seconds": 0.0}
                given = {"rows/z": result.arrays["z"]} | {f"grads/{n}": g for n, g in result.grads.items()}
                odd.link.send(Kind.RESULT, head, given)
        assert_right(server.wait(300), list(tasks.values()))
        for odd in odds:
            odd.link.close()


@pytest.fixture
def server(
    threads: Callable[..., Future[Report]],
) -> Iterator[Server]:  # and is closed before they are joined
    with Server(limits=Limits(silence_s=1.2, frame_bytes=10_000)) as server:
        yield server


@pytest.fixture
def odd(server: Server) -> Iterator[Odd]:
    odd = Odd(server.pool.lease(seconds=60))
    with closing(odd.link):
        yield odd


def assert_goes_on(server: Server, tasks: list[Task], threads: Callable[..., Future[Report]]) -> None:
    threads(server.pool.lease(seconds=60), computing())
    assert_right(server.wait(len(tasks)), tasks)


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda link, task: None, "it was silent for 1.2 s"),
        (lambda link, task: link.shut(), "it closed the connection"),
        (
            lambda link, task: link._stream._sock.sendall(b"\x00" * 99),
            "a frame begins with b'\\x00\\x00\\x00\\x00'",
        ),
        (
            lambda link, task: link.send(Kind.RESULT, {**task, "seconds": 0.0}, {"rows/z": np.zeros(5000)}),
            "expected at most 10000",
        ),
        (lambda link, task: link.send(Kind.RESULT, task), "a RESULT frame has seconds None, expected float"),
        (
            lambda link, task: link.send(Kind.RESULT, {"key": [9, 0, 0, 9], "seconds": 0.0}),
            "a RESULT frame of task [9, 0, 0, 9], which it was not given",
        ),
        (
            lambda link, task: link.send(Kind.RESULT, {"key": [0, 0, 5, 0]}),
            "a RESULT frame is about task [0, 0, 5, 0], which is none",
        ),
        (lambda link, task: link.send(Kind.SETUP), "a SETUP frame, which no worker sends"),
        (lambda link, task: link.send(Kind.FAILED, task), "a FAILED frame has reason None, expected str"),
        (
            lambda link, task: link.send(Kind.ACCEPT, {"key": [9, 0, 0, 9], "weights": True, "static": True}),
            "an ACCEPT frame of a task that it was not offered",
        ),
        (
            lambda link, task: link.send(Kind.DECLINE, {"key": [9, 0, 0, 9]}),
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
    odd: Odd,
    threads: Callable[..., Future[Report]],
    say: Callable[[Link, dict[str, Any]], None],
    reason: str,
) -> None:
    tasks = server.put(4)
    task = odd.take()
    say(odd.link, task)
    odd.assert_dropped()
    assert_goes_on(server, tasks, threads)
    assert reason in served_by(server, "worker-1").ended


def test_a_result_that_was_damaged_on_its_way_is_not_committed(
    server: Server, odd: Odd, threads: Callable[..., Future[Report]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = server.put(1)
    task = odd.take()
    write = odd.link._write

    def damage(pieces: list[memoryview]) -> None:
        write([*pieces[:-1], memoryview(bytes(pieces[-1])[:-1] + b"\x07")])

    monkeypatch.setattr(odd.link, "_write", damage)
    odd.link.send(Kind.RESULT, {**task, "seconds": 0.0}, {"rows/z": np.zeros(4)})
    odd.assert_dropped()
    assert_goes_on(server, tasks, threads)
    assert "the checksum of a frame's payload is wrong" in served_by(server, "worker-1").ended


def test_an_offer_that_was_declined_is_made_to_another(
    server: Server, odd: Odd, threads: Callable[..., Future[Report]]
) -> None:
    tasks = server.put(2)
    key = odd.receive(Kind.OFFER).head["key"]
    odd.link.send(Kind.DECLINE, {"key": key, "reason": "the lease ends"})
    odd.receive(Kind.STOP)
    odd.link.send(Kind.BYE, {"reason": "the lease ends"})
    odd.assert_dropped()
    assert_goes_on(server, tasks, threads)
    assert server.tasks.counts.relaunched == 0
    assert served_by(server, "worker-1").ended == ""


# Processes


def test_the_worker_process_starts_without_torch() -> None:
    script = "import sys, siafu.workers.worker, siafu.workers.handler\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LONG_S)


def test_a_worker_process_that_cannot_serve_says_why() -> None:
    lease = Lease("run", "worker-1", "127.0.0.1", 9, "00", time.time() + 60)  # where nobody listens
    with pytest.raises(
        LeaseError, match=r"the graph server at 127\.0\.0\.1:9: \[Errno 111\] Connection refused"
    ):
        Processes().hold(lease)
    with pytest.raises(LeaseError, match=r"no process could be started: .*nonesuch"):
        Processes(["/nonesuch"]).hold(lease)


def test_worker_processes_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(
        "import sys, time\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from known_server import Server\n"
        "from siafu.workers.supervisor import Launcher\n"
        "from siafu.workers.worker_processes import Processes\n"
        "server, holder = Server(), Processes()\n"
        "launcher = Launcher(holder)\n"
        "launcher.start(lambda: server.pool.lease(seconds=60), 1)\n"
        "while not holder.pids: time.sleep(0.001)\n"
        "print(holder.pids[0], flush=True)\n"
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
