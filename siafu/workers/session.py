"""The session of one worker at a graph server: tasks it is offered, results it returns, and its loss."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from siafu.wire.frames import FrameError
from siafu.wire.heartbeats import FailureDetector
from siafu.workers.connection import ConnectionLost, FrameConnection
from siafu.workers.event_loop import EventLoop
from siafu.workers.frame_io import FrameIo
from siafu.workers.result_check import ResultChecker, inputs_are_finite, is_finite
from siafu.workers.result_slots import ResultSlot, ResultSlots, slot_bytes
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import DescriptorSender, MemoryUse, Segments
from siafu.workers.stages import static_rows, weights_of
from siafu.workers.task import Arrays, Direction, Key, Result, Task
from siafu.workers.task_frames import Frame, FrameKind
from siafu.workers.task_messages import (
    pack_offer,
    pack_task,
    read_field,
    read_key,
    read_seconds,
    unpack_result,
)
from siafu.workers.task_queue import TaskQueue

MAX_FAILURES = 3  # of a worker, until its session is ended
_REPORT_FIELDS = {
    "init_s": float,
    "memory_mb": float,
    "request_id": str,
    "backend": str,
    "host": str,
    "pid": int,
}


@dataclass(frozen=True)
class SharedMemory:
    """The memory that a worker process shares with the graph server that started it.

    Attributes:
        segments: rows and weights, which the worker reads.
        sender: hands the worker the file descriptors.
    """

    segments: Segments
    sender: DescriptorSender


@dataclass(frozen=True)
class SessionLimits:
    """The limits of a listener and its sessions.

    Attributes:
        silence_s: a worker that sends nothing for so long is lost.
        frame_bytes: the largest frame that a worker may send.
        tasks: how many tasks a worker may hold at once; the next one is sent while it computes.
        close_s: how long closing waits for workers to end.
    """

    silence_s: float = 3.0
    frame_bytes: int = 1 << 30
    tasks: int = 2
    close_s: float = 5.0


@dataclass(frozen=True)
class WorkerUsage:
    """The work and the time of one worker, from which costs are computed.

    Attributes:
        worker: its name.
        peer: the address from which it connected.
        came_s, left_s: in seconds since the epoch; ``left_s`` is None while it is connected.
        tasks: how many it answered.
        bytes_in, bytes_out: from it and to it.
        busy_s: seconds in which it held a task.
        compute_s: seconds that it spent computing.
        report: its own particulars: ``init_s``, ``memory_mb``, ``request_id``, ``backend``, ``host``, ``pid``.
        ended: the reason of its end; empty if it ended as it should.
    """

    worker: str
    peer: str
    came_s: float
    left_s: float | None
    tasks: int
    bytes_in: int
    bytes_out: int
    busy_s: float
    compute_s: float
    report: Mapping[str, Any] = field(default_factory=dict)
    ended: str = ""


class WorkerSession:
    """A connected worker, served in an event loop. It consumes tasks of the queue.

    Other threads may call :meth:`usage`, :meth:`receive` and :meth:`wake`. ``shared_memory`` is for a worker process
    that this process started. Results are checked by ``checker``, or not at all. ``on_ready`` is called when the worker
    can compute tasks, ``on_end`` when it has left.
    """

    def __init__(
        self,
        worker: str,
        peer: str,
        *,
        connection: FrameConnection,
        loop: EventLoop,
        tasks: TaskQueue,
        setup: Setup,
        limits: SessionLimits,
        detector: FailureDetector[str],
        shared_memory: SharedMemory | None = None,
        checker: ResultChecker | None = None,
        on_ready: Callable[[], None] = lambda: None,
        on_end: Callable[["WorkerSession"], None] = lambda _: None,
    ) -> None:
        self.worker, self.connection = worker, connection
        self._peer, self._loop, self._tasks, self._setup = peer, loop, tasks, setup
        self._limits, self._detector = limits, detector
        self._shared_memory, self._checker = shared_memory, checker
        self._on_ready, self._on_end = on_ready, on_end
        self._io = FrameIo(
            worker,
            connection,
            loop,
            detector,
            limit_bytes=limits.frame_bytes,
            on_frame=self._on_frame,
            on_ready=self._proceed,
        )
        self._offered: Task | None = None
        self._slots = ResultSlots()
        self._slot_of: dict[Key, ResultSlot] = {}
        self._max_result_bytes: dict[tuple[int, Direction], int] = {}  # so far, by kind of task
        self._held: dict[Key, Task] = {}
        self._requesting = self._stopping = self.ready = False
        self._came_s = time.time()
        self._left_s: float | None = None
        self._busy_since_s = 0.0
        self._busy_s = self._compute_s = 0.0
        self._num_tasks = 0
        self._report: dict[str, Any] = {}
        self._ended = ""
        self.dismissal = ""  # the reason, if the worker was dismissed for its failures
        detector.join(worker)

    def usage(self) -> WorkerUsage:
        """Return the worker's usage so far."""
        busy_s = self._busy_s + (time.monotonic() - self._busy_since_s if self._held else 0.0)
        return WorkerUsage(
            self.worker, self._peer, self._came_s, self._left_s, self._num_tasks,
            self.connection.bytes_in, self.connection.bytes_out, busy_s, self._compute_s, dict(self._report),
            self._ended,
        )  # fmt: skip

    def start(self) -> None:
        """Send the worker its setup; from then on the loop serves it."""
        self._guarded(partial(self._io.send, FrameKind.SETUP, {"setup": self._setup.to_json()}))
        self._proceed()

    def receive(self, task: Task | None) -> None:
        """Receive the task that was requested from the queue; None if there will be none."""
        self._loop.call_soon(partial(self._guarded, partial(self._receive, task)))

    def wake(self) -> None:
        """Look for an overdue task."""
        self._loop.call_soon(partial(self._guarded, self._watch_overdue))

    def check_silence(self) -> None:
        """End the session if the worker is silent or accepts no data. The loop calls this now and then."""
        self._guarded(self._check_silence)

    def _guarded(self, do: Callable[[], None]) -> None:
        """Run a step of the session; an error ends this session alone."""
        if self._left_s is not None:
            return
        try:
            do()
        except (ConnectionLost, FrameError) as error:
            self._leave(str(error))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._leave(
                f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
            )

    def _proceed(self) -> None:
        self._guarded(self._io.proceed)

    def _check_silence(self) -> None:
        silence_s = self._limits.silence_s
        if self._io.is_stuck(silence_s) or self._detector.is_silent(self.worker):
            raise ConnectionLost(f"it was silent for {silence_s:.1f} s")

    def _on_frame(self, frame: Frame) -> None:
        if not self.ready and frame.kind not in (FrameKind.HEARTBEAT, FrameKind.CLOSE, FrameKind.READY):
            raise FrameError(f"a {frame.kind.name} frame, expected READY")
        match frame.kind:
            case FrameKind.HEARTBEAT if not self.ready:
                return
            case FrameKind.HEARTBEAT:
                pass  # but one of its results may have been found wrong since its last frame
            case FrameKind.READY:
                self._on_ready_frame(frame)
            case FrameKind.ACCEPT:
                self._on_accept(frame)
            case FrameKind.DECLINE:
                self._on_decline(frame)
            case FrameKind.RESULT:
                self._on_result(frame)
            case FrameKind.FAILED:
                reason, task = read_field(frame, "reason", str), self._end_task(frame)
                self._free_slot(task.key)
                self._tasks.fail(task.key, self.worker, reason[:2000])
            case FrameKind.CLOSE if not self.ready:
                raise ConnectionLost(f"it cannot serve: {read_field(frame, 'reason', str)}")
            case FrameKind.CLOSE:
                self._report |= _read_report(frame)
                failed = frame.head.get("failed") is True
                self._leave(f"it gave up: {read_field(frame, 'reason', str)[:2000]}" if failed else "")
                return
            case _:
                raise FrameError(f"a {frame.kind.name} frame, which no worker sends")
        if self._tasks.num_failures(self.worker) >= MAX_FAILURES:
            self._dismiss()
        self._request_tasks()

    def _on_result(self, frame: Frame) -> None:
        """Commit a result that passes the checks; else have this process compute the task."""
        task = self._end_task(frame)
        result = self._unpack_result(task.key, frame)
        weights = self._weights(task)
        if self._checker is None or weights is None:  # a late copy's weights may be retired
            self._tasks.commit(task.key, self.worker, result)
            return
        fault = self._checker.find_fault(task, weights, result)
        if fault is not None:
            result.release()
            self._tasks.fail(task.key, self.worker, f"a wrong result: {fault}", distrust=True)
        elif not is_finite(result) and inputs_are_finite(task, weights):
            result.release()
            self._tasks.suspect(task.key, self.worker)
        else:
            self._tasks.commit(task.key, self.worker, result)

    def _dismiss(self) -> None:
        """End the session of a worker that failed too often, and send it the reason."""
        last = self._tasks.last_failure(self.worker)
        self.dismissal = f"it was dismissed after {MAX_FAILURES} failures; the last: {last}"
        self._io.send(FrameKind.STOP, {"reason": self.dismissal})
        raise ConnectionLost(self.dismissal)

    def _on_ready_frame(self, frame: Frame) -> None:
        if self.ready:
            raise FrameError("a READY frame, which was sent before")
        self._report, self.ready = _read_report(frame), True
        self._on_ready()

    def _request_tasks(self) -> None:
        """Request tasks from the queue, as long as the worker has room for one."""
        while (
            not (self._requesting or self._stopping or self._offered) and len(self._held) < self._limits.tasks
        ):
            self._requesting = True
            task = self._tasks.request(self)
            if task is None:
                self._watch_overdue()
                return
            self._requesting = False
            self._give(task)

    def _watch_overdue(self) -> None:
        """Watch for overdue tasks while the worker waits for one."""
        when_s = self._tasks.watch_overdue(self) if self._requesting else None
        if when_s is not None:
            self._loop.call_at(when_s, partial(self._guarded, self._watch_overdue))

    def _receive(self, task: Task | None) -> None:
        self._requesting = False
        if task is None:
            self._stop()
            return
        self._give(task)
        self._request_tasks()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._io.send(FrameKind.STOP)

    def _give(self, task: Task) -> None:
        """Offer a task to the worker; with shared memory send it at once, since its rows need not be sent."""
        weights = self._weights(task)
        if weights is None:
            self._tasks.fail(task.key, self.worker, _retired(task))
        elif self._shared_memory is None:
            self._offered = task
            self._io.send(FrameKind.OFFER, pack_offer(task))
        else:
            slot = self._slots.take(self._max_result_bytes.get(task.key[1:3], 0))
            if slot is not None:
                self._slot_of[task.key] = slot
            self._hold(task)
            head, arrays = pack_task(task, weights, self._shared_memory.segments, slot)
            self._send_descriptors(self._shared_memory, head.get("shared", {}), slot)
            self._io.send(FrameKind.TASK, head, arrays)

    def _send_descriptors(
        self, shared_memory: SharedMemory, shared: Mapping[str, Any], slot: ResultSlot | None
    ) -> None:
        """Hand over the memory that a task names, unless that was done before."""
        sender, memories = shared_memory.sender, shared_memory.segments.memories
        for number in {place[0] for place in shared.values()}:
            sender.send(MemoryUse.SEGMENT, number, memories[number])
        if slot is not None:
            sender.send(MemoryUse.SLOT, slot.number, slot.memory, replaces=slot.replaces)

    def _unpack_result(self, key: Key, frame: Frame) -> Result:
        slot = self._slot_of.pop(key, None)
        result = unpack_result(frame, slot)
        if slot is not None and "in_slot" not in frame.head:
            slot.free()
        if frame.arrays and self._shared_memory is not None:
            kind = key[1:3]
            size = slot_bytes(frame.arrays)
            self._max_result_bytes[kind] = max(self._max_result_bytes.get(kind, 0), size)
        return result

    def _free_slot(self, key: Key) -> None:
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            slot.free()

    def _on_decline(self, frame: Frame) -> None:
        """Take back a task that the worker refuses, and give it no more."""
        key = read_key(frame)
        if key in self._held:
            self._unhold(key)
            self._free_slot(key)
        elif self._offered is not None and key == self._offered.key:
            self._offered = None
        else:
            raise FrameError(f"a DECLINE frame of task {[*map(int, key)]}, which it was not given")
        self._tasks.release(key, self.worker)
        self._stop()

    def _on_accept(self, frame: Frame) -> None:
        """Send the arrays of the task that was offered, less those that the worker has cached."""
        task, self._offered = self._offered, None
        if task is None or read_key(frame) != task.key:
            raise FrameError("an ACCEPT frame of a task that it was not offered")
        self._hold(task)
        weights = self._weights(task)
        if weights is None:
            raise ConnectionLost(_retired(task))
        if not read_field(frame, "static", bool):
            cached = static_rows(self._setup, task.key)
            rows = {name: array for name, array in task.arrays.items() if name not in cached}
            task = replace(task, arrays=rows)
        self._io.send(FrameKind.TASK, *pack_task(task, weights if read_field(frame, "weights", bool) else {}))

    def _leave(self, ended: str) -> None:
        """End the session; the tasks that the worker held are started again."""
        self._ended, self._left_s = ended, time.time()
        if self._held:
            self._busy_s += time.monotonic() - self._busy_since_s
            self._held.clear()
        self.ready = False
        self._slots.close()
        self._detector.leave(self.worker)
        if self._shared_memory is not None:
            self._shared_memory.sender.close()
        self._io.close()
        self._tasks.lose(self.worker, ended or None)
        self._on_end(self)

    def _weights(self, task: Task) -> Arrays | None:
        """Return the weights that the task's stage reads; None if their version was retired, as for a late copy."""
        try:
            weights = self._tasks.weights(task.version)
        except KeyError:
            return None
        return {name: weights[name] for name in weights_of(self._setup, task.key.stage, list(weights))}

    def _hold(self, task: Task) -> None:
        if not self._held:
            self._busy_since_s = time.monotonic()
        self._held[task.key] = task

    def _end_task(self, frame: Frame) -> Task:
        """Return the task that a RESULT or FAILED frame is about, which the worker no longer holds."""
        key = read_key(frame)
        if key not in self._held:
            raise FrameError(f"a {frame.kind.name} frame of task {[*map(int, key)]}, which it was not given")
        if frame.kind == FrameKind.RESULT:
            self._compute_s += read_seconds(frame)
        self._num_tasks += 1
        return self._unhold(key)

    def _unhold(self, key: Key) -> Task:
        task = self._held.pop(key)
        if not self._held:
            self._busy_s += time.monotonic() - self._busy_since_s
        return task


def _read_report(frame: Frame) -> dict[str, Any]:
    """Read a worker's particulars, and skip those of a wrong type."""
    found = {}
    for name, kind in _REPORT_FIELDS.items():
        value = frame.head.get(name)
        if type(value) is not kind or (isinstance(value, float) and not 0 <= value < 1e9):
            continue
        found[name] = value[:200] if isinstance(value, str) else value
    return found


def _retired(task: Task) -> str:
    return f"version {task.version} of the weights was retired"
