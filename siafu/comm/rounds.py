"""Rounds: an exchange with whoever is present, which returns who was. Comm asks all; this does without some.

Members are numbered from 0. A process speaks for one of them or for several: a site for itself, a simulation
(:mod:`siafu.comm.simulated_rounds`) for all. A coordinator adds up what members give and tells them the sum.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from siafu.comm.wire_sizes import EXACT, UpdateWire


class QuorumMissed(ValueError):
    """Too few members are there, and were not there later either."""


class Rounds(Protocol):
    """What lazy training asks of members that come and go."""

    @property
    def num_members(self) -> int:
        """P, those who are there and those who are not."""

    def meet(self, stage: int) -> Tensor:
        """Who is there for a stage, (P,) bool: at least a quorum, which is waited for. Raises QuorumMissed."""

    def draw(self, number: int, among: Tensor) -> Tensor:
        """Who of ``among``, (P,) bool, takes part in a round, (P,) bool: somebody, where there is anybody."""

    def exchange(self, x_own: Tensor, asked: Tensor, *, label: str) -> tuple[Tensor, Tensor]:
        """Send rows, (D, F), along those messages of the links that are ``asked`` for, (M,) bool.

        Returns the rows of all sources that are known here, (S, F), and which messages came, (M,) bool.
        """

    def tell(self, values: Tensor, hearers: Tensor, *, label: str, wire: UpdateWire = EXACT) -> Tensor:
        """What the coordinator has for ``hearers``, (P,) bool: (N,) -> (N,), as it travels."""

    def collect(self, values: Tensor, givers: Tensor, *, label: str, wire: UpdateWire = EXACT) -> Tensor:
        """The sum of what ``givers``, (P,) bool, give the coordinator: (N,) -> (N,).

        ``values`` is the sum of those that this process speaks for, each of them as it travels.
        """


@dataclass(frozen=True, eq=False)
class MemberLinks:
    """Which rows go to whom, where every node's row goes once to each other member that reads it.

    Attributes:
        row: (M,) int64, the node whose row it is, of each message.
        reader: (M,) int64, the member that it goes to.
        link: (M,) int64, the place in ``pair`` of who sends to whom.
        pair: (L, 2) int64, sender and reader of each link, ascending.
        of_edge: (E,) int64, the message that brings the source of each edge; -1 where its own member has it.
    """

    row: Tensor
    reader: Tensor
    link: Tensor
    pair: Tensor
    of_edge: Tensor


def member_links(indptr: Tensor, indices: Tensor, owner: Tensor) -> MemberLinks:
    """The links of a graph by in-edges whose nodes have an ``owner`` each, (N,) int64."""
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
