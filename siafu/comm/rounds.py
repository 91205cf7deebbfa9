"""Rounds: exchanges among the members that are available. A Comm needs all its ranks; Rounds tolerates absent members.

Members are numbered from 0. A process acts for one member or for several: a simulation
(:mod:`siafu.comm.simulated_rounds`) acts for all. A coordinator sums the members' updates and broadcasts to them.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from siafu.comm.wire_sizes import EXACT, UpdateEncoding


class QuorumMissed(ValueError):
    """Too few members are available, also after waiting for them."""


class Rounds(Protocol):
    """The operations of lazy training among members that come and go."""

    @property
    def num_members(self) -> int:
        """P, the number of all members, available or not."""

    def available(self, stage: int) -> Tensor:
        """Wait for a quorum; return the members available for a stage, (P,) bool. Raises QuorumMissed."""

    def sample_participants(self, number: int, among: Tensor) -> Tensor:
        """Sample the participants of a round from ``among``, (P,) bool: (P,) bool, at least one if there is any."""

    def exchange(self, x_own: Tensor, asked: Tensor, *, label: str) -> tuple[Tensor, Tensor]:
        """Send rows, (D, F), in the messages ``asked``, (M,) bool.

        Returns the rows of all sources that are known here, (S, F), and the messages that were delivered, (M,) bool.
        """

    def broadcast(
        self, values: Tensor, receivers: Tensor, *, label: str, wire: UpdateEncoding = EXACT
    ) -> Tensor:
        """Send values from the coordinator to ``receivers``, (P,) bool: (N,) -> (N,), as received."""

    def collect(self, values: Tensor, senders: Tensor, *, label: str, wire: UpdateEncoding = EXACT) -> Tensor:
        """Sum the values that ``senders``, (P,) bool, send to the coordinator: (N,) -> (N,).

        ``values`` is the sum over the members that this process acts for, each rounded as on the wire.
        """


@dataclass(frozen=True, eq=False)
class MemberLinks:
    """The messages and links between members; each node's row is sent once to every other member that reads it.

    A message is one row on its way to one member. A link is a pair of sender and reader.

    Attributes:
        row: (M,) int64, the node whose row each message holds.
        reader: (M,) int64, the member that receives it.
        link: (M,) int64, its link, an index into ``pair``.
        pair: (L, 2) int64, sender and reader of each link, ascending.
        of_edge: (E,) int64, the message that brings the source of each edge; -1 if the reader owns the source.
    """

    row: Tensor
    reader: Tensor
    link: Tensor
    pair: Tensor
    of_edge: Tensor


def member_links(indptr: Tensor, indices: Tensor, owner: Tensor) -> MemberLinks:
    """Find the links of a graph, given by in-edges, whose nodes belong to members ``owner``, (N,) int64."""
    reader = owner[torch.arange(indptr.numel() - 1).repeat_interleave(indptr.diff())]  # (E,)
    source = indices.long()
    crosses = owner[source] != reader
    members = int(owner.max()) + 1 if owner.numel() else 0
    key, place = (source[crosses] * members + reader[crosses]).unique(return_inverse=True)
    row, to = key // max(1, members), key % max(1, members)
    pair, link = torch.stack([owner[row], to], 1).unique(dim=0, return_inverse=True)
    of_edge = torch.full_like(source, -1)
    of_edge[crosses] = place
    return MemberLinks(row, to, link, pair, of_edge)
