"""Who still makes progress, and who is to blame when nothing moves. It opens no connection.

Each rank tells its peers now and then (a beat) how much it has worked and moved so far, and whom it waits for. A peer
is lost when nothing at all is heard of it for the deadline, or when for the deadline it moved no data and did no work.
One that waits for a third rank is not to blame; the chain is followed to its end.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple

from siafu.comm.errors import CommError, Loss, PeerLost, name_rank

BUSY = 0.05  # the share of a core, on average over the deadline, that counts as progress
_NOBODY = -1


class Beat(NamedTuple):
    """What a rank says of itself.

    Attributes:
        work_s: seconds of work so far, see :func:`work_s`.
        moved_bytes: data that it sent and received so far.
        waits_for: the rank it waits for, -1 for none.
        phase: the label of that wait, or of its last call.
    """

    work_s: float
    moved_bytes: int
    waits_for: int
    phase: str


def work_s() -> float:
    """Seconds of work of this process: its CPU time, and what it read and wrote as if at 100 MB/s."""
    use = getrusage(RUSAGE_SELF)
    blocks = use.ru_inblock + use.ru_oublock
    return use.ru_utime + use.ru_stime + blocks * 512 / 100e6 + use.ru_majflt * 1e-3


class Clock:
    """Seconds for which this process was awake: a stop or a suspended machine counts as ``cap_s`` at most."""

    def __init__(self, cap_s: float) -> None:
        self._lock = threading.Lock()
        self._cap_s = cap_s
        self._last = time.monotonic()
        self._awake_s = 0.0

    def now(self) -> float:
        """Must be called more often than every ``cap_s``, else seconds are lost."""
        with self._lock:
            now = time.monotonic()
            self._awake_s += min(now - self._last, self._cap_s)
            self._last = now
            return self._awake_s


class Waits:
    """Whom this rank waits for, and its phase."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[int, str]] = {}
        self.phase = "start"

    @contextmanager
    def entered(self, peer: int, phase: str) -> Iterator[None]:
        """Note a wait for as long as it lasts."""
        mark = object()
        self._waiting[mark] = (peer, phase)
        try:
            yield
        finally:
            del self._waiting[mark]

    def current(self) -> tuple[int, str]:
        """The wait that has lasted longest, or nobody and the last phase."""
        for wait in list(self._waiting.values()):
            return wait
        return _NOBODY, self.phase


class Watch:
    """What was heard of one rank."""

    def __init__(self, now: float) -> None:
        self.heard_at = now
        self.moved_at = now
        self.phase = "start"
        self.waits_for = _NOBODY
        self.ended = False
        self._moved_bytes = 0
        self._work: deque[tuple[float, float]] = deque()

    def beat(self, now: float, beat: Beat, *, deadline_s: float) -> None:
        """Take a beat in."""
        self.heard_at = now
        if beat.moved_bytes != self._moved_bytes:
            self._moved_bytes, self.moved_at = beat.moved_bytes, now
        self.phase, self.waits_for = beat.phase, beat.waits_for
        self._work.append((now, beat.work_s))
        while len(self._work) > 1 and self._work[1][0] <= now - deadline_s:
            self._work.popleft()

    def is_idle(self, now: float, deadline_s: float) -> bool:
        """Whether for the deadline it moved nothing and did next to no work."""
        history = list(self._work)
        if now - self.moved_at < deadline_s or not history or history[0][0] > now - deadline_s:
            return False
        (began, before), (last, after) = history[0], history[-1]
        return after - before < BUSY * (last - began) or last == began


class Liveness:
    """Judges the ranks of a group by their beats."""

    def __init__(self, hosts: Sequence[str], *, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.tick_s = min(1.0, deadline_s / 8)
        self.clock = Clock(2 * self.tick_s)
        self.hosts = tuple(hosts)
        self.watches = [Watch(self.clock.now()) for _ in hosts]

    def beat(self, rank: int, beat: Beat) -> None:
        """Take a rank's beat in."""
        self.watches[rank].beat(self.clock.now(), beat, deadline_s=self.deadline_s)

    def verdict(self, rank: int, peer: int, since: float) -> Loss | None:
        """The error of ``rank``, which has waited for ``peer`` since then; None as long as it should go on waiting."""
        now, chain, at = self.clock.now(), [rank], peer
        while True:
            watch = self.watches[at]
            if watch.ended:
                return None
            if now - watch.heard_at >= self.deadline_s:
                return self._silent(rank, at, now - watch.heard_at)
            if now - since < self.deadline_s or not watch.is_idle(now, self.deadline_s):
                return None
            chain.append(at)
            if watch.waits_for == _NOBODY:
                return self._stuck(rank, at, peer)
            at = watch.waits_for
            if at == rank and not self.watches[rank].is_idle(now, self.deadline_s):
                return None
            if at in chain:
                return self._circle(rank, chain[chain.index(at) :])

    def _silent(self, rank: int, peer: int, silent_s: float) -> Loss:
        return self._lost(
            rank,
            peer,
            f"was silent for {silent_s:.3g} s",
            f'it was last heard in "{self.watches[peer].phase}". Its process was stopped, its host is down or the '
            "network between them is cut: look there, then resume the run",
        )

    def _stuck(self, rank: int, peer: int, waited_for: int) -> Loss:
        via = "" if peer == waited_for else f" ({name_rank(waited_for, self.hosts)} waits for it too)"
        return self._lost(
            rank,
            peer,
            f"made no progress for {self.deadline_s:.3g} s",
            f'it lives, but since "{self.watches[peer].phase}" it neither computed nor sent{via}. Look what it waits '
            "for; if it needs longer, raise comm.deadline",
        )

    def _circle(self, rank: int, ranks: Sequence[int]) -> Loss:
        waits = ", ".join(
            f'{name_rank(one, self.hosts)} for rank {self.watches[one].waits_for} in "{self.watches[one].phase}"'
            for one in ranks
        )
        peer = next((one for one in ranks if one != rank), rank)
        return self._lost(
            rank,
            peer,
            f"made no progress for {self.deadline_s:.3g} s",
            f"ranks wait for each other: {waits}. Every rank must make the same calls in the same order",
        )

    def _lost(self, rank: int, peer: int, what: str, advice: str) -> Loss:
        def error(phase: str) -> CommError:
            waiter = name_rank(rank, self.hosts)
            text = f'{name_rank(peer, self.hosts)} {what} while {waiter} waited in "{phase}"; {advice}'
            return PeerLost(text, peer=peer, host=self.hosts[peer], phase=phase)

        return error
