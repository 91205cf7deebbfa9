"""Cut a rank's nodes into intervals, and say which rows each of them reads."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.route import Route
from siafu.graph import Block

_ROW_EDGES = 8  # a row costs as much as so many edges


@dataclass(frozen=True)
class Sent:
    """The rows of one interval that one peer reads.

    Attributes:
        peer: who reads them.
        index: (R,) int64, the own rows.
        place: where they stand among all rows that this peer reads of this rank.
    """

    peer: int
    index: Tensor
    place: slice


@dataclass(frozen=True, eq=False)
class Intervals:
    """The intervals of a rank.

    Sources are numbered: the own intervals, then those of other ranks of which this one reads rows.

    Attributes:
        rows: the own rows of each.
        reads: (K, sources) bool, whose rows each interval aggregates.
        halo: for each peer and interval of its own that this rank reads: the number of the source, and its rows
            among all that this rank reads, own rows first.
        halo_of: the rows of each peer, among all that this rank reads; only peers that it reads.
        sends: what each interval sends.
    """

    rows: tuple[slice, ...]
    reads: np.ndarray
    halo: dict[tuple[int, int], tuple[int, slice]]
    halo_of: dict[int, slice]
    sends: tuple[tuple[Sent, ...], ...]

    @property
    def count(self) -> int:
        """K."""
        return len(self.rows)

    def reads_peer(self, peer: int) -> np.ndarray:
        """(K,) bool, which intervals read rows of a peer."""
        sources = [number for (owner, _), (number, _) in self.halo.items() if owner == peer]
        return np.logical_or.reduce(self.reads[:, sources], axis=1)

    def returned(self, peer: int) -> np.ndarray:
        """(K,) bool, which intervals have rows that a peer reads."""
        return np.array([any(sent.peer == peer for sent in sends) for sends in self.sends], dtype=bool)


def cut_intervals(block: Block, route: Route, comm: Comm, *, count: int) -> Intervals:
    """Cut a part's rows into at most so many intervals of about the same work. Collective."""
    rows = _balanced(block.indptr, count)
    sends = _sends(route, rows)
    sizes = torch.zeros(comm.world_size, len(rows), dtype=torch.int64)
    for interval, of in enumerate(sends):
        for sent in of:
            sizes[sent.peer, interval] = sent.index.numel()
    halo, begin, number = {}, block.num_dst, len(rows)
    halo_of: dict[int, slice] = {}
    for peer, theirs in enumerate(comm.all_gather(sizes, label="intervals")):
        start = begin
        for interval, size in enumerate(theirs[comm.rank].tolist()):
            if size:
                halo[peer, interval] = (number, slice(begin, begin + size))
                begin, number = begin + size, number + 1
        if begin > start:
            halo_of[peer] = slice(start, begin)
    assert begin == block.num_src or block.others is None
    return Intervals(rows, _reads(block, rows, halo, number), halo, halo_of, sends)


def _balanced(indptr: Tensor, count: int) -> tuple[slice, ...]:
    """Ranges of rows that have about the same number of edges and rows; empty ones are left out."""
    num_rows = indptr.numel() - 1
    cost = indptr + _ROW_EDGES * torch.arange(num_rows + 1)
    goals = torch.linspace(0, float(cost[-1]), count + 1, dtype=torch.float64)[1:-1]
    cuts = torch.searchsorted(cost.double(), goals).tolist()
    bounds = sorted({0, num_rows, *cuts})
    return tuple(slice(begin, end) for begin, end in pairwise(bounds)) or (slice(0, 0),)


def _sends(route: Route, rows: tuple[slice, ...]) -> tuple[tuple[Sent, ...], ...]:
    found: list[list[Sent]] = [[] for _ in rows]
    begin = 0
    for peer, size in enumerate(route.send):
        index = route.index[begin : begin + size]
        begin += size
        cuts = torch.searchsorted(index, torch.tensor([each.stop for each in rows])).tolist()
        for interval, (start, stop) in enumerate(pairwise([0, *cuts])):
            if stop > start:
                found[interval].append(Sent(peer, index[start:stop], slice(start, stop)))
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
        met = torch.bincount(source_of[edges.long()].long(), minlength=num_sources)
        reads[interval] = (met > 0).numpy()
        reads[interval, interval] = True
    return reads
