"""Rows that go from steps to nodes and back a piece of the nodes at a time, so that work begins while the rest travels.

A piece is the same share of every rank's nodes. All pieces leave by steps together; each is worked on when it has come,
and goes back at once. So do gradients, from the last piece to the first. Between what starts an exchange and what waits
for it autograd carries tokens, one number each, so that it knows what comes before what.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from siafu import native
from siafu.methods.snapshots.time_partition import Cut
from siafu.nn.temporal.temporal_comm import Busy

Arrival = Callable[[], Tensor]
_MOST = 4  # pieces
_ROWS = 1 << 13  # of a rank in a piece, where it is not the only one


class Post(Protocol):
    """Who carries rows between ranks."""

    def start(self, rows: Callable[[], Tensor], send: list[int], recv: list[int], *, back: bool) -> Arrival:
        """Start an exchange of rows, or of gradients on the way ``back``; what it returns waits for what comes.

        Rows are not asked for where they travelled before. Collective.
        """


def count_pieces(cut: Cut) -> int:
    """Into how many pieces the nodes of every rank go in a block of time; the same on every rank."""
    if len(cut.num_nodes) == 1:
        return 1
    return max(1, min(_MOST, cut.steps[-1] * max(cut.num_nodes) // _ROWS, *cut.num_nodes))


def pieces_of(cut: Cut, rank: int) -> list[slice]:
    """The pieces of a rank's nodes, counted from its first."""
    number, count = cut.num_nodes[rank], count_pieces(cut)
    return [slice(*bounds) for bounds in pairwise(number * piece // count for piece in range(count + 1))]


class Routes:
    """Who gets which rows of a piece: rows by steps are (own steps, N, F), rows by nodes (steps, own nodes, F).

    Where ``busy`` is given, only rows of nodes that have an edge travel, and others are zeros where they would come.
    """

    def __init__(self, cut: Cut, rank: int, busy: Busy | None) -> None:
        self._cut, self._rank, self._busy = cut, rank, busy
        self._pieces = [pieces_of(cut, peer) for peer in range(len(cut.num_nodes))]
        self._marked = None if busy is None else [self._places(busy, piece) for piece in range(self.count)]

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self._pieces[self._rank])

    def of_steps(self, piece: int) -> list[int]:
        """How many rows of own steps each rank owns the nodes of."""
        if self._busy is not None:
            return [int(mark.sum()) for mark in self._split(self._busy.steps, piece)]
        own = self._cut.num_steps[self._rank]
        return [own * (nodes.stop - nodes.start) for nodes in self._nodes(piece)]

    def of_nodes(self, piece: int) -> list[int]:
        """How many rows of own nodes each rank owns the steps of."""
        nodes = self._pieces[self._rank][piece]
        if self._busy is not None:
            return [int(mark.sum()) for mark in self._busy.nodes[:, nodes].split(self._cut.num_steps)]
        return [steps * (nodes.stop - nodes.start) for steps in self._cut.num_steps]

    def from_steps(self, y: Tensor, piece: int) -> Tensor:
        """The rows of own steps that go to others, by rank: (own steps, N, F) -> (rows, F)."""
        if self._marked is not None:
            return native.gather(y.reshape(-1, y.shape[2]), self._marked[piece][0])
        out = native.empty_rows(sum(self.of_steps(piece)), y.shape[2], y.dtype)
        for part, into in zip(self._split(y, piece), self._dealt(out, piece), strict=True):
            into.copy_(part)
        return out

    def into_steps(self, came: Sequence[Tensor]) -> Tensor:
        """The rows of all pieces as rows by steps: count times (rows, F) -> (own steps, N, F)."""
        shape = self._cut.num_steps[self._rank], self._cut.nodes[-1], came[0].shape[1]
        out = native.empty_steps(*shape, came[0].dtype)
        if self._busy is not None:
            out[~self._busy.steps] = 0
        for piece, rows in enumerate(came):
            if self._marked is not None:
                out.view(-1, shape[2]).index_copy_(0, self._marked[piece][0], rows)
                continue
            for part, into in zip(self._dealt(rows, piece), self._split(out, piece), strict=True):
                into.copy_(part)
        return out

    def from_nodes(self, h: Tensor, piece: int) -> Tensor:
        """The rows of a piece of the own nodes that go to others, by rank: (steps, R, F) -> (rows, F)."""
        rows = h.reshape(-1, h.shape[2])
        return rows if self._marked is None else native.gather(rows, self._marked[piece][1])

    def into_nodes(self, rows: Tensor, piece: int) -> Tensor:
        """Rows that came as rows by nodes: (rows, F) -> (steps, R, F)."""
        nodes = self._pieces[self._rank][piece]
        shape = self._cut.steps[-1], nodes.stop - nodes.start, rows.shape[1]
        if self._marked is None or self._busy is None:
            return rows.view(shape)
        out = native.empty_steps(*shape, rows.dtype)
        out[~self._busy.nodes[:, nodes]] = 0
        out.view(-1, shape[2]).index_copy_(0, self._marked[piece][1], rows)
        return out

    def _places(self, busy: Busy, piece: int) -> tuple[Tensor, Tensor]:
        """Where rows that travel stand in rows by steps, by who owns the node, and in rows by nodes."""
        number = torch.arange(busy.steps.numel()).view(busy.steps.shape)
        parts = zip(self._split(number, piece), self._split(busy.steps, piece), strict=True)
        of_nodes = busy.nodes[:, self._pieces[self._rank][piece]].reshape(-1).nonzero()[:, 0]
        return torch.cat([rows[mark] for rows, mark in parts]), of_nodes

    def _nodes(self, piece: int) -> list[slice]:
        """The nodes of a piece of each rank."""
        mine = zip(self._cut.nodes, (pieces[piece] for pieces in self._pieces), strict=False)
        return [slice(first + nodes.start, first + nodes.stop) for first, nodes in mine]

    def _split(self, by_steps: Tensor, piece: int) -> list[Tensor]:
        """What of rows by steps each rank owns the nodes of."""
        return [by_steps[:, nodes] for nodes in self._nodes(piece)]

    def _dealt(self, rows: Tensor, piece: int) -> list[Tensor]:
        """The same of all rows of a piece as they travel, by rank: (rows, F)."""
        own, width = self._cut.num_steps[self._rank], rows.shape[1]
        parts = zip(rows.split(self.of_steps(piece)), self._nodes(piece), strict=True)
        return [part.view(own, nodes.stop - nodes.start, width) for part, nodes in parts]


class Exchange:
    """The pieces of one exchange on their way, forward and back."""

    def __init__(self, post: Post, routes: Routes) -> None:
        self.post, self.routes = post, routes
        self.under_way: dict[int, Arrival] = {}

    def start_from_steps(self, y: Tensor, *, back: bool) -> None:
        """Send all pieces of rows by steps."""
        routes = self.routes
        for piece in range(routes.count):
            counts = routes.of_steps(piece), routes.of_nodes(piece)
            rows = partial(routes.from_steps, y, piece)
            self.under_way[piece] = self.post.start(rows, *counts, back=back)

    def start_from_nodes(self, h: Tensor, piece: int, *, back: bool) -> None:
        """Send a piece of rows by nodes."""
        counts = self.routes.of_nodes(piece), self.routes.of_steps(piece)
        self.under_way[piece] = self.post.start(partial(self.routes.from_nodes, h, piece), *counts, back=back)

    def at_nodes(self, piece: int) -> Tensor:
        """Wait for a piece that comes by nodes."""
        return self.routes.into_nodes(self.under_way.pop(piece)(), piece)

    def at_steps(self) -> Tensor:
        """Wait for all pieces, which come by steps."""
        return self.routes.into_steps([self.under_way.pop(piece)() for piece in range(self.routes.count)])


def through_nodes(
    y: Tensor, along: Callable[[int, Tensor], Tensor], there: Exchange, back: Exchange
) -> Tensor:
    """Rows by steps to nodes, ``along`` of each piece, and back to steps: (own steps, N, F) -> (own steps, N, H)."""
    tokens = _Leave.apply(y, there)
    left = [
        _Return.apply(along(piece, _Land.apply(token, there, piece)), back, piece)
        for piece, token in enumerate(tokens)
    ]
    return _Gather.apply(back, *left)


class _Leave(torch.autograd.Function):
    """All pieces leave by steps; their gradients have come when all have."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, there: Exchange) -> tuple[Tensor, ...]:
        ctx.there = there
        there.start_from_steps(y, back=False)
        return tuple(y.new_zeros(1) for _ in range(there.routes.count))

    @staticmethod
    def backward(ctx: Any, *tokens: Tensor) -> tuple[Tensor, None]:
        return ctx.there.at_steps(), None


class _Land(torch.autograd.Function):
    """A piece has come to its nodes; its gradients leave."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, there: Exchange, piece: int) -> Tensor:
        ctx.there, ctx.piece = there, piece
        return there.at_nodes(piece)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.there.start_from_nodes(grads[0], ctx.piece, back=True)
        return grads[0].new_zeros(1), None, None


class _Return(torch.autograd.Function):
    """A piece leaves its nodes; its gradients have come."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, back: Exchange, piece: int) -> Tensor:
        ctx.back, ctx.piece = back, piece
        back.start_from_nodes(h, piece, back=False)
        return h.new_zeros(1)

    @staticmethod
    def backward(ctx: Any, *tokens: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back.at_nodes(ctx.piece), None, None


class _Gather(torch.autograd.Function):
    """All pieces have come back to steps; their gradients leave."""

    @staticmethod
    def forward(ctx: Any, back: Exchange, *tokens: Tensor) -> Tensor:
        ctx.back = back
        return back.at_steps()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.back.start_from_steps(grads[0], back=True)
        return None, *(grads[0].new_zeros(1) for _ in range(ctx.back.routes.count))
