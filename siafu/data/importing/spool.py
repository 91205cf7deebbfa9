"""Sort edges by destination on disk, in memory that does not grow with their number.

The edges are first written down as they come, while each row's in-degree is counted. The counts tell where in
one file the edges of any range of rows will lie; so they are written there in a second pass, and in a third
each range, small enough to fit, is sorted in memory and appended to the store.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from siafu import native
from siafu.data.importing.edges import EdgeSource
from siafu.data.importing.ids import Ids
from siafu.events import Progress
from siafu.store import StoreWriter

_RANGE_EDGES = 1 << 22
_INT, _FLOAT = np.dtype("<i4"), np.dtype("<f4")


class Spool:
    """Edges on disk, in the order in which they came.

    Attributes:
        num_edges: written so far.
        in_degree: of each row, counting the reverse of each edge as well where the graph is undirected.
        touched: whether each row is named by an edge.
        weighted, undirected: whether the edges have weights; whether their reverses belong to the graph.
    """

    def __init__(self, folder: Path, *, weighted: bool, undirected: bool) -> None:
        self.weighted, self.undirected = weighted, undirected
        self.num_edges = 0
        self.in_degree = np.zeros(1024, dtype=np.int64)
        self.touched = np.zeros(1024, dtype=bool)
        self.fields = {"src": _INT, "dst": _INT, **({"weight": _FLOAT} if weighted else {})}
        self.paths = {name: folder / f"edges.{name}" for name in self.fields}
        self._files: dict[str, BinaryIO] = {}

    def fill(self, source: EdgeSource, ids: Ids, progress: Progress) -> None:
        """Write down the edges of a file."""
        try:
            self._files = {name: path.open("wb") for name, path in self.paths.items()}
            for batch in source.batches(progress):
                src, dst = ids.pairs(batch.src, batch.dst, batch.place, source.columns)
                self._append(src, dst, batch.weight)
        finally:
            for file in self._files.values():
                file.close()
        if not self.num_edges:
            raise ValueError(f"{source.path} holds no edge; expected at least one")

    def read(self, *, reverse: bool) -> Iterator[dict[str, np.ndarray]]:
        """Read the edges, or their reverses, in the order in which they came."""
        for start in range(0, self.num_edges, _RANGE_EDGES):
            arrays = {
                name: np.fromfile(path, self.fields[name], _RANGE_EDGES, offset=4 * start)
                for name, path in self.paths.items()
            }
            if reverse:
                arrays["src"], arrays["dst"] = arrays["dst"], arrays["src"]
            yield arrays

    def _append(self, src: np.ndarray, dst: np.ndarray, weight: np.ndarray | None) -> None:
        self._grow(int(max(src.max(initial=-1), dst.max(initial=-1))) + 1)
        np.add.at(self.in_degree, dst, 1)
        if self.undirected:
            np.add.at(self.in_degree, src, 1)
        self.touched[src] = True
        self.touched[dst] = True
        self.num_edges += src.size
        for name, values in {"src": src, "dst": dst, "weight": weight}.items():
            if values is not None:
                self._files[name].write(values.astype(self.fields[name], copy=False).data)

    def _grow(self, rows: int) -> None:
        more = 2 * rows - self.touched.size
        if rows > self.touched.size:
            self.in_degree = np.concatenate([self.in_degree, np.zeros(more, np.int64)])
            self.touched = np.concatenate([self.touched, np.zeros(more, bool)])


def write_csr(spool: Spool, store: StoreWriter, *, num_nodes: int, progress: Progress) -> None:
    """Write ``indptr``, ``indices`` and ``edge_weight``: by destination, sources ascending within each row.

    Where the graph is undirected, repeated edges are dropped; of their weights the first is kept, that of an
    edge before that of a reverse.
    """
    degree = np.zeros(num_nodes, dtype=np.int64)
    known = min(num_nodes, spool.in_degree.size)
    degree[:known] = spool.in_degree[:known]
    ends = np.cumsum(degree, out=degree)
    bounds = _ranges(ends)
    before = np.where(bounds > 0, ends[bounds - 1], 0)  # edges before each range
    files = _distribute(spool, bounds, before, store.scratch, progress)
    _sort(spool, bounds, before, files, store, progress)


def _ranges(ends: np.ndarray) -> np.ndarray:
    """Cut the rows, after each of which so many edges have passed, into ranges that fit, or one row each.

    (N,) -> (R + 1,) bounds.
    """
    bounds = [0]
    while bounds[-1] < ends.size:
        begun = ends[bounds[-1] - 1] if bounds[-1] else 0
        fits = int(np.searchsorted(ends, begun + _RANGE_EDGES, side="right"))
        bounds.append(max(fits, bounds[-1] + 1))
    return np.array(bounds, dtype=np.int32)


def _distribute(
    spool: Spool, bounds: np.ndarray, before: np.ndarray, folder: Path, progress: Progress
) -> dict[str, Path]:
    """Write each edge into the range of its destination; edges of a range stay in order."""
    paths = {name: folder / f"ranges.{name}" for name in spool.fields}
    files = {name: path.open("wb") for name, path in paths.items()}
    filled = before[:-1].copy()
    done, total = 0, int(before[-1])
    try:
        for reverse in (False, True) if spool.undirected else (False,):
            for edges in spool.read(reverse=reverse):
                _write_to_ranges(edges, bounds, filled, files)
                done += edges["dst"].size
                progress("distribute", done, total)
    finally:
        for file in files.values():
            file.close()
    for path in spool.paths.values():
        path.unlink()
    return paths


def _write_to_ranges(
    edges: dict[str, np.ndarray], bounds: np.ndarray, filled: np.ndarray, files: Mapping[str, BinaryIO]
) -> None:
    """Write edges to the places that their ranges have ``filled`` up to, and move these on."""
    owner = (np.searchsorted(bounds, edges["dst"], side="right") - 1).astype(np.int32)
    by_range = native.build_csr(
        torch.from_numpy(owner), torch.from_numpy(edges["src"]), num_rows=filled.size, origin=True
    )
    assert by_range.origin is not None
    starts = by_range.indptr.numpy()
    for name, file in files.items():
        values = edges[name][by_range.origin.numpy()]
        for part in np.flatnonzero(np.diff(starts)):
            file.seek(4 * int(filled[part]))
            file.write(values[starts[part] : starts[part + 1]].data)
    filled += np.diff(starts)


def _sort(
    spool: Spool,
    bounds: np.ndarray,
    before: np.ndarray,
    files: dict[str, Path],
    store: StoreWriter,
    progress: Progress,
) -> None:
    """Sort range by range, and append to the store."""
    indptr, indices = store.array("indptr", "int64"), store.array("indices", "int32")
    weights = store.array("edge_weight", "float32") if spool.weighted else None
    indptr.append(np.zeros(1, dtype=np.int64))
    for part in range(bounds.size - 1):
        count, offset = int(before[part + 1] - before[part]), 4 * int(before[part])
        edges = {
            name: np.fromfile(path, spool.fields[name], count, offset=offset) for name, path in files.items()
        }
        csr = native.build_csr(
            torch.from_numpy(edges["dst"] - np.int32(bounds[part])),
            torch.from_numpy(edges["src"]),
            num_rows=int(bounds[part + 1] - bounds[part]),
            origin=spool.weighted,
        )
        csr = native.sort_rows(csr)
        csr = native.deduplicate(csr) if spool.undirected else csr
        indptr.append(csr.indptr[1:] + indices.num_rows)
        indices.append(csr.indices)
        if weights is not None and csr.origin is not None:
            weights.append(edges["weight"][csr.origin.numpy()])
        progress("sort", int(before[part + 1]), int(before[-1]))
    for path in files.values():
        path.unlink()
