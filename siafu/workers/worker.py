"""The worker: it connects to the graph server of its lease and computes tasks until either side ends the lease.

It holds no graph, and caches weights and rows that never change. It needs the standard library, NumPy and xxhash, and
torch if the lease asks for it. It opens no file that a server names. A worker process that a rank started on its own
host (:class:`InheritedSockets`) may map memory whose descriptors the rank handed it; other workers share no memory.
``python -m siafu.workers.worker`` reads a lease from standard input.
"""

import mmap
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple

from siafu.wire.frames import FrameError
from siafu.wire.tls import WrongCertificate, dial
from siafu.workers.admission import AdmissionRefused, join_run
from siafu.workers.connection import ConnectionLost, FrameConnection
from siafu.workers.lease import Backend, Lease
from siafu.workers.lru_cache import LruCache
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import DescriptorReceiver
from siafu.workers.stages import static_rows
from siafu.workers.task import Arrays, ComputeFn, Direction, Key, Task
from siafu.workers.task_frames import Frame, FrameKind
from siafu.workers.task_messages import pack_result, read_field, read_key, read_slot, unpack_task

HEARTBEAT_S = 0.5
CONNECT_S = 10.0
_PR_SET_PDEATHSIG = 1
MARGIN_S = 1.0  # a worker leaves so long before its deadline
_LAST_FRAMES_S = 1.0  # to read frames that the server sent before the connection broke


class CannotServe(Exception):
    """A worker was refused or dismissed, or cannot do what its server asks; the text gives the reason."""


class InheritedSockets(NamedTuple):
    """The sockets that a worker process inherits from the rank that started it.

    Attributes:
        connection: to the graph server; the worker need not dial.
        memory: over which the rank hands descriptors of shared memory.
    """

    connection: socket.socket
    memory: socket.socket


@dataclass(frozen=True)
class LeaseReport:
    """The work of a worker under a lease; ``reason`` says why the lease ended."""

    worker: str
    tasks: int
    seconds: float
    reason: str


def serve(
    lease: Lease,
    compute_factory: Callable[[Setup], ComputeFn] | None = None,
    *,
    request_id: str = "",
    fresh: bool = True,
    inherited: InheritedSockets | None = None,
) -> LeaseReport:
    """Compute tasks until the lease ends, the server stops the worker, or is gone; raises CannotServe.

    With ``fresh``, this process was started for its first lease, so the start of the process counts as part of it.
    """
    began_s = time.monotonic()
    try:
        connection = _connect(lease, inherited)
    except (OSError, FrameError, AdmissionRefused, WrongCertificate) as error:
        raise CannotServe(f"the graph server at {lease.host}:{lease.port}: {error}") from error
    receiver = None if inherited is None else DescriptorReceiver(inherited.memory)
    init_s = _process_age_s() if fresh else 0.0
    worker = _Worker(lease, connection, receiver, request_id=request_id, init_s=init_s)
    try:
        reason = worker.run(compute_factory or partial(_load_backend, lease.backend))
    finally:
        worker.end()
    return LeaseReport(lease.worker, worker.num_tasks, time.monotonic() - began_s, reason)


def _connect(lease: Lease, inherited: InheritedSockets | None = None) -> FrameConnection:
    if inherited is not None:
        sock = inherited.connection
    else:
        sock = socket.create_connection((lease.host, lease.port), timeout=CONNECT_S)
    try:
        binding = b""
        if lease.fingerprint is not None and inherited is None:
            sock, binding = dial(sock, fingerprint=bytes.fromhex(lease.fingerprint))
        join_run(sock, lease, binding=binding, wait_s=CONNECT_S)
        return FrameConnection(sock)
    except BaseException:
        sock.close()
        raise


def _load_backend(backend: Backend, setup: Setup) -> ComputeFn:
    if backend == "torch":
        from siafu.interpreter import quick_imports

        with quick_imports():
            from siafu.workers.torch_compute import TorchCompute
        return TorchCompute(setup)
    from siafu.workers.numpy_backend.compute import compute as compute_numpy

    return partial(compute_numpy, setup)


class _Job(NamedTuple):
    """A task, the weights it reads, and the slot for its result, if there is one."""

    task: Task
    weights: Arrays
    slot: mmap.mmap | None


class _End(NamedTuple):
    """The end of a lease: its reason, and whether the server is at fault or dismissed this worker."""

    reason: str
    failed: bool = False


class _Cached(NamedTuple):
    """The arrays of an offered task that are in the cache; None if they must be sent."""

    weights: Arrays | None
    static: Arrays | None


class _Worker:
    """The service of one lease. This thread computes, a second one reads ahead, a third one sends heartbeats."""

    def __init__(
        self,
        lease: Lease,
        connection: FrameConnection,
        receiver: DescriptorReceiver | None,
        *,
        request_id: str,
        init_s: float,
    ) -> None:
        self._lease, self._connection, self._receiver = lease, connection, receiver
        self._request_id, self._init_s = request_id, init_s
        self._jobs: queue.SimpleQueue[_Job | _End] = queue.SimpleQueue()
        self._weights, self._static = LruCache(), LruCache()
        self._accepted: dict[Key, _Cached] = {}
        self._max_s: dict[tuple[int, Direction], float] = {}  # the longest task so far, by kind
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.num_tasks = 0

    def run(self, compute_factory: Callable[[Setup], ComputeFn]) -> str:
        """Serve to the end; returns its reason, or raises CannotServe."""
        reader = None
        try:
            self._start_thread(self._send_heartbeats)
            compute = self._set_up(compute_factory)
            reader = self._start_thread(self._read)
            while not isinstance(job := self._next_job(), _End):
                self._compute(compute, job)
            with suppress(ConnectionLost):
                self._connection.send(
                    FrameKind.CLOSE, {"reason": job.reason, "failed": job.failed, **_memory_usage()}
                )
        except ConnectionLost as lost:
            job = self._end_of(reader) or _End(f"the graph server is gone: {lost}")
        if job.failed:
            raise CannotServe(job.reason)
        return job.reason

    def end(self) -> None:
        """End all threads and close the connection."""
        self._over.set()
        self._connection.shut()
        for thread in self._threads:
            thread.join()
        self._connection.close()
        if self._receiver is not None:
            self._receiver.close()

    def _end_of(self, reader: threading.Thread | None) -> _End | None:
        """Return the end that the reader found, if the connection broke while this thread sent a result."""
        if reader is None:
            return None
        reader.join(_LAST_FRAMES_S)
        while not self._jobs.empty():
            if isinstance(job := self._jobs.get_nowait(), _End):
                return job
        return None

    def _start_thread(self, target: Callable[[], None]) -> threading.Thread:
        self._threads.append(threading.Thread(target=target, name="siafu-worker", daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def _set_up(self, compute_factory: Callable[[Setup], ComputeFn]) -> ComputeFn:
        """Receive the setup and load the backend."""
        try:
            frame = self._connection.receive(silence_s=CONNECT_S)
            if frame.kind != FrameKind.SETUP:
                raise FrameError(f"a {frame.kind.name} frame, expected SETUP")
            self._setup = Setup.from_json(read_field(frame, "setup", str))
            compute = compute_factory(self._setup)
        except ConnectionLost:
            raise
        except Exception as error:
            with suppress(ConnectionLost):
                self._connection.send(FrameKind.CLOSE, {"reason": _describe(error)})
            raise CannotServe(_describe(error)) from error
        report = {"init_s": self._init_s, "request_id": self._request_id, "backend": self._lease.backend}
        host = {"host": socket.gethostname(), "pid": os.getpid()}
        self._connection.send(FrameKind.READY, {**report, **host, **_memory_usage()})
        return compute

    def _next_job(self) -> _Job | _End:
        """Return the next task, or the end."""
        left_s = self._lease.deadline_s - MARGIN_S - time.time()
        try:
            return self._jobs.get(timeout=max(0.0, left_s))
        except queue.Empty:
            return _End("the lease ended")

    def _compute(self, compute: ComputeFn, job: _Job) -> None:
        began_s, task = time.perf_counter(), job.task
        try:
            head, arrays = pack_result(task, compute(task, job.weights), job.slot)
            self._connection.send(FrameKind.RESULT, head, arrays)
        except ConnectionLost:
            raise
        except Exception as error:
            self._connection.send(FrameKind.FAILED, {"key": list(task.key), "reason": _describe(error)})
        kind = (task.key.stage, task.key.direction)
        self._max_s[kind] = max(self._max_s.get(kind, 0.0), time.perf_counter() - began_s)
        self.num_tasks += 1

    def _send_heartbeats(self) -> None:
        with suppress(ConnectionLost):
            while not self._over.wait(HEARTBEAT_S):
                self._connection.send(FrameKind.HEARTBEAT)

    def _read(self) -> None:
        """Handle the server's frames. Any error here ends the lease, so that its heartbeats end too."""
        try:
            end = self._handle_frames()
        except ConnectionLost as lost:
            end = self._stop_reason() or _End(f"the graph server is gone: {lost}")
        except FrameError as error:
            end = _End(f"the graph server sent what this worker cannot use: {error}", failed=True)
        except Exception as error:
            end = _End(f"the graph server sent what this worker cannot use: {_describe(error)}", failed=True)
        self._jobs.put(end)

    def _stop_reason(self) -> _End | None:
        """Return the reason that the server gave before the connection broke while this thread sent something."""
        until_s = time.monotonic() + _LAST_FRAMES_S
        with suppress(ConnectionLost, FrameError):
            while time.monotonic() < until_s:
                if (frame := self._connection.receive(until_s=until_s)).kind == FrameKind.STOP:
                    return _end_in(frame)
        return None

    def _handle_frames(self) -> _End:
        while True:
            frame = self._connection.receive()
            match frame.kind:
                case FrameKind.OFFER:
                    self._on_offer(frame)
                case FrameKind.TASK:
                    self._on_task(frame)
                case FrameKind.STOP:
                    return _end_in(frame)
                case _:
                    raise FrameError(f"a {frame.kind.name} frame, which no server sends")

    def _on_offer(self, frame: Frame) -> None:
        """Accept an offered task, unless it cannot be computed in time."""
        key, version = read_key(frame), read_field(frame, "version", int)
        if self._decline_late(key):
            return
        cached = _Cached(self._weights.get((version, key.stage)), self._static.get(_static_key(key)))
        self._accepted[key] = cached
        lacks = {"weights": cached.weights is None, "static": cached.static is None}
        self._connection.send(FrameKind.ACCEPT, {"key": list(key), **lacks})

    def _decline_late(self, key: Key) -> bool:
        """Decline a task that cannot be computed before the lease ends; returns whether it was declined."""
        if time.time() + self._expected_s(key) <= self._lease.deadline_s - MARGIN_S:
            return False
        self._connection.send(FrameKind.DECLINE, {"key": list(key), "reason": "the lease ends"})
        return True

    def _expected_s(self, key: Key) -> float:
        """Estimate the seconds until such a task would be done, after the one that is being computed."""
        max_s = max(self._max_s.values(), default=0.0)
        return max_s + 2 * self._max_s.get((key.stage, key.direction), max_s)

    def _on_task(self, frame: Frame) -> None:
        """Queue a task: one that was accepted, or one without an offer, whose arrays are in shared memory."""
        task, weights = unpack_task(frame, self._receiver)
        if task.key in self._accepted:
            task, weights = self._add_cached(task, weights, self._accepted.pop(task.key))
        elif self._decline_late(task.key):
            return
        self._jobs.put(_Job(task, weights, read_slot(frame, self._receiver)))

    def _add_cached(self, task: Task, weights: Arrays, cached: _Cached) -> tuple[Task, Arrays]:
        """Return a task and its weights with the arrays that were cached, and cache those that were sent."""
        key, static = task.key, cached.static
        if cached.weights is None:
            self._weights.put((task.version, key.stage), weights)
        if static is None:
            names = static_rows(self._setup, key)
            static = {name: task.arrays[name] for name in names if name in task.arrays}
            self._static.put(_static_key(key), static)
        whole = replace(task, arrays={**task.arrays, **static})
        return whole, weights if cached.weights is None else cached.weights


def _end_in(frame: Frame) -> _End:
    """Return the end that a STOP frame asks for."""
    if "reason" not in frame.head:
        return _End("the graph server said stop")
    return _End(f"the graph server ended the lease: {read_field(frame, 'reason', str)}", failed=True)


def _static_key(key: Key) -> tuple[int, ...]:
    """Return the cache key that tasks with the same static rows share."""
    return key.interval, key.stage, key.direction == Direction.LEARN


def _describe(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({where[0].filename.rpartition('/')[2]}:{where[0].lineno})" if where else ""
    return f"{type(error).__name__}: {error}{place}"[:2000]


def _memory_usage() -> dict[str, float]:
    return {"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _process_age_s() -> float:
    """Return the seconds since this process began; 0 if it has served before, as a warm function has."""
    global _served_before
    if _served_before:
        return 0.0
    _served_before = True
    with open("/proc/self/stat") as file:  # noqa: PTH123 (pathlib is slow to import)
        began_ticks = int(file.read().rpartition(")")[2].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK"))


_served_before = False


def main(arguments: list[str]) -> int:
    """Serve the lease on standard input; returns exit code 1 if it could not be served.

    ``--parent PID``: die with that process. ``--inherited CONNECTION,MEMORY``: descriptors of sockets to it.
    """
    try:
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        if "--parent" in options:
            _die_with(int(options["--parent"]))
        lease = Lease.from_json(sys.stdin.read(4096))
        report = serve(lease, inherited=parse_inherited(options.get("--inherited", "")))
    except (ValueError, CannotServe) as error:
        print(f"siafu worker: {error}", file=sys.stderr)
        return 1
    print(f"siafu worker: {asdict(report)}", file=sys.stderr)
    return 0


def parse_inherited(text: str) -> InheritedSockets | None:
    """Open the sockets whose descriptors are given on the command line."""
    if not text:
        return None
    connection, memory = (socket.socket(fileno=int(number)) for number in text.split(","))
    return InheritedSockets(connection, memory)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise CannotServe("the process that started it is gone")


if __name__ == "__main__":
    from siafu.interpreter import run_and_exit

    run_and_exit(lambda: sys.exit(main(sys.argv[1:])))
