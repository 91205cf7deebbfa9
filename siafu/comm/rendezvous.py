"""Rendezvous of ranks: the settings of a group, and a key-value store for its addresses. It opens no connection."""

import threading
import time
from dataclasses import dataclass, field
from typing import Protocol


class RendezvousStore(Protocol):
    """A key-value store that all ranks of a group can reach, such as a TCPStore.

    It is not trusted: others may read and write it too. No secret goes there, and values from it are checked.
    """

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""

    def get(self, key: str, *, timeout_s: float) -> bytes:
        """Wait for a value and return it; raises TimeoutError."""
        ...


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One rank's view of its group, before the ranks connect.

    Attributes:
        rank: this rank, from 0.
        world_size: the number of ranks.
        secret: known only to the ranks of the group; each proves that it knows it.
        bind: the address to listen on, which the other ranks can reach; empty for ranks of one host.
        encrypt: whether ranks on several hosts use TLS.
        deadline_s: seconds without progress before a peer counts as lost.
        settings: a digest of the settings; it must be equal on all ranks.
        version: the version of siafu on this rank.
        name: the name of this host, for messages.
    """

    rank: int
    world_size: int
    secret: bytes = field(repr=False)
    bind: str
    encrypt: bool
    deadline_s: float
    settings: str
    version: str
    name: str

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank is {self.rank}; expected one of 0 to {self.world_size - 1}")
        if not self.secret:
            raise ValueError("the group's secret is empty; expected one that only its ranks know")
        if not self.deadline_s > 0:
            raise ValueError(f"deadline_s is {self.deadline_s}; expected more than 0 seconds")


class LocalRendezvousStore:
    """A ``RendezvousStore`` for ranks that are threads of one process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, *, timeout_s: float) -> bytes:
        """Wait for a value and return it; raises TimeoutError."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while key not in self._values:
                if not self._changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    raise TimeoutError(f"nobody left {key!r} within {timeout_s:g} s")
            return self._values[key]
