"""The worker: it dials the graph server that its lease names, and does tasks until one of them ends it.

It holds no graph, and keeps weights and rows that never change. Standard library, NumPy and xxhash; torch where the
lease asks for it. It opens no file that a server names. A worker that a rank started on its own host
(:class:`Inherited`) may view memory whose descriptors the rank handed it; any other worker views no shared memory.
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
from siafu.workers.admission import Refused, enter
from siafu.workers.connection import Link, LinkLost
from siafu.workers.lease import Compute, Lease
from siafu.workers.lru_cache import Kept
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import Received
from siafu.workers.stages import static_rows
from siafu.workers.task import Arrays, Direction, Key, Result, Task
from siafu.workers.task_frames import Frame, Kind
from siafu.workers.task_messages import answer, asked, field_of, key_of, slot_of

Do = Callable[[Task, Arrays], Result]
BEAT_S = 0.5
DIAL_S = 10.0
_PR_SET_PDEATHSIG = 1
END_S = 1.0  # before its deadline a worker leaves
_LAST_WORD_S = 1.0  # to read what the server said before the connection broke


class CannotServe(Exception):
    """A worker was not let in, was let go, or cannot do what its server asks; the text says why."""


class Inherited(NamedTuple):
    """The sockets that a worker process inherits from the rank that started it.

    Attributes:
        connection: to the graph server, instead of dialling it.
        memory: over which the rank hands descriptors of shared memory.
    """

    connection: socket.socket
    memory: socket.socket


@dataclass(frozen=True)
class Report:
    """What a worker did under a lease: ``reason`` says why it ended."""

    worker: str
    tasks: int
    seconds: float
    reason: str


def serve(
    lease: Lease,
    compute_factory: Callable[[Setup], Do] | None = None,
    *,
    request_id: str = "",
    fresh: bool = True,
    inherited: Inherited | None = None,
) -> Report:
    """Do tasks until the lease ends, the server says stop, or it is gone; raises CannotServe.

    ``fresh`` says that this process was started for its first lease, so that its start belongs to that.
    """
    began_s = time.monotonic()
    try:
        link = _dial(lease, inherited)
    except (OSError, FrameError, Refused, WrongCertificate) as error:
        raise CannotServe(f"the graph server at {lease.host}:{lease.port}: {error}") from error
    received = None if inherited is None else Received(inherited.memory)
    worker = _Worker(lease, link, received, request_id=request_id, init_s=_age_s() if fresh else 0.0)
    try:
        reason = worker.run(compute_factory or partial(_compute_of, lease.compute))
    finally:
        worker.end()
    return Report(lease.worker, worker.num_tasks, time.monotonic() - began_s, reason)


def _dial(lease: Lease, inherited: Inherited | None = None) -> Link:
    if inherited is not None:
        sock = inherited.connection
    else:
        sock = socket.create_connection((lease.host, lease.port), timeout=DIAL_S)
    try:
        binding = b""
        if lease.fingerprint is not None and inherited is None:
            sock, binding = dial(sock, fingerprint=bytes.fromhex(lease.fingerprint))
        enter(sock, lease, binding=binding, wait_s=DIAL_S)
        return Link(sock)
    except BaseException:
        sock.close()
        raise


def _compute_of(compute: Compute, setup: Setup) -> Do:
    if compute == "torch":
        from siafu.workers.torch_compute import TorchCompute

        return TorchCompute(setup)
    from siafu.workers.numpy_backend.compute import compute as twin

    return partial(twin, setup)


class _Job(NamedTuple):
    """A task, the weights it reads, and the slot for its result, if there is one."""

    task: Task
    weights: Arrays
    slot: mmap.mmap | None


class _Ending(NamedTuple):
    """The end of a lease: why, and whether it is the server's fault or its verdict on this worker."""

    reason: str
    failed: bool = False


class _Known(NamedTuple):
    """What a worker has of a task that it was offered: the weights, the rows that never change; None: it lacks them."""

    weights: Arrays | None
    static: Arrays | None


class _Worker:
    """One lease. Its own thread computes, one reads ahead, one says that it lives."""

    def __init__(
        self, lease: Lease, link: Link, received: Received | None, *, request_id: str, init_s: float
    ) -> None:
        self._lease, self._link, self._received = lease, link, received
        self._request_id, self._init_s = request_id, init_s
        self._jobs: queue.SimpleQueue[_Job | _Ending] = queue.SimpleQueue()
        self._weights, self._static = Kept(), Kept()
        self._accepted: dict[Key, _Known] = {}
        self._longest_s: dict[tuple[int, Direction], float] = {}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.num_tasks = 0

    def run(self, compute_factory: Callable[[Setup], Do]) -> str:
        """Serve to the end; returns why it ended, or raises CannotServe."""
        reader = None
        try:
            self._begin(self._beat)
            do = self._settle(compute_factory)
            reader = self._begin(self._read)
            while not isinstance(job := self._next(), _Ending):
                self._work(do, job)
            with suppress(LinkLost):
                self._link.send(Kind.BYE, {"reason": job.reason, "failed": job.failed, **_memory()})
        except LinkLost as lost:
            job = self._told(reader) or _Ending(f"the graph server is gone: {lost}")
        if job.failed:
            raise CannotServe(job.reason)
        return job.reason

    def end(self) -> None:
        """Leave no thread and no connection behind."""
        self._over.set()
        self._link.shut()
        for thread in self._threads:
            thread.join()
        self._link.close()
        if self._received is not None:
            self._received.close()

    def _told(self, reader: threading.Thread | None) -> _Ending | None:
        """The end that the reader found, where the connection broke while this thread sent a result."""
        if reader is None:
            return None
        reader.join(_LAST_WORD_S)
        while not self._jobs.empty():
            if isinstance(job := self._jobs.get_nowait(), _Ending):
                return job
        return None

    def _begin(self, target: Callable[[], None]) -> threading.Thread:
        self._threads.append(threading.Thread(target=target, name="siafu-worker", daemon=True))
        self._threads[-1].start()
        return self._threads[-1]

    def _settle(self, compute_factory: Callable[[Setup], Do]) -> Do:
        """Learn what the tensor work is."""
        try:
            frame = self._link.receive(silence_s=DIAL_S)
            if frame.kind != Kind.SETUP:
                raise FrameError(f"a {frame.kind.name} frame, expected SETUP")
            self._setup = Setup.from_json(field_of(frame, "setup", str))
            do = compute_factory(self._setup)
        except LinkLost:
            raise
        except Exception as error:
            with suppress(LinkLost):
                self._link.send(Kind.BYE, {"reason": _said(error)})
            raise CannotServe(_said(error)) from error
        report = {"init_s": self._init_s, "request_id": self._request_id, "compute": self._lease.compute}
        self._link.send(Kind.READY, {**report, "host": socket.gethostname(), "pid": os.getpid(), **_memory()})
        return do

    def _next(self) -> _Job | _Ending:
        """The next task, or the end."""
        left_s = self._lease.deadline_s - END_S - time.time()
        try:
            return self._jobs.get(timeout=max(0.0, left_s))
        except queue.Empty:
            return _Ending("the lease ended")

    def _work(self, do: Do, job: _Job) -> None:
        began_s, task = time.perf_counter(), job.task
        try:
            head, arrays = answer(task, do(task, job.weights), job.slot)
            self._link.send(Kind.RESULT, head, arrays)
        except LinkLost:
            raise
        except Exception as error:
            self._link.send(Kind.FAILED, {"key": list(task.key), "reason": _said(error)})
        kind = (task.key.stage, task.key.direction)
        self._longest_s[kind] = max(self._longest_s.get(kind, 0.0), time.perf_counter() - began_s)
        self.num_tasks += 1

    def _beat(self) -> None:
        with suppress(LinkLost):
            while not self._over.wait(BEAT_S):
                self._link.send(Kind.BEAT)

    def _read(self) -> None:
        """Take what the server sends. Whatever fails here ends the lease, so that no thread beats on for it."""
        try:
            ending = self._take_frames()
        except LinkLost as lost:
            ending = self._last_word() or _Ending(f"the graph server is gone: {lost}")
        except FrameError as error:
            ending = _Ending(f"the graph server sent what this worker cannot use: {error}", failed=True)
        except Exception as error:
            ending = _Ending(
                f"the graph server sent what this worker cannot use: {_said(error)}", failed=True
            )
        self._jobs.put(ending)

    def _last_word(self) -> _Ending | None:
        """The reason that the server gave before the connection broke while this thread sent something."""
        until_s = time.monotonic() + _LAST_WORD_S
        with suppress(LinkLost, FrameError):
            while time.monotonic() < until_s:
                if (frame := self._link.receive(until_s=until_s)).kind == Kind.STOP:
                    return _stopped(frame)
        return None

    def _take_frames(self) -> _Ending:
        while True:
            frame = self._link.receive()
            match frame.kind:
                case Kind.OFFER:
                    self._consider(frame)
                case Kind.TASK:
                    self._receive(frame)
                case Kind.STOP:
                    return _stopped(frame)
                case _:
                    raise FrameError(f"a {frame.kind.name} frame, which no server sends")

    def _consider(self, frame: Frame) -> None:
        """Accept an offer, unless the task could not be ended in time."""
        key, version = key_of(frame), field_of(frame, "version", int)
        if self._declines(key):
            return
        known = _Known(self._weights.get((version, key.stage)), self._static.get(_reader(key)))
        self._accepted[key] = known
        lacks = {"weights": known.weights is None, "static": known.static is None}
        self._link.send(Kind.ACCEPT, {"key": list(key), **lacks})

    def _declines(self, key: Key) -> bool:
        """Whether a task could not be ended in time, which is then said."""
        if time.time() + self._needs_s(key) <= self._lease.deadline_s - END_S:
            return False
        self._link.send(Kind.DECLINE, {"key": list(key), "reason": "the lease ends"})
        return True

    def _needs_s(self, key: Key) -> float:
        """Seconds until such a task would be done: what is in front of it takes its time, too."""
        longest_s = max(self._longest_s.values(), default=0.0)
        return longest_s + 2 * self._longest_s.get((key.stage, key.direction), longest_s)

    def _receive(self, frame: Frame) -> None:
        """A task is here: one that was accepted, or one that comes without an offer, since it is seen where it is."""
        task, weights = asked(frame, self._received)
        if task.key in self._accepted:
            task, weights = self._completed(task, weights, self._accepted.pop(task.key))
        elif self._declines(task.key):
            return
        self._jobs.put(_Job(task, weights, slot_of(frame, self._received)))

    def _completed(self, task: Task, weights: Arrays, known: _Known) -> tuple[Task, Arrays]:
        """A task and its weights with what was known before; what came anew is kept."""
        key, static = task.key, known.static
        if known.weights is None:
            self._weights.put((task.version, key.stage), weights)
        if static is None:
            names = static_rows(self._setup, key)
            static = {name: task.arrays[name] for name in names if name in task.arrays}
            self._static.put(_reader(key), static)
        whole = replace(task, arrays={**task.arrays, **static})
        return whole, weights if known.weights is None else known.weights


def _stopped(frame: Frame) -> _Ending:
    """The end that a STOP frame tells of."""
    if "reason" not in frame.head:
        return _Ending("the graph server said stop")
    return _Ending(f"the graph server ended the lease: {field_of(frame, 'reason', str)}", failed=True)


def _reader(key: Key) -> tuple[int, ...]:
    """What tasks that read the same rows have in common."""
    return key.interval, key.stage, key.direction == Direction.LEARN


def _said(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({where[0].filename.rpartition('/')[2]}:{where[0].lineno})" if where else ""
    return f"{type(error).__name__}: {error}{place}"[:2000]


def _memory() -> dict[str, float]:
    return {"memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _age_s() -> float:
    """How long ago this process began; 0 where it has served before, as a warm function has."""
    global _served_before
    if _served_before:
        return 0.0
    _served_before = True
    with open("/proc/self/stat") as file:  # noqa: PTH123 (pathlib is slow to import)
        began_ticks = int(file.read().rpartition(")")[2].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK"))


_served_before = False


def main(arguments: list[str]) -> int:
    """Serve the lease that stands on standard input; the exit code says whether it could be.

    ``--parent PID``: and die with that process. ``--inherited CONNECTION,MEMORY``: descriptors of sockets to it.
    """
    try:
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        if "--parent" in options:
            _die_with(int(options["--parent"]))
        lease = Lease.from_json(sys.stdin.read(4096))
        report = serve(lease, inherited=inherited_of(options.get("--inherited", "")))
    except (ValueError, CannotServe) as error:
        print(f"siafu worker: {error}", file=sys.stderr)
        return 1
    print(f"siafu worker: {asdict(report)}", file=sys.stderr)
    return 0


def inherited_of(text: str) -> Inherited | None:
    """The sockets whose descriptors stand on the command line."""
    if not text:
        return None
    connection, memory = (socket.socket(fileno=int(number)) for number in text.split(","))
    return Inherited(connection, memory)


def _die_with(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise CannotServe("the process that started it is gone")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
