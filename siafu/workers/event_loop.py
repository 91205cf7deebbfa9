"""An event loop: one thread that waits for many connections, for timers, and for calls from other threads."""

import heapq
import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable

Callback = Callable[[], None]


class EventLoop:
    """Runs callbacks one after the other in a thread of its own, until it is closed. Callbacks must not raise.

    :meth:`call_soon` may be called from any thread, the other methods only from the loop's own.
    """

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._waker, selectors.EVENT_READ, lambda: os.eventfd_read(self._waker))
        self._calls: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._numbers = itertools.count()
        self._asleep = self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call_soon(self, callback: Callback) -> None:
        """Run a callback soon."""
        self._calls.append(callback)
        if self._asleep:
            self._asleep = False  # later callers need not wake the loop again
            os.eventfd_write(self._waker, 1)

    def call_at(self, when_s: float, callback: Callback) -> None:
        """Run a callback at a time of ``time.monotonic``."""
        heapq.heappush(self._timers, (when_s, next(self._numbers), callback))

    def watch(self, descriptor: int, events: int, callback: Callback) -> None:
        """Run a callback whenever a descriptor is ready for ``events``. With no events, stop watching it."""
        try:
            if events:
                self._selector.modify(descriptor, events, callback)
            else:
                self._selector.unregister(descriptor)
        except KeyError:
            if events:
                self._selector.register(descriptor, events, callback)

    def close(self) -> None:
        """Stop, after the calls that were made so far."""
        if self._stopped:
            return
        self.call_soon(self._stop)
        self._thread.join()
        self._selector.close()
        os.close(self._waker)

    def _stop(self) -> None:
        self._stopped = True

    def _run(self) -> None:
        while not self._stopped:
            self._asleep = True  # set before the calls are looked at, so that a later call wakes the loop
            ready = self._selector.select(self._timeout_s())
            self._asleep = False
            for key, _ in ready:
                key.data()
            for _ in range(len(self._calls)):
                self._calls.popleft()()
            now_s = time.monotonic()
            while self._timers and self._timers[0][0] <= now_s:
                heapq.heappop(self._timers)[2]()

    def _timeout_s(self) -> float | None:
        if self._calls:
            return 0.0
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
