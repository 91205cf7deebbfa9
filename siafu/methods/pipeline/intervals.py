"""Cuts a rank's nodes into intervals, and finds the rows that each of them reads and sends."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.route import Route
from siafu.context import Context
from siafu.graph import Block

_EDGES_PER_ROW = 8  # the cost of a row, in edges


@dataclass(frozen=True)
class IntervalSend:
    """The rows of one interval that one peer reads.

    Attributes:
        peer: the rank that reads them.
        index: (R,) int64, the own rows.
        place: their positions among all rows of this rank that the peer reads.
    """

    peer: int
    index: Tensor
    place: slice


@dataclass(frozen=True, eq=False)
class Intervals:
    """The intervals of a rank.

    Sources are numbered: first the own intervals, then the intervals of other ranks whose rows this rank reads.

    Attributes:
        rows: the own rows of each interval.
        reads: (K, sources) bool, the sources whose rows each interval aggregates.
        halo: for each (peer, interval of that peer) that this rank reads: the number of the source, and its rows
            among own and halo rows.
        halo_of: the halo rows of each peer, among own and halo rows; only peers that this rank reads.
        sends: the rows that each interval sends.
    """

    rows: tuple[slice, ...]
    reads: np.ndarray
    halo: dict[tuple[int, int], tuple[int, slice]]
    halo_of: dict[int, slice]
    sends: tuple[tuple[IntervalSend, ...], ...]

    @property
    def count(self) -> int:
        """The number of intervals, K."""
        return len(self.rows)

    def reads_peer(self, peer: int) -> np.ndarray:
        """Return a mask, (K,) bool, of the intervals that read rows of a peer."""
        sources = [number for (owner, _), (number, _) in self.halo.items() if owner == peer]
        return np.logical_or.reduce(self.reads[:, sources], axis=1)

    def returned(self, peer: int) -> np.ndarray:
        """Return a mask, (K,) bool, of the intervals to which a peer returns gradients, since it reads their rows."""
        return np.array([any(send.peer == peer for send in sends) for sends in self.sends], dtype=bool)


def cut_intervals(context: Context, route: Route, comm: Comm, *, count: int) -> Intervals:
    """Cut a part's rows into at most ``count`` intervals of about the same work. Collective."""
    block = context.block
    rows = _balanced(block.indptr, count)
    sends = _sends(route, rows)
    sizes = torch.zeros(comm.world_size, len(rows), dtype=torch.int64)
    for interval, of_interval in enumerate(sends):
        for send in of_interval:
            sizes[send.peer, interval] = send.index.numel()
    halo, begin, number = {}, block.num_dst, len(rows)
    halo_of: dict[int, slice] = {}
    for peer, peer_sizes in enumerate(comm.all_gather(sizes, label="intervals")):
        start = begin
        for interval, size in enumerate(peer_sizes[comm.rank].tolist()):
            if size:
                halo[peer, interval] = (number, slice(begin, begin + size))
                begin, number = begin + size, number + 1
        if begin > start:
            halo_of[peer] = slice(start, begin)
    assert begin == block.num_src or not context.has_halo
    return Intervals(rows, _reads(block, rows, halo, number), halo, halo_of, sends)


def _balanced(indptr: Tensor, count: int) -> tuple[slice, ...]:
    """Cut rows into ranges with about the same number of edges and rows; empty ranges are left out."""
    num_rows = indptr.numel() - 1
    cost = indptr + _EDGES_PER_ROW * torch.arange(num_rows + 1)
    goals = torch.linspace(0, float(cost[-1]), count + 1, dtype=torch.float64)[1:-1]
    cuts = torch.searchsorted(cost.double(), goals).tolist()
    bounds = sorted({0, num_rows, *cuts})
    return tuple(slice(begin, end) for begin, end in pairwise(bounds)) or (slice(0, 0),)


def _sends(route: Route, rows: tuple[slice, ...]) -> tuple[tuple[IntervalSend, ...], ...]:
    found: list[list[IntervalSend]] = [[] for _ in rows]
    begin = 0
    for peer, size in enumerate(route.send):
        index = route.index[begin : begin + size]
        begin += size
        cuts = torch.searchsorted(index, torch.tensor([each.stop for each in rows])).tolist()
        for interval, (start, stop) in enumerate(pairwise([0, *cuts])):
            if stop > start:
                found[interval].append(IntervalSend(peer, index[start:stop], slice(start, stop)))
    return tuple(map(tuple, found))


def _reads(
    block: Block,
    rows: tuple[slice, ...],
    halo: dict[tuple[int, int], tuple[int, slice]],
    num_sources: int,
) -> np.ndarray:
    source_of = torch.empty(block.num_src, dtype=torch.int32)
    for number, each in [*enumerate(rows), *halo.values()]:
        source_of[each] = number
    reads = np.zeros((len(rows), num_sources), dtype=bool)
    for interval, each in enumerate(rows):
        edges = block.indices[int(block.indptr[each.start]) : int(block.indptr[each.stop])]
        edge_count = torch.bincount(source_of[edges.long()].long(), minlength=num_sources)
        reads[interval] = (edge_count > 0).numpy()
        reads[interval, interval] = True
    return reads
