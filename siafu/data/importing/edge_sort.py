"""Sort edges by destination on disk, in bounded memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from siafu import native
from siafu.data.importing.external_sort import FLOAT, INT, DiskBuffer, KeyBuckets, Rows, zero_padded
from siafu.event_log import Progress
from siafu.store import StoreWriter


class EdgeBuffer(DiskBuffer):
    """Edges on disk with known in-degrees.

    Attributes:
        in_degree: of each row; in undirected graphs it counts the reverse of each edge too.
        weighted, undirected: whether edges have weights; whether their reverses belong to the graph.
    """

    def __init__(self, folder: Path, *, weighted: bool, undirected: bool) -> None:
        super().__init__(folder, {"src": INT, "dst": INT, **({"weight": FLOAT} if weighted else {})})
        self.weighted, self.undirected = weighted, undirected
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


def write_csr(spool: EdgeBuffer, store: StoreWriter, *, num_nodes: int, progress: Progress) -> None:
    """Write ``indptr``, ``indices`` and ``edge_weight``: by destination, sources ascending in each row.

    In undirected graphs repeated edges are dropped. The first weight is kept; an edge comes before a reversed one.
    """
    degree = np.zeros(num_nodes, dtype=np.int64)
    known = min(num_nodes, spool.in_degree.size)
    degree[:known] = spool.in_degree[:known]
    ranges = KeyBuckets(np.cumsum(degree, out=degree))
    ranges.distribute(spool.both_ways(), "dst", store.scratch, progress)
    spool.remove()
    _sort(spool, ranges, store, progress)


def _sort(spool: EdgeBuffer, ranges: KeyBuckets, store: StoreWriter, progress: Progress) -> None:
    """Sort bucket by bucket, and append to the store."""
    indptr, indices = store.array("indptr", "int64"), store.array("indices", "int32")
    weights = store.array("edge_weight", "float32") if spool.weighted else None
    indptr.append(np.zeros(1, dtype=np.int64))
    for first, last, edges in ranges.read(spool.fields, progress):
        csr = native.build_csr(
            torch.from_numpy(edges["dst"] - np.int32(first)),
            torch.from_numpy(edges["src"]),
            num_rows=last - first,
            origin=spool.weighted,
        )
        csr = native.sort_rows(csr)
        csr = native.deduplicate(csr) if spool.undirected else csr
        indptr.append(csr.indptr[1:] + indices.num_rows)
        indices.append(csr.indices)
        if weights is not None and csr.origin is not None:
            weights.append(edges["weight"][csr.origin.numpy()])
