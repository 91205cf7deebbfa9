"""One worker at a graph server: what it is offered, what it gives back, and when it is lost."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from siafu.workers.frames import Frame, FrameError, Kind
from siafu.workers.link import Link, LinkLost
from siafu.workers.messages import answered, ask, field_of, key_of, offer
from siafu.workers.setup import Setup
from siafu.workers.shared import Segments
from siafu.workers.stages import weights_of
from siafu.workers.task import Arrays, Key, Task
from siafu.workers.tasks import Tasks


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
    """A worker that was let in. Two threads: :meth:`run` reads what it says, another one offers it tasks."""

    def __init__(
        self,
        worker: str,
        peer: str,
        *,
        link: Link,
        tasks: Tasks,
        setup: Setup,
        limits: Limits,
        segments: Segments | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.worker, self.link = worker, link
        self._peer, self._tasks, self._setup, self._limits = peer, tasks, setup, limits
        self._segments, self._on_ready = segments, on_ready
        self._slots = threading.Semaphore(limits.tasks)
        self._answers: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._holds: set[Key] = set()
        self._lock = threading.Lock()
        self._came_s = time.time()
        self._left_s: float | None = None
        self._busy_since_s = 0.0
        self._busy_s = self._compute_s = 0.0
        self._num_tasks = 0
        self._report: dict[str, Any] = {}
        self._ended = ""
        self.ready = False

    def served(self) -> Served:
        """What it did so far."""
        with self._lock:
            busy_s = self._busy_s + (time.monotonic() - self._busy_since_s if self._holds else 0.0)
            return Served(
                self.worker, self._peer, self._came_s, self._left_s, self._num_tasks,
                self.link.bytes_in, self.link.bytes_out, busy_s, self._compute_s, dict(self._report), self._ended,
            )  # fmt: skip

    def run(self) -> None:
        """Serve the worker until it leaves or is lost; then all that it held is done again."""
        feeder = threading.Thread(target=self._feed, name=f"siafu-workers-{self.worker}", daemon=True)
        try:
            paths = [] if self._segments is None else self._segments.paths
            about = {"setup": self._setup.to_json(), "worker": self.worker, "segments": paths}
            self.link.send(Kind.SETUP, about)
            self._ready(self._next())
            feeder.start()
            self._read()
        except (LinkLost, FrameError) as error:
            self._ended = self._ended or str(error)
        finally:
            self._leave()
            if feeder.ident is not None:
                feeder.join()

    def _ready(self, frame: Frame) -> None:
        if frame.kind == Kind.BYE:
            raise LinkLost(f"it cannot serve: {field_of(frame, 'reason', str)}")
        if frame.kind != Kind.READY:
            raise FrameError(f"a {frame.kind.name} frame, expected READY")
        if self._segments is not None and frame.head.pop("proof", "") != self._segments.proof:
            self._segments = None  # it is elsewhere: rows travel
        self._report, self.ready = frame.head, True
        self._on_ready()

    def _next(self) -> Frame:
        while True:
            frame = self.link.receive(limit_bytes=self._limits.frame_bytes, silence_s=self._limits.silence_s)
            if frame.kind != Kind.BEAT:
                return frame

    def _read(self) -> None:
        while True:
            frame = self._next()
            match frame.kind:
                case Kind.ACCEPT | Kind.DECLINE:
                    self._answers.put(frame)
                case Kind.RESULT:
                    key = self._lay_down(frame)
                    self._tasks.commit(key, self.worker, answered(frame))
                    self._slots.release()
                case Kind.FAILED:
                    reason = field_of(frame, "reason", str)
                    self._tasks.fail(self._lay_down(frame), self.worker, reason[:2000])
                    self._slots.release()
                case Kind.BYE:
                    self._report |= frame.head
                    return
                case _:
                    raise FrameError(f"a {frame.kind.name} frame, which no worker sends")

    def _leave(self) -> None:
        """It is gone: whoever waits for it is told, and what it held is done again."""
        with self._lock:
            self._left_s, held = time.time(), bool(self._holds)
            if held:
                self._busy_s += time.monotonic() - self._busy_since_s
                self._holds.clear()
        self.ready = False
        self.link.shut()
        self._tasks.lose(self.worker, self._ended or None)
        self._answers.put(None)
        self._slots.release()

    def _feed(self) -> None:
        """Offer it tasks, each as soon as it has room, until there are none or it wants no more."""
        try:
            while self._slots.acquire():
                task = self._tasks.take(self.worker)
                if task is None or not self._give(task):
                    break
            self.link.send(Kind.STOP)
        except LinkLost:
            self.link.shut()  # and the reader finds out
        except FrameError as error:
            self._ended = str(error)
            self.link.shut()

    def _give(self, task: Task) -> bool:
        """Offer a task and send it; returns whether the worker wants more."""
        weights = self._weights(task)
        if weights is None:
            self._tasks.fail(task.key, self.worker, f"version {task.version} of the weights was retired")
            self._slots.release()
            return True
        self.link.send(Kind.OFFER, offer(task))
        frame = self._answers.get()
        if frame is None:
            return False
        if frame.kind == Kind.DECLINE or key_of(frame) != task.key:
            self._tasks.release(task.key, self.worker)
            return False
        self._pick_up(task.key)
        head, arrays = ask(task, weights if field_of(frame, "weights", bool) else {}, self._segments)
        self.link.send(Kind.TASK, head, arrays)
        return True

    def _weights(self, task: Task) -> Arrays | None:
        """What the stage reads; None where the version was retired, as it may be under a late copy."""
        try:
            weights = self._tasks.weights(task.version)
        except KeyError:
            return None
        return {name: weights[name] for name in weights_of(self._setup, task.key.stage, list(weights))}

    def _pick_up(self, key: Key) -> None:
        with self._lock:
            if not self._holds:
                self._busy_since_s = time.monotonic()
            self._holds.add(key)

    def _lay_down(self, frame: Frame) -> Key:
        key = key_of(frame)
        with self._lock:
            if key not in self._holds:
                raise FrameError(
                    f"a {frame.kind.name} frame of task {[*map(int, key)]}, which it was not given"
                )
            self._holds.remove(key)
            self._num_tasks += 1
            if not self._holds:
                self._busy_s += time.monotonic() - self._busy_since_s
            if frame.kind == Kind.RESULT:
                self._compute_s += field_of(frame, "seconds", float)
        return key
