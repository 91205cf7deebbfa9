r"""The all-to-all transpose between time-major and node-major rows, pipelined over chunks of nodes.

    rank 0   (its steps, all nodes)  --\                /-->  (all steps, its nodes)  -- recurrence -->  and back
    rank 1   (its steps, all nodes)  --/  all-to-all    \-->  (all steps, its nodes)  -- recurrence -->  and back

A chunk is the same share of every rank's nodes. All time-major chunks are sent at once; each is worked on when it has
arrived, and is sent back right away, while later chunks still travel. Gradients take the same way in reverse, from the
last chunk to the first. Between the autograd function that starts an exchange and the one that waits for it, a token of
one number carries the dependency.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from siafu import native
from siafu.methods.snapshots.time_partition import SegmentPartition
from siafu.nn.temporal.temporal_comm import ActivityMask

PendingRows = Callable[[], Tensor]
_MAX_CHUNKS = 4
_MIN_ROWS = 1 << 13  # rows of a rank in a chunk, where there are several


class RowExchange(Protocol):
    """An all-to-all exchange that can be pending."""

    def start(
        self, rows: Callable[[], Tensor], send: list[int], recv: list[int], *, back: bool
    ) -> PendingRows:
        """Start an exchange of rows, or of gradients (``back``); the result waits for the received rows. Collective.

        ``rows`` is not called when the received rows are replayed.
        """


def count_chunks(segment: SegmentPartition) -> int:
    """The number of chunks of every rank's nodes in a segment; the same on every rank."""
    if len(segment.num_nodes) == 1:
        return 1
    rows = segment.steps[-1] * max(segment.num_nodes)
    return max(1, min(_MAX_CHUNKS, rows // _MIN_ROWS, *segment.num_nodes))


def chunk_nodes(segment: SegmentPartition, rank: int) -> list[slice]:
    """The chunks of a rank's nodes, counted from its first node."""
    number, count = segment.num_nodes[rank], count_chunks(segment)
    return [slice(*bounds) for bounds in pairwise(number * chunk // count for chunk in range(count + 1))]


class TransposePlan:
    """The rows of each chunk that a rank sends and receives, and how they are packed.

    Time-major rows are (own steps, N, F); node-major rows of a chunk are (steps, R, F). With a mask, only rows of
    active nodes are sent; others arrive as zeros.
    """

    def __init__(self, segment: SegmentPartition, rank: int, mask: ActivityMask | None) -> None:
        self._segment, self._rank, self._mask = segment, rank, mask
        self._chunks = [chunk_nodes(segment, peer) for peer in range(len(segment.num_nodes))]
        self._active = (
            None if mask is None else [self._active_rows(mask, chunk) for chunk in range(self.num_chunks)]
        )

    @property
    def num_chunks(self) -> int:
        """The number of chunks."""
        return len(self._chunks[self._rank])

    def time_major_counts(self, chunk: int) -> list[int]:
        """The number of rows of own steps whose nodes each rank owns."""
        if self._mask is not None:
            return [int(mask.sum()) for mask in self._split_by_owner(self._mask.steps, chunk)]
        own = self._segment.num_steps[self._rank]
        return [own * (nodes.stop - nodes.start) for nodes in self._nodes_by_owner(chunk)]

    def node_major_counts(self, chunk: int) -> list[int]:
        """The number of rows of own nodes whose steps each rank owns."""
        nodes = self._chunks[self._rank][chunk]
        if self._mask is not None:
            return [int(mask.sum()) for mask in self._mask.nodes[:, nodes].split(self._segment.num_steps)]
        return [steps * (nodes.stop - nodes.start) for steps in self._segment.num_steps]

    def pack_time_major(self, y: Tensor, chunk: int) -> Tensor:
        """Pack time-major rows by the rank that owns the node: (own steps, N, F) -> (rows, F)."""
        if self._active is not None:
            return native.gather(y.reshape(-1, y.shape[2]), self._active[chunk][0])
        out = native.empty_rows(sum(self.time_major_counts(chunk)), y.shape[2], y.dtype)
        for part, into in zip(self._split_by_owner(y, chunk), self._packed_views(out, chunk), strict=True):
            into.copy_(part)
        return out

    def unpack_time_major(self, received: Sequence[Tensor]) -> Tensor:
        """Unpack the rows of all chunks to time-major: num_chunks times (rows, F) -> (own steps, N, F)."""
        shape = self._segment.num_steps[self._rank], self._segment.nodes[-1], received[0].shape[1]
        out = native.empty_steps(*shape, received[0].dtype)
        if self._mask is not None:
            out[~self._mask.steps] = 0
        for chunk, rows in enumerate(received):
            if self._active is not None:
                out.view(-1, shape[2]).index_copy_(0, self._active[chunk][0], rows)
                continue
            for part, into in zip(
                self._packed_views(rows, chunk), self._split_by_owner(out, chunk), strict=True
            ):
                into.copy_(part)
        return out

    def pack_node_major(self, h: Tensor, chunk: int) -> Tensor:
        """Pack the node-major rows of a chunk by the rank that owns the step: (steps, R, F) -> (rows, F)."""
        rows = h.reshape(-1, h.shape[2])
        return rows if self._active is None else native.gather(rows, self._active[chunk][1])

    def unpack_node_major(self, rows: Tensor, chunk: int) -> Tensor:
        """Unpack the rows of a chunk to node-major: (rows, F) -> (steps, R, F)."""
        nodes = self._chunks[self._rank][chunk]
        shape = self._segment.steps[-1], nodes.stop - nodes.start, rows.shape[1]
        if self._active is None or self._mask is None:
            return rows.view(shape)
        out = native.empty_steps(*shape, rows.dtype)
        out[~self._mask.nodes[:, nodes]] = 0
        out.view(-1, shape[2]).index_copy_(0, self._active[chunk][1], rows)
        return out

    def _active_rows(self, mask: ActivityMask, chunk: int) -> tuple[Tensor, Tensor]:
        """The numbers of active rows: time-major by the rank that owns the node, and node-major."""
        number = torch.arange(mask.steps.numel()).view(mask.steps.shape)
        parts = zip(self._split_by_owner(number, chunk), self._split_by_owner(mask.steps, chunk), strict=True)
        node_major = mask.nodes[:, self._chunks[self._rank][chunk]].reshape(-1).nonzero()[:, 0]
        return torch.cat([rows[active] for rows, active in parts]), node_major

    def _nodes_by_owner(self, chunk: int) -> list[slice]:
        """The nodes of a chunk of each rank."""
        mine = zip(self._segment.nodes, (chunks[chunk] for chunks in self._chunks), strict=False)
        return [slice(first + nodes.start, first + nodes.stop) for first, nodes in mine]

    def _split_by_owner(self, time_major: Tensor, chunk: int) -> list[Tensor]:
        """Views of the time-major rows of a chunk, by the rank that owns the nodes."""
        return [time_major[:, nodes] for nodes in self._nodes_by_owner(chunk)]

    def _packed_views(self, rows: Tensor, chunk: int) -> list[Tensor]:
        """The same views of the packed rows of a chunk, (rows, F)."""
        own, width = self._segment.num_steps[self._rank], rows.shape[1]
        parts = zip(rows.split(self.time_major_counts(chunk)), self._nodes_by_owner(chunk), strict=True)
        return [part.view(own, nodes.stop - nodes.start, width) for part, nodes in parts]


class ChunkedExchange:
    """The pending chunks of one transpose, forward and backward."""

    def __init__(self, exchange: RowExchange, plan: TransposePlan) -> None:
        self.exchange, self.plan = exchange, plan
        self.pending: dict[int, PendingRows] = {}

    def send_time_major(self, y: Tensor, *, back: bool) -> None:
        """Send all chunks of time-major rows."""
        plan = self.plan
        for chunk in range(plan.num_chunks):
            counts = plan.time_major_counts(chunk), plan.node_major_counts(chunk)
            rows = partial(plan.pack_time_major, y, chunk)
            self.pending[chunk] = self.exchange.start(rows, *counts, back=back)

    def send_node_major(self, h: Tensor, chunk: int, *, back: bool) -> None:
        """Send a chunk of node-major rows."""
        counts = self.plan.node_major_counts(chunk), self.plan.time_major_counts(chunk)
        rows = partial(self.plan.pack_node_major, h, chunk)
        self.pending[chunk] = self.exchange.start(rows, *counts, back=back)

    def receive_node_major(self, chunk: int) -> Tensor:
        """Wait for a chunk and unpack it to node-major."""
        return self.plan.unpack_node_major(self.pending.pop(chunk)(), chunk)

    def receive_time_major(self) -> Tensor:
        """Wait for all chunks and unpack them to time-major."""
        received = [self.pending.pop(chunk)() for chunk in range(self.plan.num_chunks)]
        return self.plan.unpack_time_major(received)


def transpose_apply(
    y: Tensor, function: Callable[[int, Tensor], Tensor], to_nodes: ChunkedExchange, to_steps: ChunkedExchange
) -> Tensor:
    """Transpose to node-major, apply ``function`` to each chunk, transpose back: (own steps, N, F) -> (.., N, H)."""
    tokens = _SendTimeMajor.apply(y, to_nodes)
    sent = [
        _SendNodeMajor.apply(
            function(chunk, _ReceiveNodeMajor.apply(token, to_nodes, chunk)), to_steps, chunk
        )
        for chunk, token in enumerate(tokens)
    ]
    return _ReceiveTimeMajor.apply(to_steps, *sent)


class _SendTimeMajor(torch.autograd.Function):
    """Sends all time-major chunks; backward receives their gradients."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, to_nodes: ChunkedExchange) -> tuple[Tensor, ...]:
        ctx.to_nodes = to_nodes
        to_nodes.send_time_major(y, back=False)
        return tuple(y.new_zeros(1) for _ in range(to_nodes.plan.num_chunks))

    @staticmethod
    def backward(ctx: Any, *tokens: Tensor) -> tuple[Tensor, None]:
        return ctx.to_nodes.receive_time_major(), None


class _ReceiveNodeMajor(torch.autograd.Function):
    """Receives a node-major chunk; backward sends its gradients."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, to_nodes: ChunkedExchange, chunk: int) -> Tensor:
        ctx.to_nodes, ctx.chunk = to_nodes, chunk
        return to_nodes.receive_node_major(chunk)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.to_nodes.send_node_major(grads[0], ctx.chunk, back=True)
        return grads[0].new_zeros(1), None, None


class _SendNodeMajor(torch.autograd.Function):
    """Sends a node-major chunk; backward receives its gradients."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, to_steps: ChunkedExchange, chunk: int) -> Tensor:
        ctx.to_steps, ctx.chunk = to_steps, chunk
        to_steps.send_node_major(h, chunk, back=False)
        return h.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, *tokens: Tensor) -> tuple[Tensor, None, None]:
        return ctx.to_steps.receive_node_major(ctx.chunk), None, None


class _ReceiveTimeMajor(torch.autograd.Function):
    """Receives all time-major chunks; backward sends their gradients."""

    @staticmethod
    def forward(ctx: Any, to_steps: ChunkedExchange, *tokens: Tensor) -> Tensor:
        ctx.to_steps = to_steps
        return to_steps.receive_time_major()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.to_steps.send_time_major(grads[0], back=True)
        return None, *(grads[0].new_zeros(1) for _ in range(ctx.to_steps.plan.num_chunks))
