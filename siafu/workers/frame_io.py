"""Reads and writes the frames of one connection in an event loop, without blocking it."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from siafu.wire.heartbeats import FailureDetector
from siafu.workers.connection import FrameConnection, IoSteps
from siafu.workers.event_loop import EventLoop
from siafu.workers.task import Arrays
from siafu.workers.task_frames import Frame, FrameKind


class FrameIo:
    """The frames of one connection. All methods are called in the loop's thread.

    ``worker`` is the peer's name at the ``detector``, which learns of every byte received. ``on_frame`` is called with
    each frame, ``on_ready`` whenever the connection may be read or written; it is to call :meth:`proceed`.
    """

    def __init__(
        self,
        worker: str,
        connection: FrameConnection,
        loop: EventLoop,
        detector: FailureDetector[str],
        *,
        limit_bytes: int,
        on_frame: Callable[[Frame], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._worker, self._connection, self._loop, self._detector = worker, connection, loop, detector
        self._limit_bytes, self._on_frame, self._on_ready = limit_bytes, on_frame, on_ready
        self._reading: IoSteps[Frame] = connection.read_steps(limit_bytes)
        self._writing: IoSteps[None] | None = None
        self._unsent: deque[list[memoryview]] = deque()
        self._events = 0  # that the loop waits for
        self._progress_s = detector.clock.now()  # when the peer last accepted data
        self._closed = False

    def proceed(self) -> None:
        """Read and write as much as possible, and have the loop wait for the rest."""
        reads = self._read()
        if self._closed:
            return
        events = reads | self._write()
        if events != self._events:
            self._events = events
            self._loop.watch(self._connection.fileno(), events, self._on_ready)

    def send(
        self, kind: FrameKind, head: Mapping[str, Any] | None = None, arrays: Arrays | None = None
    ) -> None:
        """Send a frame after those before it, now or as soon as the connection has room."""
        self._unsent.append(self._connection.pack(kind, head, arrays))
        if self._writing is None:
            event = self._write()
            if event:
                self._events |= event
                self._loop.watch(self._connection.fileno(), self._events, self._on_ready)

    def is_stuck(self, wait_s: float) -> bool:
        """Tell whether the peer has accepted none of the data to be sent for ``wait_s`` seconds."""
        return self._writing is not None and self._detector.clock.now() - self._progress_s >= wait_s

    def close(self) -> None:
        """Drop what is unsent and close the connection."""
        self._closed = True
        self._unsent.clear()
        self._loop.watch(self._connection.fileno(), 0, self._on_ready)
        self._connection.close()

    def _read(self) -> int:
        """Handle the frames that are complete; returns the event to wait for."""
        before = self._connection.bytes_in
        try:
            while not self._closed:
                try:
                    event = next(self._reading)
                except StopIteration as end:
                    self._reading = self._connection.read_steps(self._limit_bytes)
                    self._on_frame(end.value)
                    continue
                return event
        finally:
            if self._connection.bytes_in != before and not self._closed:
                self._detector.heard(self._worker)
        return 0

    def _write(self) -> int:
        """Send what the connection has room for; returns the event to wait for, or 0."""
        while True:
            if self._writing is None:
                if not self._unsent:
                    return 0
                self._writing = self._connection.write_steps(self._unsent.popleft())
                self._progress_s = self._detector.clock.now()
            before = self._connection.bytes_out
            event = next(self._writing, None)
            if self._connection.bytes_out != before and event is not None:
                self._progress_s = self._detector.clock.now()
            if event is not None:
                return event
            self._writing = None
