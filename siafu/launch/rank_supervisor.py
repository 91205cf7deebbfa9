"""One attempt of a group of rank processes, seen from the launcher: who ended how, and in which order.

It knows process ids and signals, and not who started the processes. It never reaps: that is left to who did.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from siafu.launch.failures import RankFailure, failure_of
from siafu.launch.memory_monitor import MemoryCurves

_GRACE_S = 2.0
_SUSPENDED_SHARE = 0.95  # of the deadline: peers that wait for a stopped rank notice it before
_LOOK_S = 0.02
_LONGEST_LOOK_S = 1.0  # what counts at most between two looks: this process may have been stopped itself


class Attempt:
    """Follows ranks to their end. ``stop`` and ``kill`` may be called from any thread, ``look`` from one alone."""

    def __init__(self, reports: Path, *, deadline_s: float) -> None:
        self._reports = reports
        self._deadline_s = deadline_s
        self._stop = threading.Event()
        self._kill = threading.Event()
        self._stopped = False
        self._codes: dict[int, int] = {}  # in the order in which ranks ended
        self._ended_here: set[int] = set()  # by this object, not by themselves
        self._suspended_s: dict[int, float] = {}  # how long ranks have been stopped (SIGSTOP) without a break
        self._given_up: set[int] = set()  # ended because they were stopped for too long
        self._looked_at = time.monotonic()
        self._memory = MemoryCurves()

    def report(self, rank: int) -> Path:
        """Where a rank leaves its report."""
        return self._reports / f"rank-{rank}.json"

    def stop(self) -> None:
        """Ask ranks to end in good order: SIGTERM, once."""
        self._stop.set()

    def kill(self) -> None:
        """End all ranks at once."""
        self._kill.set()

    def look(self, pids: Mapping[int, int]) -> None:
        """See how ranks are. Once one has failed, the others get a moment to end by themselves; then they are ended.

        After a rank that was stopped for too long they get none: whoever could notice the loss has had the time.
        """
        self._see_ends(pids)
        self._end_suspended(pids)
        self._memory.sample({rank: pid for rank, pid in pids.items() if rank not in self._codes})
        if self._stop.is_set() and not self._stopped:
            self._stopped = True
            self._signal(pids, signal.SIGTERM)
        if any(self._codes.values()) and not self._given_up:  # a suspended rank would not end by itself
            self._wait({rank: pid for rank, pid in pids.items() if not _is_suspended(pid)}, _GRACE_S)
        if self._kill.is_set() or any(self._codes.values()):
            self._ended_here |= pids.keys() - self._codes.keys()
            self._signal(pids, signal.SIGKILL)  # a stopped process too
            self._wait(pids, _GRACE_S)

    def ended(self, rank: int, code: int) -> None:
        """Somebody else saw how a rank ended."""
        self._codes.setdefault(rank, code)

    def _end_suspended(self, pids: Mapping[int, int]) -> None:
        """End ranks that were stopped for too long: peers notice only while they wait for them."""
        now, limit_s = time.monotonic(), _SUSPENDED_SHARE * self._deadline_s
        passed, self._looked_at = min(now - self._looked_at, _LONGEST_LOOK_S), now
        for rank, pid in pids.items():
            if rank in self._codes or not _is_suspended(pid):
                self._suspended_s.pop(rank, None)
                continue
            self._suspended_s[rank] = self._suspended_s.get(rank, 0.0) + passed
            if self._suspended_s[rank] > limit_s:
                self._given_up.add(rank)
                self._signal({rank: pid}, signal.SIGKILL)

    def failures(self) -> list[RankFailure]:
        """Those that failed by themselves, in the order in which they ended."""
        return [
            self._failure(rank, code)
            for rank, code in self._codes.items()
            if code != 0 and rank not in self._ended_here
        ]

    def _failure(self, rank: int, code: int) -> RankFailure:
        failure = failure_of(rank, code=code, report=self.report(rank), host=socket.gethostname())
        if rank in self._given_up:
            return replace(
                failure,
                message=f"stopped (SIGSTOP) for {_SUSPENDED_SHARE * self._deadline_s:.3g} s, and then ended",
            )
        if code != -signal.SIGKILL or not self._memory.kernel_killed():
            return failure
        message = (
            f"killed by the kernel for lack of memory; {self._memory.tell(rank)}; use more hosts or fewer ranks on "
            "this one, a smaller model (--hidden, --layers), or a machine with more memory"
        )
        return replace(failure, kind="memory", message=message)

    def _see_ends(self, pids: Mapping[int, int]) -> None:
        for rank, pid in pids.items():
            if rank in self._codes:
                continue
            with suppress(ChildProcessError):
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is not None:
                    by_signal = ended.si_code != os.CLD_EXITED
                    self._codes[rank] = -ended.si_status if by_signal else ended.si_status

    def _wait(self, pids: Mapping[int, int], seconds: float) -> None:
        """Wait for all to end, or to be killed."""
        until = time.monotonic() + seconds
        while pids.keys() - self._codes.keys() and time.monotonic() < until:
            if self._kill.wait(_LOOK_S):
                self._signal(pids, signal.SIGKILL)
                time.sleep(_LOOK_S)
            self._see_ends(pids)

    def _signal(self, pids: Mapping[int, int], number: signal.Signals) -> None:
        """Send to what is left; a kill also reaches what ranks started themselves."""
        for rank, pid in pids.items():
            if rank not in self._codes:
                with suppress(ProcessLookupError, PermissionError):
                    (os.killpg if number == signal.SIGKILL else os.kill)(pid, number)


def _is_suspended(pid: int) -> bool:
    """Whether a signal has stopped a process, and not a debugger."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] == ["T"]
