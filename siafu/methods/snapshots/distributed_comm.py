"""``DistributedTemporalComm``: the :class:`siafu.nn.temporal.TemporalComm` of several ranks, over a ``Comm``.

Rows of a segment are time-major for graph work and node-major for recurrences. The transpose (``transpose.py``) is an
all-to-all whose volume does not grow with the number of ranks; gradients travel the other way. A segment that is
recomputed replays the rows that it received the first time, so that no row is sent twice.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantization import decode, encode
from siafu.methods.snapshots.time_partition import SegmentPartition
from siafu.methods.snapshots.transpose import (
    ChunkedExchange,
    PendingRows,
    TransposePlan,
    chunk_nodes,
    transpose_apply,
)
from siafu.nn.temporal.temporal_comm import ActivityMask, SegmentPass

_GRADIENTS = " gradients"  # suffix of the label that gradients are metered under


class DistributedTemporalComm:
    """The communication of one pass over time. Collective: every rank makes the same calls in the same order.

    Attributes:
        own_steps: the steps of the current segment that this rank owns, counted from the segment's first.
        own_nodes: the nodes that this rank owns.
    """

    def __init__(
        self,
        comm: Comm,
        segments: Sequence[SegmentPartition],
        *,
        precision: Precision = "fp32",
        label: str = "rows",
    ) -> None:
        self._comm, self._segments, self._precision, self._label = comm, segments, precision, label
        self._received: dict[int, list[Tensor]] = {}
        self.own_nodes = segments[0].nodes_of(comm.rank)
        self.begin_segment(0, "once")

    def begin_segment(self, segment: int, mode: SegmentPass) -> None:
        """Begin a segment; received rows are recorded if it will be recomputed, and replayed when it is."""
        self._current = current = self._segments[segment]
        first, *_ = current.steps_of(self._comm.rank) or [current.start]
        begin = first - current.start
        self.own_steps = slice(begin, begin + current.num_steps[self._comm.rank])
        self._replay = iter(self._received.pop(segment)) if mode == "recompute" else None
        self._record: list[Tensor] | None = None
        if mode == "forward":
            self._record = self._received[segment] = []

    @property
    def is_local(self) -> bool:
        """True if this is the only rank."""
        return self._comm.world_size == 1

    @property
    def node_chunks(self) -> list[slice]:
        """The chunks of the own nodes, counted from the first."""
        return chunk_nodes(self._current, self._comm.rank)

    def apply_node_major(
        self,
        y: Tensor,
        function: Callable[[int, Tensor], Tensor],
        *,
        send_mask: ActivityMask | None = None,
        return_mask: ActivityMask | None = None,
    ) -> Tensor:
        """Transpose to node-major, apply ``function`` to each chunk, transpose back. Collective."""
        if self.is_local:
            return function(0, y)
        to_nodes, to_steps = (
            ChunkedExchange(self, TransposePlan(self._current, self._comm.rank, mask))
            for mask in (send_mask, return_mask)
        )
        return transpose_apply(y, function, to_nodes, to_steps)

    def temporal_halo(self, x: Tensor, history: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
        """Fetch the rows of the ``count`` steps before the first own step, fewer near the start of time. Collective.

        ``history`` are own rows of steps before this segment that this segment or a later one reads. Returns the halo
        and the history for the next segment: (own steps, N, F), (k, N, F) -> (at most count, N, F), (k', N, F).
        """
        rank, ranks = self._comm.rank, range(self._comm.world_size)
        mine = self._history_steps(rank, self._current.start, count) + list(self._current.steps_of(rank))
        rows = torch.cat([history, x])
        place = {step: row for row, step in enumerate(mine)}
        wanted = [self._halo_steps(reader, count) for reader in ranks]
        if not self.is_local:
            send_steps = [[step for step in wanted[peer] if step in place] for peer in ranks]
            recv_steps = [self._owned_steps(wanted[rank], peer) for peer in ranks]
            size, width = x.shape[1], x.shape[2]
            sent = rows[[place[step] for steps in send_steps for step in steps]].reshape(-1, width)
            send, recv = ([len(steps) * size for steps in lists] for lists in (send_steps, recv_steps))
            received = self._all_to_all(sent, send, recv).view(-1, size, width)
            order = torch.tensor(
                [step for steps in recv_steps for step in steps], dtype=torch.int64
            ).argsort()
            halo = received[order]
        else:
            halo = rows[[place[step] for step in wanted[rank]]]
        later = self._history_steps(rank, self._current.stop, count)
        return halo, rows[[place[step] for step in later]]

    def all_gather_steps(self, rows: Tensor) -> Tensor:
        """Gather the rows of all steps on every rank: (own steps, k, F) -> (steps, k, F). Collective."""
        if self.is_local:
            return rows
        size, width, ranks = rows.shape[1], rows.shape[2], self._comm.world_size
        sent = rows.reshape(-1, width).repeat(ranks, 1)
        recv = [steps * size for steps in self._current.num_steps]
        return self._all_to_all(sent, [rows.shape[0] * size] * ranks, recv).view(-1, size, width)

    def scan_state_before(self, state: Tensor, compose: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
        """The state of a linear recurrence before the first own step, from that before the segment: (N, H) -> (N, H).

        An exclusive scan over ranks: the own steps map a state h to ``a h + b``, and ``compose`` returns (a, b).
        Collective.
        """
        if self.is_local:
            return state
        pairs = self._all_gather(torch.cat(compose(), 1))
        for decay, gain in (each.chunk(2, 1) for each in pairs[: self._comm.rank]):
            state = decay * state + gain
        unread = sum(each.sum() for each in pairs[self._comm.rank :])
        return state + 0 * unread  # so that every rank takes part in the exchange of gradients

    def broadcast_final_state(self, state: Tensor) -> Tensor:
        """Send the last rank's state after its last step to all ranks: (N, H) -> (N, H). Collective."""
        if self.is_local:
            return state
        rows, last, ranks = state.shape[0], self._comm.world_size - 1, self._comm.world_size
        mine = self._comm.rank == last
        sent = state.repeat(ranks, 1) if mine else state[:0]
        return self._all_to_all(
            sent, [rows if mine else 0] * ranks, [rows if rank == last else 0 for rank in range(ranks)]
        )

    def _all_gather(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Gather the rows of every rank, the same number of each, on every rank. Collective."""
        counts = [rows.shape[0]] * self._comm.world_size
        return self._all_to_all(rows.repeat(len(counts), 1), counts, counts).split(counts)

    def _halo_steps(self, reader: int, count: int) -> list[int]:
        """The earlier steps that a rank reads in this segment."""
        steps = self._current.steps_of(reader)
        if not steps:
            return []
        return list(range(max(self._segments[0].start, steps.start - count), steps.start))

    def _history_steps(self, rank: int, before: int, count: int) -> list[int]:
        """The steps of a rank that may be read in or after the segment that begins at ``before``."""
        return self._owned_steps(range(max(self._segments[0].start, before - count), before), rank)

    def _owned_steps(self, steps: Sequence[int], rank: int) -> list[int]:
        """The steps that a rank owns, among some steps."""
        return [
            step
            for step in steps
            if any(part.start <= step < part.stop and step in part.steps_of(rank) for part in self._segments)
        ]

    def _all_to_all(self, rows: Tensor, send: list[int], recv: list[int]) -> Tensor:
        return _AllToAll.apply(rows, self, send, recv)

    def start(
        self, rows: Callable[[], Tensor], send: list[int], recv: list[int], *, back: bool
    ) -> PendingRows:
        """Start an exchange of rows, (sum(send), F) -> (sum(recv), F), or of gradients (``back``). Collective.

        A recomputed segment replays the rows that it received the first time.
        """
        if self._replay is not None and not back:
            return partial(next, self._replay)
        sent = rows()
        wire = encode(sent.contiguous(), self._precision)
        label, record = self._label + (_GRADIENTS if back else ""), None if back else self._record
        pending = self._comm.start_all_to_all(wire, send, recv, label=label)

        def wait() -> Tensor:
            received = decode(pending.wait(), self._precision, sent.shape[1], sent.dtype)
            if record is not None:
                record.append(received)
            return received

        return wait


class _AllToAll(torch.autograd.Function):
    """Exchanges rows; backward exchanges their gradients the other way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, comm: DistributedTemporalComm, send: list[int], recv: list[int]
    ) -> Tensor:
        ctx.comm, ctx.send, ctx.recv = comm, send, recv
        received = comm.start(lambda: rows, send, recv, back=False)()
        return received.view_as(
            received
        )  # a view, so that the recorded tensor stays out of the autograd graph

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.comm.start(lambda: grads[0], ctx.recv, ctx.send, back=True)(), None, None, None
