"""The communication that a temporal model needs: all-to-all transposes, a temporal halo, an all-gather and a scan.

The rows of a segment (consecutive steps) are stored in two layouts. Time-major: some steps of all nodes, for graph
work. Node-major: all steps of some nodes, for recurrences. The caller decides which rank owns which steps and nodes.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

# How a segment is run: forward without autograd (to be recomputed later), recomputed with autograd, or run only once.
SegmentPass = Literal["forward", "recompute", "once"]


class ActivityMask(NamedTuple):
    """Marks the nodes that have an edge in a step; no neighbour reads the rows of the others, so these are not sent.

    Attributes:
        steps: (own steps, N) bool, the mask of time-major rows.
        nodes: (steps of the segment, own nodes) bool, the mask of node-major rows.
    """

    steps: Tensor
    nodes: Tensor


class TemporalComm(Protocol):
    """The communication of a temporal model. Collective: every rank makes the same calls in the same order.

    Every function is differentiable: gradients of the returned rows travel back to the ranks that sent them.

    Attributes:
        own_steps: the steps of the segment that this rank owns.
        own_nodes: the nodes that this rank owns.
        is_local: whether this rank owns all steps and all nodes, so that no row is sent.
    """

    @property
    def own_steps(self) -> slice:
        """The steps of the segment that this rank owns."""

    @property
    def own_nodes(self) -> slice:
        """The nodes that this rank owns."""

    @property
    def is_local(self) -> bool:
        """True if this rank owns all steps and all nodes."""

    def begin_segment(self, segment: int, mode: SegmentPass) -> None:
        """Begin a segment; when it is recomputed, the rows that were received the first time are replayed."""

    @property
    def node_chunks(self) -> Sequence[slice]:
        """The chunks of the own nodes, counted from the first own node; recurrences run chunk by chunk."""

    def apply_node_major(
        self,
        y: Tensor,
        function: Callable[[int, Tensor], Tensor],
        *,
        send_mask: ActivityMask | None = None,
        return_mask: ActivityMask | None = None,
    ) -> Tensor:
        """Transpose to node-major, apply ``function`` chunk by chunk, transpose back: (own steps, N, F) -> (.., N, H).

        ``function`` gets the number of a chunk and its rows, (steps of the segment, R, F), and returns
        (steps of the segment, R, H). It is called as soon as the chunk has arrived, while later chunks travel. With a
        mask, inactive rows are not sent in that direction and arrive as zeros.
        """

    def temporal_halo(self, x: Tensor, history: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
        """The rows of the ``count`` steps before the first own step, and the history to pass for the next segment.

        ``x`` is (own steps, N, F). ``history`` (K, N, F) is the second result of the previous segment, (0, N, F) at
        the start of time. Near the start of time there are fewer than ``count`` rows.
        """

    def all_gather_steps(self, rows: Tensor) -> Tensor:
        """Gather the rows of all steps on every rank: (own steps, k, F) -> (steps of the segment, k, F)."""

    def scan_state_before(self, state: Tensor, compose: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
        """The state of a linear recurrence before the first own step, from that before the segment: (N, H) -> (N, H).

        An exclusive scan over ranks. ``compose`` returns (a, b), each (N, H): the own steps map a state h to
        ``a h + b``.
        """

    def broadcast_final_state(self, state: Tensor) -> Tensor:
        """Send the state after the segment's last step to all ranks; ``state`` is that after the last own step.

        (N, H) -> (N, H).
        """


class SingleRankComm:
    """The ``TemporalComm`` of one rank, which owns all steps and all nodes; no row is sent."""

    own_steps = slice(0, None)
    own_nodes = slice(0, None)
    is_local = True
    node_chunks = (slice(0, None),)

    def begin_segment(self, segment: int, mode: SegmentPass) -> None:
        """Do nothing."""

    def apply_node_major(
        self,
        y: Tensor,
        function: Callable[[int, Tensor], Tensor],
        *,
        send_mask: ActivityMask | None = None,
        return_mask: ActivityMask | None = None,
    ) -> Tensor:
        """Apply ``function`` to all rows at once."""
        return function(0, y)

    def temporal_halo(self, x: Tensor, history: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
        """Return the history, and the last ``count`` rows of history and segment."""
        short = max(0, count - x.shape[0])
        last = x[max(0, x.shape[0] - count) :]
        return history, torch.cat([history[max(0, history.shape[0] - short) :], last]) if short else last

    def all_gather_steps(self, rows: Tensor) -> Tensor:
        """Return the rows."""
        return rows

    def scan_state_before(self, state: Tensor, compose: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
        """Return the state."""
        return state

    def broadcast_final_state(self, state: Tensor) -> Tensor:
        """Return the state."""
        return state


single_rank: TemporalComm = SingleRankComm()
