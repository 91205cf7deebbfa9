"""Heartbeats and the failure detector: which peer is lost, and which one blocks the others. It opens no connection.

Each peer reports now and then how much it has worked and moved so far, and which peer it waits for. A peer is lost when
nothing at all is heard of it, and stuck when it neither moved data nor worked, for almost the deadline: two ticks less,
so that the error comes within the deadline. A peer that waits for a third one is not to blame: the chain of waits is
followed to its end.
"""

import threading
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from resource import RUSAGE_SELF, getrusage
from typing import Generic, NamedTuple, TypeVar

BUSY = 0.05  # the share of a core, on average over the deadline, that counts as progress
K = TypeVar("K", bound=Hashable)


class Heartbeat(NamedTuple, Generic[K]):
    """The report of one peer.

    Attributes:
        work_s: seconds of work so far, see :func:`work_s`.
        moved_bytes: data that it sent and received so far.
        waits_for: the peer it waits for, or None.
        phase: the label of that wait, or of its last call.
        waited_s: seconds for which it has waited.
    """

    work_s: float
    moved_bytes: int
    waits_for: K | None
    phase: str
    waited_s: float = 0.0


class Suspicion(NamedTuple, Generic[K]):
    """The verdict on a peer that is waited for in vain.

    Attributes:
        peer: the peer to blame.
        silent_s: seconds for which nothing was heard of it; 0 where it lives but does nothing.
        cycle: peers that wait for each other in a circle, or nothing.
    """

    peer: K
    silent_s: float = 0.0
    cycle: tuple[K, ...] = ()


def work_s() -> float:
    """Seconds of work of this process: its CPU time, and its disk traffic as if at 100 MB/s."""
    use = getrusage(RUSAGE_SELF)
    blocks = use.ru_inblock + use.ru_oublock
    return use.ru_utime + use.ru_stime + blocks * 512 / 100e6 + use.ru_majflt * 1e-3


class AwakeClock:
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


class WaitTracker(Generic[K]):
    """The waits of this process: for which peer, in which phase."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[K, str]] = {}
        self.phase = "start"

    @contextmanager
    def waiting_for(self, peer: K, phase: str) -> Iterator[None]:
        """Record a wait for as long as it lasts."""
        mark = object()
        self._waiting[mark] = (peer, phase)
        try:
            yield
        finally:
            del self._waiting[mark]

    def current(self) -> tuple[K | None, str]:
        """The wait that has lasted longest, or None and the last phase."""
        for wait in list(self._waiting.values()):
            return wait
        return None, self.phase


class PeerState(Generic[K]):
    """The last reports of one peer."""

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
        """Whether for the limit it moved nothing and did next to no work."""
        history = list(self._work)
        if now - self.moved_at < limit_s or not history or history[0][0] > now - limit_s:
            return False
        (began, before), (last, after) = history[0], history[-1]
        return after - before < BUSY * (last - began) or last == began


class FailureDetector(Generic[K]):
    """Suspects peers by their heartbeats.

    Attributes:
        deadline_s: seconds without a sign of life, or without progress, within which a peer is suspected.
        limit_s: the seconds after which it is; two ticks less, since a heartbeat and a look may each take one.
        tick_s: how often heartbeats are to be sent and suspicions asked for.
        clock: the time that it judges by.
    """

    def __init__(self, peers: Iterable[K], *, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.tick_s = min(1.0, deadline_s / 8)
        self.limit_s = deadline_s - 2 * self.tick_s
        self.clock = AwakeClock(2 * self.tick_s)
        now = self.clock.now()
        self.peers: dict[K, PeerState[K]] = {peer: PeerState(now) for peer in peers}

    def join(self, peer: K) -> None:
        """Watch one peer more."""
        self.peers[peer] = PeerState(self.clock.now())

    def leave(self, peer: K) -> None:
        """Watch a peer no more."""
        self.peers.pop(peer, None)

    def beat(self, peer: K, beat: Heartbeat[K]) -> None:
        """Record a peer's heartbeat."""
        self.peers[peer].update(self.clock.now(), beat, limit_s=self.limit_s)

    def heard(self, peer: K, *, data: bool = False) -> None:
        """Record that something came from a peer, and whether it was data."""
        state = self.peers[peer]
        state.heard_at = self.clock.now()
        if data:
            state.moved_at = state.heard_at

    def end(self, peer: K) -> None:
        """Record that a peer ended in good order: it is never silent, and waits for nobody."""
        state = self.peers[peer]
        state.ended, state.waits_for = True, None

    def silent_s(self, peer: K) -> float:
        """Seconds since something was heard of a peer."""
        return self.clock.now() - self.peers[peer].heard_at

    def is_silent(self, peer: K) -> bool:
        """Whether nothing was heard of a peer for the limit."""
        return self.silent_s(peer) >= self.limit_s

    def suspect(self, waiter: K, peer: K, since: float) -> Suspicion[K] | None:
        """The peer that blocks ``waiter``, which has waited for ``peer`` since a time of the clock; None: wait on."""
        now, chain = self.clock.now(), [waiter]
        for at in self._followed(peer):
            state = self.peers[at]
            if at in chain:
                if at == waiter and not state.is_idle(now, self.limit_s):
                    return None
                return _in_cycle(waiter, tuple(chain[chain.index(at) :]))
            if state.ended:
                return None
            if now - state.heard_at >= self.limit_s:
                return Suspicion(at, silent_s=now - state.heard_at)
            if now - since < self.limit_s or not state.is_idle(now, self.limit_s):
                return None
            chain.append(at)
        return Suspicion(chain[-1])

    def culprit(self) -> Suspicion[K] | None:
        """The peer that keeps the others waiting, by their reports alone, for an observer that waits for nobody itself.

        It is silent, or at the end of the chain of waits of a peer that has waited for the limit.
        """
        silent_s = {peer: self.silent_s(peer) for peer, state in self.peers.items() if not state.ended}
        silent = max(silent_s, key=silent_s.__getitem__, default=None)
        if silent is not None and silent_s[silent] >= self.limit_s:
            return Suspicion(silent, silent_s=silent_s[silent])
        for peer, state in self.peers.items():
            if state.waits_for is not None and state.waited_s >= self.limit_s:
                chain = [peer]
                for at in self._followed(state.waits_for):
                    if at in chain:
                        break
                    chain.append(at)
                else:
                    return Suspicion(chain[-1])
        return None

    def _followed(self, peer: K | None) -> Iterator[K]:
        """A peer, the one that it waits for, and so on; it never ends where peers wait in a circle."""
        while peer is not None:
            yield peer
            peer = self.peers[peer].waits_for


def _in_cycle(waiter: K, cycle: tuple[K, ...]) -> Suspicion[K]:
    return Suspicion(next((one for one in cycle if one != waiter), waiter), cycle=cycle)
