"""The rendezvous of ranks: a group, and a board with the addresses of its ranks. It opens no connection."""

import threading
import time
from dataclasses import dataclass, field
from typing import Protocol


class Meet(Protocol):
    """A small board of keys and values that all ranks of a group reach, such as a TCPStore.

    Others may read and write it too: no secret goes there, and what it holds is checked.
    """

    def set(self, key: str, value: bytes) -> None:
        """Leave a value."""

    def get(self, key: str, *, timeout_s: float) -> bytes:
        """Wait for a value; raises TimeoutError."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """One rank's place in a group of ranks.

    Attributes:
        rank: this rank, from 0.
        world_size: how many ranks there are.
        secret: known to the ranks of the group alone; each proves that it knows it.
        bind: the address to listen on, one that the other ranks reach; empty for ranks of one host.
        encrypt: whether ranks on several hosts use TLS.
        deadline_s: seconds without progress before a peer counts as lost.
        settings: a digest of the settings, which must be equal on all ranks.
        version: the version of siafu that this rank runs.
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


class Board:
    """A ``Meet`` for ranks of one process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Leave a value."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, *, timeout_s: float) -> bytes:
        """Wait for a value; raises TimeoutError."""
        end = time.monotonic() + timeout_s
        with self._changed:
            while key not in self._values:
                if not self._changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    raise TimeoutError(f"nobody left {key!r} within {timeout_s:g} s")
            return self._values[key]
