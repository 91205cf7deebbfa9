"""How ranks that own steps and ranks that own nodes hand each other rows: :class:`siafu.nn.temporal.Turn` over a Comm.

The rows of a block of time lie by steps for the graph's part of a layer, and by nodes for what goes along time. Turning
them takes one exchange, in pieces (``pieces.py``), whose volume does not grow with the number of ranks; gradients go
the other way. A block that is run again for its gradient reads what it received the first time, so that nothing is sent
twice.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantization import decode, encode
from siafu.methods.snapshots.time_partition import Cut
from siafu.methods.snapshots.transpose import Arrival, Exchange, Routes, pieces_of, through_nodes
from siafu.nn.temporal.temporal_comm import Busy, Pass

_BACK = " gradients"


class RankTurn:
    """Turns rows of the blocks of one pass over time. Collective: every rank makes the same calls in the same order.

    Attributes:
        own_steps: the steps of the current block that this rank owns, counted from the block's first.
        own_nodes: the nodes that this rank owns.
    """

    def __init__(
        self,
        comm: Comm,
        cuts: Sequence[Cut],
        *,
        precision: Precision = "fp32",
        label: str = "rows",
    ) -> None:
        self._comm, self._cuts, self._precision, self._label = comm, cuts, precision, label
        self._received: dict[int, list[Tensor]] = {}
        self.own_nodes = cuts[0].nodes_of(comm.rank)
        self.begin(0, "only")

    def begin(self, block: int, how: Pass) -> None:
        """Block number ``block`` is about to be passed; what it receives is kept where it will be passed again."""
        self._block, self._cut = block, self._cuts[block]
        first, *_ = self._cut.steps_of(self._comm.rank) or [self._cut.start]
        self.own_steps = slice(
            first - self._cut.start, first - self._cut.start + self._cut.num_steps[self._comm.rank]
        )
        self._replayed = iter(self._received.pop(block)) if how == "again" else None
        self._kept: list[Tensor] | None = None
        if how == "first":
            self._kept = self._received[block] = []

    @property
    def together(self) -> bool:
        """Whether this rank is the only one."""
        return self._comm.world_size == 1

    @property
    def pieces(self) -> list[slice]:
        """The own nodes in pieces, counted from the first."""
        return pieces_of(self._cut, self._comm.rank)

    def through_nodes(
        self,
        y: Tensor,
        along: Callable[[int, Tensor], Tensor],
        *,
        there: Busy | None = None,
        back: Busy | None = None,
    ) -> Tensor:
        """Rows of own steps to rows of own nodes, what ``along`` makes of each piece of them, and back. Collective."""
        if self.together:
            return along(0, y)
        ways = [Exchange(self, Routes(self._cut, self._comm.rank, busy)) for busy in (there, back)]
        return through_nodes(y, along, ways[0], ways[1])

    def earlier(self, x: Tensor, kept: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
        """The rows of the ``count`` steps before the first own one, fewer at the beginning, and what is to be kept.

        ``kept`` are own rows of steps before this block that this block or a later one reads: (own steps, N, F),
        (k, N, F) -> (at most count, N, F), (k', N, F). Collective.
        """
        rank, ranks = self._comm.rank, range(self._comm.world_size)
        mine = self._kept_steps(rank, self._cut.start, count) + list(self._cut.steps_of(rank))
        rows = torch.cat([kept, x])
        place = {step: row for row, step in enumerate(mine)}
        wanted = [self._read_by(reader, count) for reader in ranks]
        if not self.together:
            given = [[place[step] for step in wanted[peer] if step in place] for peer in ranks]
            due = [self._owned(wanted[rank], peer) for peer in ranks]
            size, width = x.shape[1], x.shape[2]
            sent = rows[[row for each in given for row in each]].reshape(-1, width)
            send, recv = ([len(each) * size for each in lists] for lists in (given, due))
            came = self._exchanged(sent, send, recv).view(-1, size, width)
            order = torch.tensor([step for each in due for step in each], dtype=torch.int64).argsort()
            before = came[order]
        else:
            before = rows[[place[step] for step in wanted[rank]]]
        keep = self._kept_steps(rank, self._cut.stop, count)
        return before, rows[[place[step] for step in keep]]

    def everyone(self, rows: Tensor) -> Tensor:
        """What every rank has of its own steps: (own steps, k, F) -> (steps, k, F). Collective."""
        if self.together:
            return rows
        size, width, ranks = rows.shape[1], rows.shape[2], self._comm.world_size
        sent = rows.reshape(-1, width).repeat(ranks, 1)
        recv = [steps * size for steps in self._cut.num_steps]
        return self._exchanged(sent, [rows.shape[0] * size] * ranks, recv).view(-1, size, width)

    def carried_in(self, state: Tensor, own: Callable[[], tuple[Tensor, Tensor]]) -> Tensor:
        """The state of a linear recurrence before the first own step, from that before the block: (N, H) -> (N, H).

        What the own steps make of a state h is ``a h + b``, of which ``own`` tells (a, b). Collective.
        """
        if self.together:
            return state
        pairs = self._of_everyone(torch.cat(own(), 1))
        for decay, gain in (each.chunk(2, 1) for each in pairs[: self._comm.rank]):
            state = decay * state + gain
        unread = sum(each.sum() for each in pairs[self._comm.rank :])
        return state + 0 * unread  # so that every rank takes part in the exchange of gradients

    def carried_out(self, state: Tensor) -> Tensor:
        """The state after the block's last step, from that after the last own one: (N, H) -> (N, H). Collective."""
        if self.together:
            return state
        rows, last, ranks = state.shape[0], self._comm.world_size - 1, self._comm.world_size
        mine = self._comm.rank == last
        sent = state.repeat(ranks, 1) if mine else state[:0]
        return self._exchanged(
            sent, [rows if mine else 0] * ranks, [rows if rank == last else 0 for rank in range(ranks)]
        )

    def _of_everyone(self, rows: Tensor) -> tuple[Tensor, ...]:
        """As many rows of each rank, on every rank. Collective."""
        counts = [rows.shape[0]] * self._comm.world_size
        return self._exchanged(rows.repeat(len(counts), 1), counts, counts).split(counts)

    def _read_by(self, reader: int, count: int) -> list[int]:
        """The earlier steps that a rank reads in this block."""
        steps = self._cut.steps_of(reader)
        return list(range(max(self._cuts[0].start, steps.start - count), steps.start)) if steps else []

    def _kept_steps(self, rank: int, before: int, count: int) -> list[int]:
        """The own steps of a rank that may be read in or after the block that begins at ``before``."""
        return self._owned(range(max(self._cuts[0].start, before - count), before), rank)

    def _owned(self, steps: Sequence[int], rank: int) -> list[int]:
        """Those of some steps that a rank owns."""
        return [
            step
            for step in steps
            if any(cut.start <= step < cut.stop and step in cut.steps_of(rank) for cut in self._cuts)
        ]

    def _exchanged(self, rows: Tensor, send: list[int], recv: list[int]) -> Tensor:
        return _Exchange.apply(rows, self, send, recv)

    def start(self, rows: Callable[[], Tensor], send: list[int], recv: list[int], *, back: bool) -> Arrival:
        """Start an exchange of rows, (sum(send), F) -> (sum(recv), F), or of gradients on the way ``back``. Collective.

        A block that is run again reads the rows that came before.
        """
        if self._replayed is not None and not back:
            return partial(next, self._replayed)
        given = rows()
        wire = encode(given.contiguous(), self._precision)
        label, kept = self._label + (_BACK if back else ""), None if back else self._kept
        pending = self._comm.start_all_to_all(wire, send, recv, label=label)

        def arrived() -> Tensor:
            came = decode(pending.wait(), self._precision, given.shape[1], given.dtype)
            if kept is not None:
                kept.append(came)
            return came

        return arrived


class _Exchange(torch.autograd.Function):
    """Rows one way, their gradients the other."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, turn: RankTurn, send: list[int], recv: list[int]) -> Tensor:
        ctx.turn, ctx.send, ctx.recv = turn, send, recv
        came = turn.start(lambda: rows, send, recv, back=False)()
        return came.view_as(came)  # what is kept is not what others go on with

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.turn.start(lambda: grads[0], ctx.recv, ctx.send, back=True)(), None, None, None
