"""One thread that waits for many connections at once, for times, and for what other threads ask of it."""

import heapq
import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable

Do = Callable[[], None]


class Loop:
    """Does things one after the other in a thread of its own, until it is closed. What it does must not fail.

    :meth:`ask` may be called from any thread, the others only in the loop's own.
    """

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._waker, selectors.EVENT_READ, lambda: os.eventfd_read(self._waker))
        self._asked: deque[Do] = deque()
        self._times: list[tuple[float, int, Do]] = []
        self._numbers = itertools.count()
        self._asleep = self._over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, do: Do) -> None:
        """Have something done soon."""
        self._asked.append(do)
        if self._asleep:
            self._asleep = False  # the next who asks need not wake it again
            os.eventfd_write(self._waker, 1)

    def at(self, when_s: float, do: Do) -> None:
        """Have something done at a time of ``time.monotonic``."""
        heapq.heappush(self._times, (when_s, next(self._numbers), do))

    def wait_for(self, descriptor: int, events: int, do: Do) -> None:
        """Have something done whenever a connection is ready for ``events``; for none: wait for it no more."""
        try:
            if events:
                self._selector.modify(descriptor, events, do)
            else:
                self._selector.unregister(descriptor)
        except KeyError:
            if events:
                self._selector.register(descriptor, events, do)

    def close(self) -> None:
        """End, after what was asked so far."""
        if self._over:
            return
        self.ask(self._end)
        self._thread.join()
        self._selector.close()
        os.close(self._waker)

    def _end(self) -> None:
        self._over = True

    def _run(self) -> None:
        while not self._over:
            self._asleep = True  # before the look at what was asked: who asks later wakes it
            ready = self._selector.select(self._left_s())
            self._asleep = False
            for key, _ in ready:
                key.data()
            for _ in range(len(self._asked)):
                self._asked.popleft()()
            now_s = time.monotonic()
            while self._times and self._times[0][0] <= now_s:
                heapq.heappop(self._times)[2]()

    def _left_s(self) -> float | None:
        if self._asked:
            return 0.0
        return max(0.0, self._times[0][0] - time.monotonic()) if self._times else None
