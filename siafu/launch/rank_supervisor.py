"""Supervision of one group of rank processes by the launcher: how each rank ended, and in which order.

It knows process ids and signals, and not how the processes were started. It never reaps them: their parent does.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from siafu.launch.failures import RankFailure, failure_from_exit
from siafu.launch.memory_monitor import MemoryMonitor

_GRACE_S = 2.0
_SUSPENDED_SHARE = 0.95  # of the deadline: peers that wait for a suspended rank notice it earlier
_POLL_S = 0.02
_MAX_POLL_GAP_S = 1.0  # counted at most between two polls: this process may have been suspended itself


class RankSupervisor:
    """Follows ranks to their end. ``stop`` and ``kill`` may be called from any thread, the others only from one.

    Attributes:
        reports: the folder of the ranks' files.
    """

    def __init__(self, reports: Path, *, deadline_s: float) -> None:
        self.reports = reports
        self._deadline_s = deadline_s
        self._stop = threading.Event()
        self._kill = threading.Event()
        self._stopped = False
        self._exit_codes: dict[int, int] = {}  # in the order in which ranks ended
        self._killed_here: set[int] = set()  # killed by this object
        self._suspended_s: dict[int, float] = {}  # seconds since each suspended (SIGSTOP) rank was stopped
        self._killed_as_suspended: set[int] = set()  # killed because they were suspended for too long
        self._polled_at = time.monotonic()
        self._memory = MemoryMonitor()

    def report(self, rank: int) -> Path:
        """Return the path of a rank's error report."""
        return self.reports / f"rank-{rank}.json"

    def stop(self) -> None:
        """Ask ranks to end normally: SIGTERM, once."""
        self._stop.set()

    def kill(self) -> None:
        """Kill all ranks at once."""
        self._kill.set()

    def wait(self, pids: Mapping[int, int], seconds: float) -> None:
        """Wait until another rank ends, for at most ``seconds``."""
        with ExitStack() as opened:
            ends = select.poll()
            for rank, pid in pids.items():
                if rank not in self._exit_codes:
                    with suppress(OSError):  # reaped, or a kernel without such descriptors
                        descriptor = os.pidfd_open(pid)
                        opened.callback(os.close, descriptor)
                        ends.register(descriptor, select.POLLIN)
            ends.poll(1000 * seconds)

    def poll(self, pids: Mapping[int, int]) -> None:
        """Check all ranks. Once one has failed, the others have a moment to end by themselves; then they are killed.

        After a rank that was suspended for too long they have none: its peers have had time to notice the loss.
        """
        self._collect_exits(pids)
        self._end_suspended(pids)
        self._memory.sample({rank: pid for rank, pid in pids.items() if rank not in self._exit_codes})
        if self._stop.is_set() and not self._stopped:
            self._stopped = True
            self._signal(pids, signal.SIGTERM)
        if (
            any(self._exit_codes.values()) and not self._killed_as_suspended
        ):  # suspended ranks do not end by themselves
            self._wait({rank: pid for rank, pid in pids.items() if not _is_suspended(pid)}, _GRACE_S)
        if self._kill.is_set() or any(self._exit_codes.values()):
            self._killed_here |= pids.keys() - self._exit_codes.keys()
            self._signal(pids, signal.SIGKILL)  # a stopped process too
            self._wait(pids, _GRACE_S)

    def record_exit(self, rank: int, code: int) -> None:
        """Record an exit code that the process's parent saw."""
        self._exit_codes.setdefault(rank, code)

    def _end_suspended(self, pids: Mapping[int, int]) -> None:
        """Kill ranks that are suspended for too long: peers notice them only while they wait for them."""
        now, limit_s = time.monotonic(), _SUSPENDED_SHARE * self._deadline_s
        passed, self._polled_at = min(now - self._polled_at, _MAX_POLL_GAP_S), now
        for rank, pid in pids.items():
            if rank in self._exit_codes or not _is_suspended(pid):
                self._suspended_s.pop(rank, None)
                continue
            self._suspended_s[rank] = self._suspended_s.get(rank, 0.0) + passed
            if self._suspended_s[rank] > limit_s:
                self._killed_as_suspended.add(rank)
                self._signal({rank: pid}, signal.SIGKILL)

    def failures(self) -> list[RankFailure]:
        """Return the failures of ranks that were not killed here, in the order in which they ended."""
        return [
            self._failure(rank, code)
            for rank, code in self._exit_codes.items()
            if code != 0 and rank not in self._killed_here
        ]

    def _failure(self, rank: int, code: int) -> RankFailure:
        failure = failure_from_exit(rank, code=code, report=self.report(rank), host=socket.gethostname())
        if rank in self._killed_as_suspended:
            return replace(
                failure,
                message=f"stopped (SIGSTOP) for {_SUSPENDED_SHARE * self._deadline_s:.3g} s, and then ended",
            )
        if code != -signal.SIGKILL or not self._memory.kernel_killed():
            return failure
        message = (
            f"killed by the kernel for lack of memory; {self._memory.describe(rank)}; use more hosts or fewer ranks on "
            "this one, a smaller model (--hidden, --layers), or a machine with more memory"
        )
        return replace(failure, kind="memory", message=message)

    def _collect_exits(self, pids: Mapping[int, int]) -> None:
        for rank, pid in pids.items():
            if rank in self._exit_codes:
                continue
            with suppress(ChildProcessError):
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None:
                    by_signal = ended.si_code != os.CLD_EXITED
                    self._exit_codes[rank] = -ended.si_status if by_signal else ended.si_status

    def _wait(self, pids: Mapping[int, int], seconds: float) -> None:
        """Wait until all ranks end, for at most ``seconds``."""
        until = time.monotonic() + seconds
        while pids.keys() - self._exit_codes.keys() and time.monotonic() < until:
            if self._kill.wait(_POLL_S):
                self._signal(pids, signal.SIGKILL)
                time.sleep(_POLL_S)
            self._collect_exits(pids)

    def _signal(self, pids: Mapping[int, int], number: signal.Signals) -> None:
        """Send a signal to the ranks that are left; SIGKILL also reaches their child processes."""
        for rank, pid in pids.items():
            if rank not in self._exit_codes:
                with suppress(ProcessLookupError, PermissionError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(pid, number)


def _is_suspended(pid: int) -> bool:
    """Return whether a process is suspended by a signal (not by a debugger)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] == ["T"]
