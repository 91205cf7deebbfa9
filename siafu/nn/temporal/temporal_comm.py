"""How rows of a block of time go from steps to nodes and back: what a model asks of those who share the work with it.

A model computes some steps of a block of time for all nodes, then all steps of the block for some nodes. Who computes
which is decided from outside; with nobody to share with, all rows are here already.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

# How a block of time is passed: to be passed again, again, or once.
Pass = Literal["first", "again", "only"]


class Busy(NamedTuple):
    """Which nodes have an edge in a step: the rows of the others are read by nobody else, and need not be sent.

    Attributes:
        steps: (own steps, N) bool.
        nodes: (steps of the block, own nodes) bool.
    """

    steps: Tensor
    nodes: Tensor


class Turn(Protocol):
    """The one way in which a model meets the other ranks. Collective: all make the same calls in the same order.

    Every function is differentiable: what it returns brings gradients back to those whose rows it read.

    Attributes:
        own_steps: the steps of the block that are computed here.
        own_nodes: the nodes whose rows are computed here.
        together: whether all steps and all nodes are here, so that rows stay where they are.
    """

    @property
    def own_steps(self) -> slice:
        """The steps of the block that are computed here."""

    @property
    def own_nodes(self) -> slice:
        """The nodes that are computed here."""

    @property
    def together(self) -> bool:
        """Whether all steps and all nodes are here."""

    def begin(self, block: int, how: Pass) -> None:
        """A block of time begins; where it is passed again, everything that came first comes again."""

    @property
    def pieces(self) -> Sequence[slice]:
        """The own nodes in pieces, counted from the first own node: what goes along time is computed piece by piece."""

    def through_nodes(
        self,
        y: Tensor,
        along: Callable[[int, Tensor], Tensor],
        *,
        there: Busy | None = None,
        back: Busy | None = None,
    ) -> Tensor:
        """Rows to nodes, what ``along`` makes of each piece of them, and back: (own steps, N, F) -> (own steps, N, H).

        ``along`` is asked for each of the pieces in turn, while the next are still on their way, by its number and its
        rows, (steps of the block, R, F), and gives (steps of the block, R, H). Where busy nodes are given, rows of
        others do not go ``there``, or ``back``, and come as zeros.
        """

    def earlier(self, x: Tensor, kept: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
        """The rows of the ``count`` steps before the first own one, and what to keep for the next block.

        ``x`` is (own steps, N, F), ``kept`` (K, N, F) what was kept of the blocks before, (0, N, F) at the start of
        time, near which there are fewer rows than ``count``.
        """

    def everyone(self, rows: Tensor) -> Tensor:
        """(own steps, k, F) -> (steps of the block, k, F)."""

    def carried_in(self, state: Tensor, own: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
        """The state of a linear recurrence before the first own step, from that before the block: (N, H) -> (N, H).

        ``own`` tells what the own steps make of a state h: ``a h + b``, as (a, b), each (N, H).
        """

    def carried_out(self, state: Tensor) -> Tensor:
        """The state after the last step of the block, from that after the last own one: (N, H) -> (N, H)."""


class Alone:
    """All steps and all nodes are here."""

    own_steps = slice(0, None)
    own_nodes = slice(0, None)
    together = True
    pieces = (slice(0, None),)

    def begin(self, block: int, how: Pass) -> None:
        """Nothing is remembered."""

    def through_nodes(
        self,
        y: Tensor,
        along: Callable[[int, Tensor], Tensor],
        *,
        there: Busy | None = None,
        back: Busy | None = None,
    ) -> Tensor:
        """What is made of all rows at once."""
        return along(0, y)

    def earlier(self, x: Tensor, kept: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
        """What was kept, and the last ``count`` of all rows."""
        short = max(0, count - x.shape[0])
        later = x[max(0, x.shape[0] - count) :]
        return kept, torch.cat([kept[max(0, kept.shape[0] - short) :], later]) if short else later

    def everyone(self, rows: Tensor) -> Tensor:
        """The same rows."""
        return rows

    def carried_in(self, state: Tensor, own: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
        """The same state."""
        return state

    def carried_out(self, state: Tensor) -> Tensor:
        """The same state."""
        return state


alone: Turn = Alone()
