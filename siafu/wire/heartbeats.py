"""Heartbeats and the failure detector: which peer is lost, and which one blocks the others. It opens no connection.

Each peer regularly reports how much it has computed and transferred so far, and which peer it waits for. A peer is
silent if nothing is received from it, and stuck if it neither transfers data nor computes, for the deadline less two
ticks: so the error is raised within the deadline. A peer that waits for a third one is not to blame: the detector
follows the chain of waits to its end.
"""

import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from resource import RUSAGE_SELF, getrusage
from typing import Generic, NamedTuple, TypeVar

MIN_CPU_SHARE = 0.05  # of one core, on average over the deadline; more counts as progress
K = TypeVar("K", bound=Hashable)


class Heartbeat(NamedTuple, Generic[K]):
    """The report of one peer.

    Attributes:
        work_s: seconds of work so far, see :func:`work_s`.
        moved_bytes: bytes of data that it sent and received so far.
        waits_for: the peer that it waits for, or None.
        phase: the label of that wait, or of its last call.
        waited_s: seconds of that wait so far.
    """

    work_s: float
    moved_bytes: int
    waits_for: K | None
    phase: str
    waited_s: float = 0.0


class Suspicion(NamedTuple, Generic[K]):
    """A peer that the failure detector holds responsible for a wait.

    Attributes:
        peer: the peer to blame.
        silent_s: seconds since its last sign of life; 0 if it is alive but makes no progress.
        cycle: peers that wait for each other in a circle (a deadlock), or nothing.
    """

    peer: K
    silent_s: float = 0.0
    cycle: tuple[K, ...] = ()


def work_s() -> float:
    """Return the work of this process in seconds: its CPU time, and its disk traffic converted at 100 MB/s."""
    use = getrusage(RUSAGE_SELF)
    blocks = use.ru_inblock + use.ru_oublock
    return use.ru_utime + use.ru_stime + blocks * 512 / 100e6 + use.ru_majflt * 1e-3


class AwakeClock:
    """A clock that stands still while this process is stopped: each gap counts as at most ``cap_s`` seconds."""

    def __init__(self, cap_s: float) -> None:
        self._lock = threading.Lock()
        self._cap_s = cap_s
        self._last = time.monotonic()
        self._awake_s = 0.0

    def now(self) -> float:
        """Return the seconds so far. It must be called more often than every ``cap_s``, else seconds are lost."""
        with self._lock:
            now = time.monotonic()
            self._awake_s += min(now - self._last, self._cap_s)
            self._last = now
            return self._awake_s


class WaitTracker(Generic[K]):
    """Tracks for which peers the threads of this process wait, and in which phase."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[K, str]] = {}
        self.phase = "start"

    @contextmanager
    def waiting_for(self, peer: K, phase: str) -> Iterator[None]:
        """Record a wait while the context is active."""
        mark = object()
        self._waiting[mark] = (peer, phase)
        try:
            yield
        finally:
            del self._waiting[mark]

    def current(self) -> tuple[K | None, str]:
        """Return peer and phase of the longest wait, or None and the last phase."""
        for wait in list(self._waiting.values()):
            return wait
        return None, self.phase


class PeerState(Generic[K]):
    """The recent heartbeats of one peer."""

    def __init__(self, now: float) -> None:
        self.heard_at = now
        self.moved_at = now
        self.phase = "start"
        self.waits_for: K | None = None
        self.waited_s = 0.0
        self.ended = False
        self._moved_bytes = 0
        self._work: deque[tuple[float, float]] = deque()

    def update(self, now: float, beat: Heartbeat[K], *, limit_s: float) -> None:
        """Record a heartbeat."""
        self.heard_at = now
        if beat.moved_bytes != self._moved_bytes:
            self._moved_bytes, self.moved_at = beat.moved_bytes, now
        self.phase, self.waits_for, self.waited_s = beat.phase, beat.waits_for, beat.waited_s
        self._work.append((now, beat.work_s))
        while len(self._work) > 1 and self._work[1][0] <= now - limit_s:
            self._work.popleft()

    def is_idle(self, now: float, limit_s: float) -> bool:
        """Return whether it transferred nothing and computed next to nothing for ``limit_s``."""
        history = list(self._work)
        if now - self.moved_at < limit_s or not history or history[0][0] > now - limit_s:
            return False
        (began, before), (last, after) = history[0], history[-1]
        return after - before < MIN_CPU_SHARE * (last - began) or last == began


class FailureDetector(Generic[K]):
    """A failure detector: suspects peers by their heartbeats.

    Attributes:
        deadline_s: seconds without a sign of life, or without progress, within which a peer is suspected.
        limit_s: seconds after which it is suspected: two ticks less, since a heartbeat and a check may each take one.
        tick_s: seconds between two heartbeats, and between two checks.
        clock: the clock of all times here.
    """

    def __init__(self, peers: Iterable[K], *, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.tick_s = min(1.0, deadline_s / 8)
        self.limit_s = deadline_s - 2 * self.tick_s
        self.clock = AwakeClock(2 * self.tick_s)
        now = self.clock.now()
        self.peers: dict[K, PeerState[K]] = {peer: PeerState(now) for peer in peers}

    def join(self, peer: K) -> None:
        """Start to watch a peer."""
        self.peers[peer] = PeerState(self.clock.now())

    def leave(self, peer: K) -> None:
        """Stop watching a peer."""
        self.peers.pop(peer, None)

    def beat(self, peer: K, beat: Heartbeat[K]) -> None:
        """Record a peer's heartbeat."""
        self.peers[peer].update(self.clock.now(), beat, limit_s=self.limit_s)

    def heard(self, peer: K, *, data: bool = False) -> None:
        """Record that something was received from a peer, and whether it was data."""
        state = self.peers[peer]
        state.heard_at = self.clock.now()
        if data:
            state.moved_at = state.heard_at

    def end(self, peer: K) -> None:
        """Record that a peer ended normally: it is never suspected and waits for no peer."""
        state = self.peers[peer]
        state.ended, state.waits_for = True, None

    def silent_s(self, peer: K) -> float:
        """Return the seconds since a peer's last sign of life."""
        return self.clock.now() - self.peers[peer].heard_at

    def is_silent(self, peer: K) -> bool:
        """Return whether a peer gave no sign of life for ``limit_s``."""
        return self.silent_s(peer) >= self.limit_s

    def suspect(self, waiter: K, peer: K, since: float) -> Suspicion[K] | None:
        """Return the peer that blocks ``waiter``, which has waited for ``peer`` since ``since``; None: wait on."""
        now, chain = self.clock.now(), [waiter]
        for at in self._wait_chain(peer):
            state = self.peers[at]
            if at in chain:
                if at == waiter and not state.is_idle(now, self.limit_s):
                    return None
                return _cycle_suspicion(waiter, tuple(chain[chain.index(at) :]))
            if state.ended:
                return None
            if now - state.heard_at >= self.limit_s:
                return Suspicion(at, silent_s=now - state.heard_at)
            if now - since < self.limit_s or not state.is_idle(now, self.limit_s):
                return None
            chain.append(at)
        return Suspicion(chain[-1])

    def culprit(self) -> Suspicion[K] | None:
        """Return the peer that blocks the others, for an observer that does not wait itself.

        This peer is silent, or at the end of the chain of waits of a peer that has waited for ``limit_s``.
        """
        silent_s = {peer: self.silent_s(peer) for peer, state in self.peers.items() if not state.ended}
        silent = max(silent_s, key=silent_s.__getitem__, default=None)
        if silent is not None and silent_s[silent] >= self.limit_s:
            return Suspicion(silent, silent_s=silent_s[silent])
        for peer, state in self.peers.items():
            if state.waits_for is not None and state.waited_s >= self.limit_s:
                chain = [peer]
                for at in self._wait_chain(state.waits_for):
                    if at in chain:
                        break
                    chain.append(at)
                else:
                    return Suspicion(chain[-1])
        return None

    def _wait_chain(self, peer: K | None) -> Iterator[K]:
        """Yield a peer, the peer that it waits for, and so on; endless if peers wait in a circle."""
        while peer is not None:
            yield peer
            peer = self.peers[peer].waits_for


def _cycle_suspicion(waiter: K, cycle: tuple[K, ...]) -> Suspicion[K]:
    return Suspicion(next((one for one in cycle if one != waiter), waiter), cycle=cycle)
