"""External distribution sort: rows of a user's tables are written to disk and sorted there by buckets of a key.

Pass 1 writes the rows in the order of the input and counts the rows of each key. The counts give each bucket's place in
one file. Pass 2 writes each row into its bucket. Pass 3 sorts each bucket, which fits into memory. Memory does not grow
with the number of rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from siafu import native
from siafu.data.importing.edges import EdgeBatch, EdgeSource
from siafu.data.importing.node_ids import RowLookup
from siafu.event_log import Progress

_RANGE_EDGES = 1 << 22
INT, FLOAT, TIME = np.dtype("<i4"), np.dtype("<f4"), np.dtype("<f8")
Kind = np.dtype[Any]
Rows = dict[str, np.ndarray]


class DiskBuffer:
    """Edges on disk, in the order of the input.

    Attributes:
        num_edges: written so far.
        touched: whether any edge names each row.
        fields: the dtype of each field of an edge, by name.
    """

    what = "edge"

    def __init__(self, folder: Path, fields: Mapping[str, Kind]) -> None:
        self.num_edges = 0
        self.touched = np.zeros(1024, dtype=bool)
        self.fields = dict(fields)
        self.paths = {name: folder / f"spool.{name}" for name in self.fields}
        self._files: dict[str, BinaryIO] = {}

    def fill(self, source: EdgeSource, ids: RowLookup, progress: Progress) -> None:
        """Write the edges of a file."""
        try:
            self._files = {name: path.open("wb") for name, path in self.paths.items()}
            for batch in source.batches(progress):
                src, dst = ids.pairs(batch.src, batch.dst, batch.place, source.columns)
                self._append(self._rows(src, dst, batch))
        finally:
            for file in self._files.values():
                file.close()
        if not self.num_edges:
            raise ValueError(f"{source.path} holds no {self.what}; expected at least one")

    def read(self, *names: str) -> Iterator[Rows]:
        """Yield some fields (default: all) of the edges in the order of the input, in batches."""
        fields = {name: kind for name, kind in self.fields.items() if not names or name in names}
        for start in range(0, self.num_edges, _RANGE_EDGES):
            yield {
                name: np.fromfile(self.paths[name], kind, _RANGE_EDGES, offset=kind.itemsize * start)
                for name, kind in fields.items()
            }

    def remove(self) -> None:
        """Delete the files."""
        for path in self.paths.values():
            path.unlink()

    def _rows(self, src: np.ndarray, dst: np.ndarray, batch: EdgeBatch) -> Rows:
        """Return the fields of a batch that are written."""
        weight = {} if batch.weight is None else {"weight": batch.weight}
        return {"src": src, "dst": dst} | weight | batch.more

    def _append(self, rows: Rows) -> None:
        src, dst = rows["src"], rows["dst"]
        count = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
        if count > self.touched.size:
            self.touched = zero_padded(self.touched, 2 * count)
        self.touched[src] = True
        self.touched[dst] = True
        self.num_edges += src.size
        for name, file in self._files.items():
            file.write(rows[name].astype(self.fields[name], copy=False).data)


def zero_padded(values: np.ndarray, size: int) -> np.ndarray:
    """Return the values padded with zeros to a size."""
    return np.concatenate([values, np.zeros(size - values.size, values.dtype)])


class KeyBuckets:
    """Ranges of keys; each has as many rows as fit into memory, or is one key.

    Attributes:
        bounds: (R + 1,) int32, the first key of each bucket, and the end of the last.
        before: (R + 1,) the number of rows before each bucket.
    """

    def __init__(self, ends: np.ndarray) -> None:
        """``ends`` (K,) is the cumulative number of rows up to and with each key."""
        bounds = [0]
        while bounds[-1] < ends.size:
            begun = ends[bounds[-1] - 1] if bounds[-1] else 0
            fits = int(np.searchsorted(ends, begun + _RANGE_EDGES, side="right"))
            bounds.append(max(fits, bounds[-1] + 1))
        self.bounds = np.array(bounds, dtype=np.int32)
        self.before = np.where(self.bounds > 0, ends[self.bounds - 1], 0)

    def distribute(self, batches: Iterable[Rows], key: str, folder: Path, progress: Progress) -> None:
        """Write each row into the bucket of its key; rows of a bucket stay in order."""
        filled, done = self.before[:-1].copy(), 0
        self._paths: dict[str, Path] = {}
        files: dict[str, BinaryIO] = {}
        try:
            for rows in batches:
                for name in rows.keys() - files.keys():
                    self._paths[name] = folder / f"ranges.{name}"
                    files[name] = self._paths[name].open("wb")
                self._write(rows, key, filled, files)
                done += rows[key].size
                progress("distribute", done, int(self.before[-1]))
        finally:
            for file in files.values():
                file.close()

    def read(self, fields: Mapping[str, Kind], progress: Progress) -> Iterator[tuple[int, int, Rows]]:
        """Yield first key, end key and rows of each bucket; delete the files at the end."""
        for part in range(self.bounds.size - 1):
            count, before = int(self.before[part + 1] - self.before[part]), int(self.before[part])
            rows = {
                name: np.fromfile(path, fields[name], count, offset=fields[name].itemsize * before)
                for name, path in self._paths.items()
            }
            yield int(self.bounds[part]), int(self.bounds[part + 1]), rows
            progress("sort", int(self.before[part + 1]), int(self.before[-1]))
        for path in self._paths.values():
            path.unlink()

    def _write(self, rows: Rows, key: str, filled: np.ndarray, files: Mapping[str, BinaryIO]) -> None:
        """Write rows to their buckets at the offsets ``filled``, and advance these."""
        owner = (np.searchsorted(self.bounds, rows[key], side="right") - 1).astype(np.int32)
        order, starts = by_key(owner, filled.size)
        for name, file in files.items():
            values = rows[name][order]
            for part in np.flatnonzero(np.diff(starts)):
                file.seek(values.itemsize * int(filled[part]))
                file.write(values[starts[part] : starts[part + 1]].data)
        filled += np.diff(starts)


def by_key(key: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a stable order of rows by key, int32 from 0, and the first row of each key in it, (K + 1,)."""
    keys = torch.from_numpy(key)
    csr = native.build_csr(keys, keys, num_rows=num_keys, origin=True)
    assert csr.origin is not None
    return csr.origin.numpy(), csr.indptr.numpy()
