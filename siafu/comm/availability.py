"""Who is there: counter-based draws, the same on any number of threads and however often they are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.comm.rounds import QuorumMissed
from siafu.native.splitmix import splitmix64

_WAITS = 16  # how often members that are away are waited for
_STAGES, _ROUNDS = 1, 2  # what is drawn


@dataclass(frozen=True)
class Attendance:
    """How members come and go.

    Attributes:
        num_members: P.
        seed: of the draws.
        participation: share of those who could that takes part in a round.
        away: chance of a member to be away for a stage.
        quorum: share of all members that must be there for a stage.
    """

    num_members: int
    seed: int = 0
    participation: float = 1.0
    away: float = 0.0
    quorum: float = 0.0

    def present(self, stage: int, needed: Sequence[Tensor] = ()) -> Tensor:
        """Who is there for a stage, (P,) bool: a quorum, and one at least of each of ``needed``, each (P,) bool.

        Where too few are there, they are waited for: who is there then is drawn anew.
        """
        wanted = ceil(self.quorum * self.num_members - 1e-9)
        for wait in range(_WAITS):
            there = torch.from_numpy(self._uniform(_STAGES, stage, wait) >= self.away)
            if int(there.sum()) >= wanted and all(bool((there & each).any()) for each in needed):
                return there
        what = "of whom none trains" if int(there.sum()) >= wanted else f"expected {wanted}"
        raise QuorumMissed(
            f"stage {stage + 1}: after {_WAITS} waits {int(there.sum())} of {self.num_members} clients are there, "
            f"{what}; lower lazy.quorum (now {self.quorum:g}) or lazy.away (now {self.away:g})"
        )

    def drawn(self, number: int, among: Tensor) -> Tensor:
        """Who of ``among`` takes part in a round, (P,) bool: the share, rounded up, of them."""
        wanted = ceil(self.participation * int(among.sum()) - 1e-9)
        rank = torch.from_numpy(self._uniform(_ROUNDS, number, 0))
        rank[~among] = 2.0
        taken = torch.zeros(self.num_members, dtype=torch.bool)
        taken[rank.argsort(stable=True)[:wanted]] = True
        return taken

    def _uniform(self, *counters: int) -> NDArray[np.float64]:
        """A number from 0 up to 1 for each member and these counters."""
        key = np.array([self.seed % 2**64], dtype=np.uint64)
        for counter in counters:
            key = splitmix64(key ^ np.uint64(counter))
        mixed = splitmix64(key ^ splitmix64(np.arange(self.num_members, dtype=np.uint64)))
        return (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
