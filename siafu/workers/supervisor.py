"""Keeps a number of leases alive: wherever workers run, a lease that ended is followed by the next."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from siafu.workers.lease import Lease

FIRST_WAIT_S = 0.1  # after a lease that failed, doubled for each that follows it
LONGEST_WAIT_S = 10.0
MOST_FAILURES = 6  # one after the other, of all leases, until no more are tried
SERVED_S = 5.0  # a lease that lasted longer was of use, however it ended
CLOSE_S = 10.0


class LeaseError(Exception):
    """A lease could not be handed out, or ended as it should not: why, and what to do, for people.

    Attributes:
        fatal: no other lease will fare better.
        throttled: there are too many already.
    """

    def __init__(self, reason: str, *, fatal: bool = False, throttled: bool = False) -> None:
        super().__init__(reason)
        self.fatal, self.throttled = fatal, throttled


class Holder(Protocol):
    """A place where workers run."""

    def hold(self, lease: Lease) -> None:
        """Have a worker serve a lease, and return when it has; raises LeaseError."""

    def close(self) -> None:
        """End what still runs, if that is possible."""


@dataclass(frozen=True)
class Ended:
    """A lease that ended.

    Attributes:
        worker: its worker's name.
        reason: why, empty where it ended as it should.
        fatal: no more leases are tried.
    """

    worker: str
    reason: str = ""
    fatal: bool = False


class Launcher:
    """Keeps leases at one place alive, each in a thread of its own.

    ``on_end`` is told of each lease that ended, in a thread of the launcher; :meth:`ended` says the same to who asks.
    """

    def __init__(self, holder: Holder, *, on_end: Callable[[Ended], None] | None = None) -> None:
        self._holder, self._on_end = holder, on_end
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._ended: list[Ended] = []
        self._wanted = 0
        self._failures = 0

    @property
    def wanted(self) -> int:
        """How many leases are kept alive: fewer than were asked for, after the place said that they are too many."""
        with self._lock:
            return self._wanted

    def start(self, new_lease: Callable[[], Lease], count: int) -> None:
        """Keep so many leases alive from now on; with fewer than before, some are not followed by another."""
        with self._lock:
            self._wanted = count
            for _ in range(count - len(self._threads)):
                thread = threading.Thread(
                    target=self._keep, args=(new_lease,), name="siafu-lease", daemon=True
                )
                self._threads.add(thread)
                thread.start()

    def ended(self) -> list[Ended]:
        """The leases that ended since this was asked last."""
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Start no more, and end what still runs. Close the pool first: its workers stop then by themselves."""
        with self._lock:
            self._wanted = 0
            threads = list(self._threads)
        self._closing.set()
        _join(threads, FIRST_WAIT_S)
        self._holder.close()
        _join(threads, CLOSE_S)

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, new_lease: Callable[[], Lease]) -> None:
        """One lease after the other, as long as they are wanted."""
        wait_s = 0.0
        while self._goes_on():
            lease, began_s = new_lease(), time.monotonic()
            try:
                self._holder.hold(lease)
                wait_s = 0.0
                self._tell(Ended(lease.worker))
            except LeaseError as error:
                if time.monotonic() - began_s > SERVED_S:
                    wait_s, self._failures = 0.0, 0
                wait_s = min(max(FIRST_WAIT_S, 2 * wait_s), LONGEST_WAIT_S)
                self._tell(self._judge(lease, error))
            self._closing.wait(wait_s)

    def _goes_on(self) -> bool:
        with self._lock:
            if len(self._threads) > self._wanted:
                self._threads.discard(threading.current_thread())
                return False
            return True

    def _judge(self, lease: Lease, error: LeaseError) -> Ended:
        """What a failure means for the other leases."""
        with self._lock:
            if self._closing.is_set():
                return Ended(lease.worker, "it was ended")
            if error.throttled:
                self._wanted = max(1, min(self._wanted, len(self._threads)) - 1)
                return Ended(lease.worker, f"{error}; going on with {self._wanted}")
            self._failures += 1
            if not error.fatal and self._failures < MOST_FAILURES:
                return Ended(lease.worker, str(error))
            self._wanted = 0
            return Ended(lease.worker, str(error), fatal=True)

    def _tell(self, ended: Ended) -> None:
        with self._lock:
            if not ended.reason:
                self._failures = 0
            self._ended.append(ended)
        if self._on_end is not None:
            self._on_end(ended)


def _join(threads: list[threading.Thread], wait_s: float) -> None:
    """Wait for the end of threads, but no longer than a while for all of them."""
    until_s = time.monotonic() + wait_s
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
