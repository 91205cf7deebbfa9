"""Errors for ranks that the failure detector of ``wire.heartbeats`` finds lost, stuck or deadlocked."""

from collections.abc import Sequence

from siafu.comm.errors import CommError, ErrorFactory, PeerLost, format_rank
from siafu.wire.heartbeats import FailureDetector


class Liveness:
    """Turns the suspicions of the failure detector into errors for a user.

    Attributes:
        hosts: the host of each rank.
        detector: the failure detector of the ranks.
    """

    def __init__(self, hosts: Sequence[str], *, deadline_s: float) -> None:
        self.hosts = tuple(hosts)
        self.detector = FailureDetector(range(len(hosts)), deadline_s=deadline_s)

    def suspect_error(self, rank: int, peer: int, since: float) -> ErrorFactory | None:
        """Return the error for ``rank``, which has waited for ``peer`` since ``since``; None if it should wait on."""
        found = self.detector.suspect(rank, peer, since)
        if found is None:
            return None
        if found.cycle:
            return self._deadlock_error(rank, found.peer, found.cycle)
        if found.silent_s:
            return self._silent_error(rank, found.peer, found.silent_s)
        return self._stuck_error(rank, found.peer, peer)

    def _silent_error(self, rank: int, peer: int, silent_s: float) -> ErrorFactory:
        return self._lost(
            rank,
            peer,
            f"was silent for {silent_s:.3g} s",
            f'it was last heard in "{self._phase(peer)}". Its process was stopped, its host is down or the network '
            "between them is cut: look there, then resume the run",
        )

    def _stuck_error(self, rank: int, peer: int, waited_for: int) -> ErrorFactory:
        via = "" if peer == waited_for else f" ({format_rank(waited_for, self.hosts)} waits for it too)"
        return self._lost(
            rank,
            peer,
            f"made no progress for {self.detector.limit_s:.3g} s",
            f'it lives, but since "{self._phase(peer)}" it neither computed nor sent{via}. Look what it waits '
            "for; if it needs longer, raise comm.deadline",
        )

    def _deadlock_error(self, rank: int, peer: int, ranks: Sequence[int]) -> ErrorFactory:
        waits = ", ".join(
            f'{format_rank(one, self.hosts)} for rank {self.detector.peers[one].waits_for} in "{self._phase(one)}"'
            for one in ranks
        )
        return self._lost(
            rank,
            peer,
            f"made no progress for {self.detector.limit_s:.3g} s",
            f"ranks wait for each other: {waits}. Every rank must make the same calls in the same order",
        )

    def _phase(self, rank: int) -> str:
        return self.detector.peers[rank].phase

    def _lost(self, rank: int, peer: int, what: str, advice: str) -> ErrorFactory:
        def error(phase: str) -> CommError:
            waiter = format_rank(rank, self.hosts)
            text = f'{format_rank(peer, self.hosts)} {what} while {waiter} waited in "{phase}"; {advice}'
            return PeerLost(text, peer=peer, host=self.hosts[peer], phase=phase)

        return error
