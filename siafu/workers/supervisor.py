"""Keeps a number of leases alive: wherever workers run, a lease that ended is followed by the next."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from siafu.workers.lease import Lease

FIRST_BACKOFF_S = 0.1  # after a lease that failed; doubled for each failure that follows
MAX_BACKOFF_S = 10.0
MAX_FAILURES = 6  # in a row, of all leases, until no more are tried
USEFUL_LEASE_S = 5.0  # a lease that lasted longer does not count as a failure in a row
CLOSE_S = 10.0


class LeaseError(Exception):
    """A lease could not be handed out, or ended badly; the text tells people why, and what to do.

    Attributes:
        fatal: no other lease will fare better.
        throttled: the platform allows no more leases at a time.
    """

    def __init__(self, reason: str, *, fatal: bool = False, throttled: bool = False) -> None:
        super().__init__(reason)
        self.fatal, self.throttled = fatal, throttled


class WorkerPlatform(Protocol):
    """A platform that runs workers, such as processes, AWS Lambda or Ray."""

    def run_worker(self, lease: Lease) -> None:
        """Run a worker with a lease, and return when it has ended; raises LeaseError."""

    def close(self) -> None:
        """End the workers that still run, if that is possible."""


@dataclass(frozen=True)
class LeaseEnd:
    """The end of a lease.

    Attributes:
        worker: its worker's name.
        reason: of a failure; empty if it ended as it should.
        fatal: no more leases are tried.
    """

    worker: str
    reason: str = ""
    fatal: bool = False


class LeaseSupervisor:
    """Keeps a target number of leases alive on one platform, each in a thread of its own.

    ``on_end`` is called at the end of each lease, in a thread of the supervisor; :meth:`take_ended` returns the same.
    """

    def __init__(self, platform: WorkerPlatform, *, on_end: Callable[[LeaseEnd], None] | None = None) -> None:
        self._platform, self._on_end = platform, on_end
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._threads: set[threading.Thread] = set()
        self._ended: list[LeaseEnd] = []
        self._target = 0
        self._failures = 0

    @property
    def target(self) -> int:
        """The number of leases that are kept alive; lower than what was asked for after the platform throttled."""
        with self._lock:
            return self._target

    def set_target(self, new_lease: Callable[[], Lease], count: int) -> None:
        """Keep ``count`` leases alive from now on. If these are fewer than before, some leases get no successor."""
        with self._lock:
            self._target = count
            for _ in range(count - len(self._threads)):
                thread = threading.Thread(
                    target=self._run, args=(new_lease,), name="siafu-lease", daemon=True
                )
                self._threads.add(thread)
                thread.start()

    def take_ended(self) -> list[LeaseEnd]:
        """Return the leases that ended since the last call."""
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Start no more leases, and end what still runs. Close the listener first: its workers then stop alone."""
        with self._lock:
            self._target = 0
            threads = list(self._threads)
        self._closing.set()
        _join(threads, FIRST_BACKOFF_S)
        self._platform.close()
        _join(threads, CLOSE_S)

    def __enter__(self) -> "LeaseSupervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, new_lease: Callable[[], Lease]) -> None:
        """Run one lease after the other, as long as this thread is within the target."""
        backoff_s = 0.0
        while self._should_continue():
            lease, began_s = new_lease(), time.monotonic()
            try:
                self._platform.run_worker(lease)
                backoff_s = 0.0
                self._report(LeaseEnd(lease.worker))
            except LeaseError as error:
                if time.monotonic() - began_s > USEFUL_LEASE_S:
                    backoff_s, self._failures = 0.0, 0
                backoff_s = min(max(FIRST_BACKOFF_S, 2 * backoff_s), MAX_BACKOFF_S)
                self._report(self._on_failure(lease, error))
            self._closing.wait(backoff_s)

    def _should_continue(self) -> bool:
        with self._lock:
            if len(self._threads) > self._target:
                self._threads.discard(threading.current_thread())
                return False
            return True

    def _on_failure(self, lease: Lease, error: LeaseError) -> LeaseEnd:
        """Count a failure, and lower the target if it concerns other leases too."""
        with self._lock:
            if self._closing.is_set():
                return LeaseEnd(lease.worker, "it was ended")
            if error.throttled:
                self._target = max(1, min(self._target, len(self._threads)) - 1)
                return LeaseEnd(lease.worker, f"{error}; going on with {self._target}")
            self._failures += 1
            if not error.fatal and self._failures < MAX_FAILURES:
                return LeaseEnd(lease.worker, str(error))
            self._target = 0
            return LeaseEnd(lease.worker, str(error), fatal=True)

    def _report(self, end: LeaseEnd) -> None:
        with self._lock:
            if not end.reason:
                self._failures = 0
            self._ended.append(end)
        if self._on_end is not None:
            self._on_end(end)


def _join(threads: list[threading.Thread], wait_s: float) -> None:
    """Join threads, for at most ``wait_s`` seconds in all."""
    until_s = time.monotonic() + wait_s
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
