"""One worker at a graph server: what it is offered, what it gives back, and when it is lost."""

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from siafu.wire.frames import FrameError
from siafu.wire.heartbeats import FailureDetector
from siafu.workers.connection import Link, LinkLost, Steps
from siafu.workers.event_loop import Loop
from siafu.workers.result_check import Expected, is_doubtful, is_finite
from siafu.workers.result_slots import Slot, Slots, laid_bytes
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import Handing, Segments, Use
from siafu.workers.stages import static_rows, weights_of
from siafu.workers.task import Arrays, Direction, Key, Result, Task
from siafu.workers.task_frames import Frame, Kind
from siafu.workers.task_messages import answered, ask, field_of, key_of, offer, seconds_of
from siafu.workers.task_queue import Tasks

MOST_FAILURES = 3  # of a worker, until it is let go
_REPORTED = {"init_s": float, "memory_mb": float, "request_id": str, "compute": str, "host": str, "pid": int}


@dataclass(frozen=True)
class Room:
    """The memory that a worker of this host shares with its graph server.

    Attributes:
        segments: rows and weights, which it reads.
        handing: by which it is handed the descriptors.
    """

    segments: Segments
    handing: Handing


@dataclass(frozen=True)
class Limits:
    """Of a pool and its workers.

    Attributes:
        silence_s: after which a worker that says nothing is lost.
        frame_bytes: the most that a result may have.
        tasks: how many a worker may hold at once: the next one travels while it computes.
        close_s: how long closing waits for workers to say goodbye.
    """

    silence_s: float = 3.0
    frame_bytes: int = 1 << 30
    tasks: int = 2
    close_s: float = 5.0


@dataclass(frozen=True)
class Served:
    """What a worker did and took, for a meter of costs.

    Attributes:
        worker: its name.
        peer: the address it called from.
        came_s, left_s: when, in seconds since the epoch; it is still there where ``left_s`` is None.
        tasks: how many it answered.
        bytes_in, bytes_out: from it and to it.
        busy_s: seconds in which it held a task.
        compute_s: seconds that it spent computing.
        report: what it says of itself: ``init_s``, ``memory_mb``, ``request_id``, ``compute``,
            ``host``, ``pid``.
        ended: why it left; empty where it left as it should.
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


class Visit:
    """A worker that was let in, served in a loop; other threads call :meth:`served`, :meth:`serve` and :meth:`poke`.

    ``room`` is the memory that it shares with this process, if this process started it. ``expected`` says what results
    must look like; without it they are taken as they are. ``on_ready`` is told that it can do tasks, ``on_end`` that it
    left.
    """

    def __init__(
        self,
        worker: str,
        peer: str,
        *,
        link: Link,
        loop: Loop,
        tasks: Tasks,
        setup: Setup,
        limits: Limits,
        detector: FailureDetector[str],
        room: Room | None = None,
        expected: Expected | None = None,
        on_ready: Callable[[], None] = lambda: None,
        on_end: Callable[["Visit"], None] = lambda _: None,
    ) -> None:
        self.worker, self.link = worker, link
        self._peer, self._loop, self._tasks, self._setup = peer, loop, tasks, setup
        self._limits, self._detector, self._room, self._expected = limits, detector, room, expected
        self._on_ready, self._on_end = on_ready, on_end
        self._reading: Steps[Frame] = link.receiving(limits.frame_bytes)
        self._writing: Steps[None] | None = None
        self._unsent: deque[list[memoryview]] = deque()
        self._events = 0  # what is waited for
        self._sent_s = detector.clock.now()  # when something was last taken of what is sent
        self._offered: Task | None = None
        self._slots = Slots()
        self._slot_of: dict[Key, Slot] = {}
        self._sizes: dict[tuple[int, Direction], int] = {}  # the largest result of a kind so far
        self._holds: dict[Key, Task] = {}
        self._asks = self._stopping = self.ready = False
        self._came_s = time.time()
        self._left_s: float | None = None
        self._busy_since_s = 0.0
        self._busy_s = self._compute_s = 0.0
        self._num_tasks = 0
        self._report: dict[str, Any] = {}
        self._ended = ""
        self.let_go = ""  # why it was, if it was
        detector.join(worker)

    def served(self) -> Served:
        """What it did so far."""
        busy_s = self._busy_s + (time.monotonic() - self._busy_since_s if self._holds else 0.0)
        return Served(
            self.worker, self._peer, self._came_s, self._left_s, self._num_tasks,
            self.link.bytes_in, self.link.bytes_out, busy_s, self._compute_s, dict(self._report), self._ended,
        )  # fmt: skip

    def begin(self) -> None:
        """Tell the worker what the tensor work is; from then on the loop serves it."""
        self._guarded(partial(self._send, Kind.SETUP, {"setup": self._setup.to_json()}))
        self._turn()

    def serve(self, task: Task | None) -> None:
        """Here is the task it asked for; None: there will be none."""
        self._loop.ask(partial(self._guarded, partial(self._serve, task)))

    def poke(self) -> None:
        """Look for an overdue task."""
        self._loop.ask(partial(self._guarded, self._look))

    def _guarded(self, do: Callable[[], None]) -> None:
        """Do something; where it fails, the worker is lost, and nobody else."""
        if self._left_s is not None:
            return
        try:
            do()
        except (LinkLost, FrameError) as error:
            self._leave(str(error))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._leave(
                f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
            )

    def _turn(self) -> None:
        """Read and write all that can be, and wait for the rest."""
        self._guarded(self._proceed)

    def _proceed(self) -> None:
        reads = self._read()
        if self._left_s is not None:
            return
        events = reads | self._write()
        if events != self._events:
            self._events = events
            self._loop.wait_for(self.link.fileno(), events, self._turn)

    def _read(self) -> int:
        """Take what came; returns what to wait for."""
        before = self.link.bytes_in
        try:
            while self._left_s is None:
                try:
                    event = next(self._reading)
                except StopIteration as end:
                    self._reading = self.link.receiving(self._limits.frame_bytes)
                    self._take(end.value)
                    continue
                return event
        finally:
            if self.link.bytes_in != before and self._left_s is None:
                self._detector.heard(self.worker)
        return 0

    def _write(self) -> int:
        """Send what is to be sent; returns what to wait for, if for anything."""
        while True:
            if self._writing is None:
                if not self._unsent:
                    return 0
                self._writing = self.link.writing(self._unsent.popleft())
                self._sent_s = self._detector.clock.now()
            before = self.link.bytes_out
            event = next(self._writing, None)
            if self.link.bytes_out != before and event is not None:
                self._sent_s = self._detector.clock.now()
            if event is not None:
                return event
            self._writing = None

    def _send(self, kind: Kind, head: Mapping[str, Any] | None = None, arrays: Arrays | None = None) -> None:
        """Send a frame after those before it. It leaves in this turn, or as soon as there is room."""
        self._unsent.append(self.link.pack(kind, head, arrays))
        if self._writing is None:
            event = self._write()
            if event:
                self._events |= event
                self._loop.wait_for(self.link.fileno(), self._events, self._turn)

    def look_after(self) -> None:
        """Lose a worker that says nothing, and one that takes nothing of what is sent. In the loop, now and then."""
        self._guarded(self._look_after)

    def _look_after(self) -> None:
        quiet_s = self._limits.silence_s
        takes_nothing = self._writing is not None and self._detector.clock.now() - self._sent_s >= quiet_s
        if takes_nothing or self._detector.is_silent(self.worker):
            raise LinkLost(f"it was silent for {quiet_s:.1f} s")

    def _take(self, frame: Frame) -> None:
        """A frame came."""
        if not self.ready and frame.kind not in (Kind.BEAT, Kind.BYE, Kind.READY):
            raise FrameError(f"a {frame.kind.name} frame, expected READY")
        match frame.kind:
            case Kind.BEAT if not self.ready:
                return
            case Kind.BEAT:
                pass  # a result of its may have been found wrong since its last frame
            case Kind.READY:
                self._begin_work(frame)
            case Kind.ACCEPT:
                self._accepted(frame)
            case Kind.DECLINE:
                self._declined(frame)
            case Kind.RESULT:
                self._judge(frame)
            case Kind.FAILED:
                reason, task = field_of(frame, "reason", str), self._lay_down(frame)
                self._free(task.key)
                self._tasks.fail(task.key, self.worker, reason[:2000])
            case Kind.BYE if not self.ready:
                raise LinkLost(f"it cannot serve: {field_of(frame, 'reason', str)}")
            case Kind.BYE:
                self._report |= _reported(frame)
                failed = frame.head.get("failed") is True
                self._leave(f"it gave up: {field_of(frame, 'reason', str)[:2000]}" if failed else "")
                return
            case _:
                raise FrameError(f"a {frame.kind.name} frame, which no worker sends")
        if self._tasks.failures(self.worker) >= MOST_FAILURES:
            self._let_go()
        self._feed()

    def _judge(self, frame: Frame) -> None:
        """Commit a result, if it is what its task asked for; else this process does the task."""
        task = self._lay_down(frame)
        result = self._result(task.key, frame)
        weights = self._weights(task)
        if self._expected is None or weights is None:  # weights are retired under a copy that comes too late
            self._tasks.commit(task.key, self.worker, result)
            return
        fault = self._expected.fault(task, weights, result)
        if fault is not None:
            result.spent()
            self._tasks.fail(task.key, self.worker, f"a wrong result: {fault}", distrust=True)
        elif not is_finite(result) and is_doubtful(task, weights):
            result.spent()
            self._tasks.doubt(task.key, self.worker)
        else:
            self._tasks.commit(task.key, self.worker, result)

    def _let_go(self) -> None:
        """Tell a worker that it failed too often, and end its connection."""
        self.let_go = (
            f"it was let go after {MOST_FAILURES} failures; the last: {self._tasks.failure(self.worker)}"
        )
        self._send(Kind.STOP, {"reason": self.let_go})
        raise LinkLost(self.let_go)

    def _begin_work(self, frame: Frame) -> None:
        if self.ready:
            raise FrameError("a READY frame, which was sent before")
        self._report, self.ready = _reported(frame), True
        self._on_ready()

    def _feed(self) -> None:
        """Ask for the next task, if there is room for one."""
        while not (self._asks or self._stopping or self._offered) and len(self._holds) < self._limits.tasks:
            self._asks = True
            task = self._tasks.ask(self)
            if task is None:
                self._look()
                return
            self._asks = False
            self._give(task)

    def _look(self) -> None:
        """Watch for overdue tasks while there is nothing else to do."""
        when_s = self._tasks.look(self) if self._asks else None
        if when_s is not None:
            self._loop.at(when_s, partial(self._guarded, self._look))

    def _serve(self, task: Task | None) -> None:
        self._asks = False
        if task is None:
            self._stop()
            return
        self._give(task)
        self._feed()

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._send(Kind.STOP)

    def _give(self, task: Task) -> None:
        """Offer a task; or send it at once where its rows need not travel."""
        weights = self._weights(task)
        if weights is None:
            self._tasks.fail(task.key, self.worker, _retired(task))
        elif self._room is None:
            self._offered = task
            self._send(Kind.OFFER, offer(task))
        else:
            slot = self._slots.take(self._sizes.get(task.key[1:3], 0))
            if slot is not None:
                self._slot_of[task.key] = slot
            self._pick_up(task)
            head, arrays = ask(task, weights, self._room.segments, slot)
            self._hand_over(self._room, head.get("shared", {}), slot)
            self._send(Kind.TASK, head, arrays)

    def _hand_over(self, room: Room, shared: Mapping[str, Any], slot: Slot | None) -> None:
        """Hand over the memory that a task names, unless that was done before."""
        for number in {place[0] for place in shared.values()}:
            room.handing.hand(Use.SEGMENT, number, room.segments.memories[number])
        if slot is not None:
            room.handing.hand(Use.SLOT, slot.number, slot.memory, instead_of=slot.instead_of)

    def _result(self, key: Key, frame: Frame) -> Result:
        slot = self._slot_of.pop(key, None)
        result = answered(frame, slot)
        if slot is not None and "laid" not in frame.head:
            slot.free()
        if frame.arrays and self._room is not None:
            kind = key[1:3]
            self._sizes[kind] = max(self._sizes.get(kind, 0), laid_bytes(frame.arrays))
        return result

    def _free(self, key: Key) -> None:
        slot = self._slot_of.pop(key, None)
        if slot is not None:
            slot.free()

    def _declined(self, frame: Frame) -> None:
        """It does not want what it was sent, or offered, and then nothing more."""
        key = key_of(frame)
        if key in self._holds:
            self._put_down(key)
            self._free(key)
        elif self._offered is not None and key == self._offered.key:
            self._offered = None
        else:
            raise FrameError(f"a DECLINE frame of task {[*map(int, key)]}, which it was not given")
        self._tasks.release(key, self.worker)
        self._stop()

    def _accepted(self, frame: Frame) -> None:
        """It wants what it was offered."""
        task, self._offered = self._offered, None
        if task is None or key_of(frame) != task.key:
            raise FrameError("an ACCEPT frame of a task that it was not offered")
        self._pick_up(task)
        weights = self._weights(task)
        if weights is None:
            raise LinkLost(_retired(task))
        if not field_of(frame, "static", bool):
            known = static_rows(self._setup, task.key)
            rows = {name: array for name, array in task.arrays.items() if name not in known}
            task = replace(task, arrays=rows)
        self._send(Kind.TASK, *ask(task, weights if field_of(frame, "weights", bool) else {}))

    def _leave(self, ended: str) -> None:
        """It is gone: what it held is done again."""
        self._ended, self._left_s = ended, time.time()
        if self._holds:
            self._busy_s += time.monotonic() - self._busy_since_s
            self._holds.clear()
        self.ready = False
        self._unsent.clear()
        self._slots.close()
        self._detector.leave(self.worker)
        if self._room is not None:
            self._room.handing.close()
        self._loop.wait_for(self.link.fileno(), 0, self._turn)
        self.link.close()
        self._tasks.lose(self.worker, ended or None)
        self._on_end(self)

    def _weights(self, task: Task) -> Arrays | None:
        """What the stage reads; None where the version was retired, as it may be under a late copy."""
        try:
            weights = self._tasks.weights(task.version)
        except KeyError:
            return None
        return {name: weights[name] for name in weights_of(self._setup, task.key.stage, list(weights))}

    def _pick_up(self, task: Task) -> None:
        if not self._holds:
            self._busy_since_s = time.monotonic()
        self._holds[task.key] = task

    def _lay_down(self, frame: Frame) -> Task:
        key = key_of(frame)
        if key not in self._holds:
            raise FrameError(f"a {frame.kind.name} frame of task {[*map(int, key)]}, which it was not given")
        if frame.kind == Kind.RESULT:
            self._compute_s += seconds_of(frame)
        self._num_tasks += 1
        return self._put_down(key)

    def _put_down(self, key: Key) -> Task:
        task = self._holds.pop(key)
        if not self._holds:
            self._busy_s += time.monotonic() - self._busy_since_s
        return task


def _reported(frame: Frame) -> dict[str, Any]:
    """The particulars that a worker gives of itself, as far as they have the type that they should."""
    found = {}
    for name, kind in _REPORTED.items():
        value = frame.head.get(name)
        if type(value) is not kind or (isinstance(value, float) and not 0 <= value < 1e9):
            continue
        found[name] = value[:200] if isinstance(value, str) else value
    return found


def _retired(task: Task) -> str:
    return f"version {task.version} of the weights was retired"
