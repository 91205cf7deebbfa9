"""Sort edges by destination on disk, in bounded memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from siafu import native
from siafu.data.importing.external_sort import FLOAT, INT, DiskBuffer, KeyBuckets, Rows, zero_padded
from siafu.event_log import Progress
from siafu.native import Csr
from siafu.store import StoreWriter
from siafu.store.columns import ColumnWriter

Combine = Literal["first", "sum", "mean"]


class EdgeBuffer(DiskBuffer):
    """Edges on disk with known in-degrees.

    Attributes:
        in_degree: of each row; in undirected graphs it counts the reverse of each edge too.
        weighted, undirected: whether edges have weights; whether their reverses belong to the graph.
        combine: how the weights of repeated edges become one; None: repeated edges stay.
    """

    def __init__(
        self,
        folder: Path,
        *,
        weighted: bool,
        undirected: bool,
        stored: Mapping[str, np.dtype] | None = None,
        combine: Combine | None = None,
    ) -> None:
        """``stored`` are the dtypes of further columns, by the name of their field."""
        weight = {"weight": FLOAT} if weighted else {}
        super().__init__(folder, {"src": INT, "dst": INT, **weight, **(stored or {})})
        self.weighted, self.undirected = weighted, undirected
        self.combine: Combine | None = combine or ("first" if undirected else None)
        self.stored = tuple(stored or ())
        self.in_degree = np.zeros(1024, dtype=np.int64)

    def both_ways(self) -> Iterator[Rows]:
        """Yield the edges and, if the graph is undirected, then their reverses."""
        yield from self.read()
        if self.undirected:
            for rows in self.read():
                yield rows | {"src": rows["dst"], "dst": rows["src"]}

    def _append(self, rows: Rows) -> None:
        super()._append(rows)
        if self.in_degree.size < self.touched.size:
            self.in_degree = zero_padded(self.in_degree, self.touched.size)
        np.add.at(self.in_degree, rows["dst"], 1)
        if self.undirected:
            np.add.at(self.in_degree, rows["src"], 1)


def write_csr(
    spool: EdgeBuffer,
    store: StoreWriter,
    *,
    num_nodes: int,
    progress: Progress,
    columns: Mapping[str, ColumnWriter] | None = None,
) -> int:
    """Write ``indptr``, ``indices`` and ``edge_weight``: by destination, sources ascending in each row.

    Repeated edges are combined if ``spool`` says so: ``first`` keeps the first weight, in undirected graphs that of an
    edge before that of a reversed one; ``sum`` counts edges without weights. Further columns, whose writers are
    ``columns``, keep the first value. Returns the number of edges that were combined with an earlier one.
    """
    degree = np.zeros(num_nodes, dtype=np.int64)
    known = min(num_nodes, spool.in_degree.size)
    degree[:known] = spool.in_degree[:known]
    ranges = KeyBuckets(np.cumsum(degree, out=degree))
    ranges.distribute(spool.both_ways(), "dst", store.scratch, progress)
    spool.remove()
    return _sort(spool, ranges, store, progress, columns or {})


def _sort(
    spool: EdgeBuffer,
    ranges: KeyBuckets,
    store: StoreWriter,
    progress: Progress,
    columns: Mapping[str, ColumnWriter],
) -> int:
    """Sort bucket by bucket, and append to the store."""
    indptr, indices, dropped = store.array("indptr", "int64"), store.array("indices", "int32"), 0
    weighted = spool.weighted or spool.combine == "sum"
    weights = store.array("edge_weight", "float32") if weighted else None
    indptr.append(np.zeros(1, dtype=np.int64))
    for first, last, edges in ranges.read(spool.fields, progress):
        csr = native.build_csr(
            torch.from_numpy(edges["dst"] - np.int32(first)),
            torch.from_numpy(edges["src"]),
            num_rows=last - first,
            origin=weighted or bool(spool.stored),
        )
        every = native.sort_rows(csr)
        csr = native.deduplicate(every) if spool.combine is not None else every
        dropped += every.indices.numel() - csr.indices.numel()
        indptr.append(csr.indptr[1:] + indices.num_rows)
        indices.append(csr.indices)
        if weights is not None:
            weights.append(_combined(spool, every, csr, edges, first))
        for field, writer in columns.items():
            assert csr.origin is not None
            writer.append(edges[field][csr.origin.numpy()])
    return dropped


def _combined(spool: EdgeBuffer, every: Csr, kept: Csr, edges: Rows, first_row: int) -> np.ndarray:
    """Return the weight of each edge that is kept; ``every`` has the repeated ones next to each other."""
    assert every.origin is not None
    assert kept.origin is not None
    if spool.combine in (None, "first"):
        return edges["weight"][kept.origin.numpy()]
    order, source = every.origin.numpy(), every.indices.numpy()
    row = np.arange(every.indptr.numel() - 1).repeat(every.indptr.diff().numpy())
    if not order.size:
        return np.empty(0, dtype=np.float32)
    weight = edges["weight"][order].astype(np.float64) if spool.weighted else np.ones(order.size)
    changes = (row[1:] != row[:-1]) | (source[1:] != source[:-1])
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    sums = np.add.reduceat(weight, starts)
    if spool.combine == "mean":
        return (sums / np.diff([*starts, order.size])).astype(np.float32)
    if spool.undirected:  # an edge to itself is its own reverse, and stands there twice
        sums[source[starts] == row[starts] + first_row] /= 2
    return sums.astype(np.float32)
