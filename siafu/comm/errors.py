"""What can go wrong between ranks: every error names both sides, the phase, and what to do."""

from collections.abc import Callable, Sequence
from typing import Any


class CommError(RuntimeError):
    """An exchange could not be finished.

    Attributes:
        peer: the rank at fault, -1 where it is not known.
        host: the host of that rank.
        phase: the label of the call that could not be finished.
    """

    def __init__(self, message: str, *, peer: int, host: str, phase: str) -> None:
        super().__init__(message)
        self.peer = peer
        self.host = host
        self.phase = phase

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), str(self), self.peer, self.host, self.phase)


class PeerLost(CommError):
    """A peer is gone, was silent or made no progress for too long."""


class PeerFailed(CommError):
    """A peer said itself that it failed, and why."""


class PeerMismatch(CommError):
    """A peer that this rank cannot work with: another version, other settings, another secret, another protocol."""


class OutOfStep(CommError):
    """Ranks did not make the same calls in the same order."""


class FrameError(CommError):
    """What came over a connection is not what a rank of this group sends."""


# The error of a wait, made when its phase is known.
ErrorFactory = Callable[[str], CommError]


def name_rank(rank: int, hosts: Sequence[str]) -> str:
    """How errors speak of a rank."""
    return f"rank {rank} on {hosts[rank]}"


def failed(peer: int, hosts: Sequence[str], *, where: str, message: str) -> ErrorFactory:
    """The error of a peer that said that it failed in phase ``where``."""
    text = f'{name_rank(peer, hosts)} failed in "{where}": {message}'
    return lambda phase: PeerFailed(text, peer=peer, host=hosts[peer], phase=phase)


def gone(rank: int, peer: int, hosts: Sequence[str], *, how: str) -> ErrorFactory:
    """The error of a peer whose connection broke."""

    def error(phase: str) -> CommError:
        text = (
            f'{name_rank(peer, hosts)} is gone ({how}) while {name_rank(rank, hosts)} waited in "{phase}"; '
            "it was killed, ran out of memory or lost its network: look at its own output, then resume the run"
        )
        return PeerLost(text, peer=peer, host=hosts[peer], phase=phase)

    return error


def ended(rank: int, peer: int, hosts: Sequence[str]) -> ErrorFactory:
    """The error of a peer that ended in good order while it was still needed."""

    def error(phase: str) -> CommError:
        text = (
            f'{name_rank(peer, hosts)} ended before "{phase}", which {name_rank(rank, hosts)} called; '
            "every rank must make the same calls in the same order"
        )
        return PeerLost(text, peer=peer, host=hosts[peer], phase=phase)

    return error


def closed(rank: int, hosts: Sequence[str], *, why: str = "closed its group") -> ErrorFactory:
    """The error of a call that this rank makes after its own end."""
    text = f"{name_rank(rank, hosts)} has {why}"
    return lambda phase: CommError(
        f'{text}; it cannot call "{phase}"', peer=rank, host=hosts[rank], phase=phase
    )


def _again(kind: type[CommError], message: str, peer: int, host: str, phase: str) -> CommError:
    return kind(message, peer=peer, host=host, phase=phase)
