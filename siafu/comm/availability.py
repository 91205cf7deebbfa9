"""Availability and participation of simulated clients: counter-based random draws, reproducible on any thread count."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.comm.rounds import QuorumMissed
from siafu.native.splitmix import splitmix64

_WAITS = 16  # draws until a quorum is given up
_STAGES, _ROUNDS = 1, 2  # streams of random numbers


@dataclass(frozen=True)
class ClientAvailability:
    """Draws which clients are available for a stage, and which of them take part in a round.

    Attributes:
        num_members: P, the number of clients.
        seed: the seed of the draws.
        participation: the share of eligible clients that takes part in a round.
        away: the probability that a client is away for a stage.
        quorum: the share of all clients that a stage needs.
    """

    num_members: int
    seed: int = 0
    participation: float = 1.0
    away: float = 0.0
    quorum: float = 0.0

    def sample_available(self, stage: int, needed: Sequence[Tensor] = ()) -> Tensor:
        """Draw the clients available for a stage, (P,) bool: a quorum, and at least one of each of ``needed``.

        ``needed`` are groups of clients, each (P,) bool. If too few are available, the draw is repeated.
        """
        wanted = ceil(self.quorum * self.num_members - 1e-9)
        for wait in range(_WAITS):
            there = torch.from_numpy(self._uniform(_STAGES, stage, wait) >= self.away)
            if int(there.sum()) >= wanted and all(bool((there & each).any()) for each in needed):
                return there
        what = (
            "but a group that the stage needs has none of them"
            if int(there.sum()) >= wanted
            else f"expected {wanted}"
        )
        raise QuorumMissed(
            f"stage {stage + 1}: after {_WAITS} waits {int(there.sum())} of {self.num_members} clients are available, "
            f"{what}; lower lazy.quorum (now {self.quorum:g}) or lazy.away (now {self.away:g})"
        )

    def sample_participants(self, number: int, among: Tensor) -> Tensor:
        """Draw the participants of a round from ``among``, (P,) bool: the share of them, rounded up."""
        wanted = ceil(self.participation * int(among.sum()) - 1e-9)
        rank = torch.from_numpy(self._uniform(_ROUNDS, number, 0))
        rank[~among] = 2.0
        taken = torch.zeros(self.num_members, dtype=torch.bool)
        taken[rank.argsort(stable=True)[:wanted]] = True
        return taken

    def _uniform(self, *counters: int) -> NDArray[np.float64]:
        """Draw a uniform number in [0, 1) for each client, by seed and counters."""
        key = np.array([self.seed % 2**64], dtype=np.uint64)
        for counter in counters:
            key = splitmix64(key ^ np.uint64(counter))
        mixed = splitmix64(key ^ splitmix64(np.arange(self.num_members, dtype=np.uint64)))
        return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
