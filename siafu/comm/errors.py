"""Errors of communication between ranks: each names both ranks, the phase, and what the user can do."""

from collections.abc import Callable, Sequence
from typing import Any


class CommError(RuntimeError):
    """An exchange failed.

    Attributes:
        peer: the rank at fault, -1 if unknown.
        host: the host of that rank.
        phase: the label of the call that failed.
    """

    def __init__(self, message: str, *, peer: int, host: str, phase: str) -> None:
        super().__init__(message)
        self.peer = peer
        self.host = host
        self.phase = phase

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.peer, self.host, self.phase)


class PeerLost(CommError):
    """A peer disconnected, sent no heartbeat, or made no progress for too long."""


class PeerFailed(CommError):
    """A peer reported that it failed."""


class PeerMismatch(CommError):
    """A peer differs from this rank in version, settings, secret or protocol."""


class CollectiveMismatch(CommError):
    """Ranks did not make the same collective calls in the same order."""


class PeerProtocolError(CommError):
    """A peer sent data that violates the wire protocol, or the data was damaged on its way."""


# Makes the error of a failed wait from the phase (label) of that wait.
ErrorFactory = Callable[[str], CommError]


def format_rank(rank: int, hosts: Sequence[str]) -> str:
    """Format a rank for a message."""
    return f"rank {rank} on {hosts[rank]}"


def peer_failed(peer: int, hosts: Sequence[str], *, where: str, message: str) -> ErrorFactory:
    """Return the error for a peer that reported a failure in phase ``where``."""
    text = f'{format_rank(peer, hosts)} failed in "{where}": {message}'
    return lambda phase: PeerFailed(text, peer=peer, host=hosts[peer], phase=phase)


def connection_lost(rank: int, peer: int, hosts: Sequence[str], *, how: str) -> ErrorFactory:
    """Return the error for a peer whose connection broke."""

    def error(phase: str) -> CommError:
        text = (
            f'{format_rank(peer, hosts)} is gone ({how}) while {format_rank(rank, hosts)} waited in "{phase}"; '
            "it was killed, ran out of memory or lost its network: look at its own output, then resume the run"
        )
        return PeerLost(text, peer=peer, host=hosts[peer], phase=phase)

    return error


def peer_ended(rank: int, peer: int, hosts: Sequence[str]) -> ErrorFactory:
    """Return the error for a peer that ended normally while other ranks still needed it."""

    def error(phase: str) -> CommError:
        text = (
            f'{format_rank(peer, hosts)} ended before "{phase}", which {format_rank(rank, hosts)} called; '
            "every rank must make the same calls in the same order"
        )
        return PeerLost(text, peer=peer, host=hosts[peer], phase=phase)

    return error


def comm_closed(rank: int, hosts: Sequence[str], *, why: str = "closed its group") -> ErrorFactory:
    """Return the error for a call that this rank makes after it closed or failed."""
    text = f"{format_rank(rank, hosts)} has {why}"
    return lambda phase: CommError(
        f'{text}; it cannot call "{phase}"', peer=rank, host=hosts[rank], phase=phase
    )


def _rebuild(kind: type[CommError], message: str, peer: int, host: str, phase: str) -> CommError:
    return kind(message, peer=peer, host=host, phase=phase)
