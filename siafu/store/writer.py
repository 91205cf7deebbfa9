"""Write a store into a staging folder, array by array, then rename the folder: all or nothing."""

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np
import torch
import xxhash
from torch import Tensor

import siafu
from siafu import native
from siafu.array_checks import check_csr
from siafu.columns import ColumnType
from siafu.graph import Graph, check
from siafu.native import Csr, SparseRows
from siafu.store.columns import ColumnWriter
from siafu.store.manifest import (
    NODE_COLUMN,
    ArraySpec,
    ColumnSpec,
    DType,
    Manifest,
    Provenance,
    write_manifest,
)
from siafu.store.node_names import names_to_arrays
from siafu.store.reader import Store, open_store
from siafu.store.sparse_features import arrays_of
from siafu.store.splits import MASKS, check_disjoint, split_masks
from siafu.store.staging import StagingFolder

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ArrayWriter:
    """Writes one array to disk, a range of rows at a time."""

    def __init__(self, path: Path, dtype: DType, *, row: tuple[int, ...]) -> None:
        """``row`` is the shape of a row: empty where there is one dimension."""
        self._path, self._dtype, self._row = path, dtype, row
        self._file = path.open("wb")
        self._hash = xxhash.xxh3_128()
        self.num_rows = 0

    def append(self, rows: np.ndarray | Tensor) -> None:
        """Append rows of the array's dtype."""
        values = _little_endian(rows, self._dtype)
        assert values.shape[1:] == self._row, values.shape
        self.num_rows += values.shape[0]
        if values.size:
            view = values.reshape(-1).view(np.uint8).data
            self._hash.update(view)
            self._file.write(view)

    def close(self) -> ArraySpec:
        """Sync the file to disk and return its spec."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ArraySpec(
            file=self._path.name,
            dtype=self._dtype,
            shape=(self.num_rows, *self._row),
            xxh3_128=self._hash.hexdigest(),
        )

    def discard(self) -> None:
        """Close the file and ignore errors: the disk may be full."""
        with suppress(OSError):
            self._file.close()


class ArrayFolderWriter:
    """A context that writes a folder of arrays; unless committed, it leaves nothing behind."""

    what = "the folder"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._open: dict[str, ArrayWriter] = {}
        self._done: dict[str, ArraySpec] = {}

    def __enter__(self) -> Self:
        _refuse_existing(self.path)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"{self.path}: the folder {self.path.parent} does not exist; make it first"
            )
        self._partial = StagingFolder(self.path)
        return self

    @property
    def folder(self) -> Path:
        """The staging folder."""
        return self._partial.path

    @property
    def scratch(self) -> Path:
        """A folder for temporary files of the writer; created on first use."""
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        return scratch

    def array(self, name: str, dtype: DType, *, row: tuple[int, ...] = ()) -> ArrayWriter:
        """Begin an array that is written range by range; ``row`` is the shape of one row."""
        writer = ArrayWriter(self.folder / f"{name}.bin", dtype, row=row)
        self._open[name] = writer
        return writer

    def add(self, name: str, values: np.ndarray | Tensor) -> None:
        """Write a whole array in its own dtype."""
        self.array(name, _dtype_of(values), row=tuple(values.shape[1:])).append(values)

    def close_arrays(self) -> dict[str, ArraySpec]:
        """Sync all arrays to disk and return their specs."""
        for array, writer in self._open.items():
            self._done[array] = writer.close()
        self._open.clear()
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)
        return self._done

    def commit(self) -> None:
        """Rename the staging folder to its final path."""
        _refuse_existing(self.path)
        self.folder.rename(self.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._open.values():
            writer.discard()
        self._partial.release()
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno)} while writing {self.what} {self.path}; nothing of it was kept: "
                "free some space, or choose another place, and run it again",
            ) from error


class StoreWriter(ArrayFolderWriter):
    """Writes the store of a static graph; :meth:`finish` moves it to its final path."""

    what = "the store"

    def finish(
        self,
        *,
        name: str,
        undirected: bool,
        class_names: tuple[str, ...] | None,
        sources: Mapping[str, str],
        columns: Mapping[str, dict[str, str]] | None = None,
        sparse_features: int | None = None,
        node_columns: Sequence[ColumnType] = (),
        edge_columns: Sequence[ColumnType] = (),
    ) -> Store:
        """Write the manifest, move the folder to its final path and open it."""
        arrays = self.close_arrays()
        manifest = Manifest(
            name=name,
            undirected=undirected,
            class_names=class_names,
            arrays=arrays,
            provenance=provenance_of(sources, columns),
            sparse_features=sparse_features,
            columns=tuple(map(ColumnSpec.of, node_columns)),
            edge_columns=tuple(map(ColumnSpec.of, edge_columns)),
        )
        write_manifest(manifest, self.folder)
        self.commit()
        return open_store(self.path)


def provenance_of(
    sources: Mapping[str, str], columns: Mapping[str, dict[str, str]] | None = None
) -> Provenance:
    """Describe the origin of a store that is being written."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Provenance(
        siafu_version=siafu.__version__,
        created=created,
        sources=dict(sources),
        columns=dict(columns or {}),
    )


def write_store(
    graph: Graph, path: str | Path, *, provenance: dict[str, str] | None = None, splits: Tensor | None = None
) -> Store:
    """Write a graph as a store, a folder that must not exist yet.

    Args:
        graph: what to write; checked first.
        path: the folder to make.
        provenance: what the graph was made from, kept in the manifest.
        splits: (N,) or (N, S) integers, 0 train, 1 validation, 2 test, 3 none, instead of the graph's masks.
    """
    check(graph)
    check_csr(graph.indptr, graph.indices, graph.num_nodes, graph.name, known=graph.checked)
    masks = _masks(graph, splits)
    with StoreWriter(path) as store:
        store.add("indptr", graph.indptr)
        store.add("indices", graph.indices)
        for name in ("x", "x_scale", "y", "edge_weight", "node_id"):
            value: Tensor | SparseRows | None = getattr(graph, name)
            if isinstance(value, SparseRows):
                for part, array in arrays_of(value).items():
                    store.add(part, array)
            elif value is not None:
                store.add(name, value)
        for name, mask in masks.items():
            store.add(name, mask)
        if graph.node_names is not None:
            for name, values in names_to_arrays(graph.node_names).items():
                store.add(name, values)
        for place, column in enumerate(graph.columns or ()):
            writer = ColumnWriter(store, NODE_COLUMN, place, column.type)
            writer.append(column.values)
            writer.close(column.vocabulary)
        return store.finish(
            name=graph.name,
            undirected=_is_symmetric(graph),
            class_names=graph.class_names,
            sources=provenance or {},
            sparse_features=graph.x.width if isinstance(graph.x, SparseRows) else None,
            node_columns=[column.type for column in graph.columns or ()],
        )


def _masks(graph: Graph, splits: Tensor | None) -> dict[str, np.ndarray]:
    if splits is None:
        given = {name: getattr(graph, name) for name in MASKS}
        return {name: mask.numpy() for name, mask in given.items() if mask is not None}
    if splits.ndim not in (1, 2) or splits.shape[0] != graph.num_nodes or splits.is_floating_point():
        found = f"{tuple(splits.shape)} {splits.dtype}"
        raise ValueError(f"{graph.name}: splits is {found}; expected integers of {graph.num_nodes} rows")
    masks = split_masks(splits.numpy(), f"{graph.name}: splits")
    check_disjoint(masks, graph.name)
    return masks


def _is_symmetric(graph: Graph) -> bool:
    """Return whether each edge occurs in both directions, equally often."""
    csr = native.sort_rows(Csr(graph.indptr, graph.indices))
    other = native.transpose(csr, num_cols=graph.num_nodes)
    return torch.equal(csr.indptr, other.indptr) and torch.equal(csr.indices, other.indices)


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already; remove it first, or choose another name")


def _dtype_of(values: np.ndarray | Tensor) -> DType:
    name = str(values.dtype).removeprefix("torch.")
    return cast(DType, name)  # the manifest refuses those it does not know


def _little_endian(rows: np.ndarray | Tensor, dtype: DType) -> np.ndarray:
    """Return the values as a little-endian array in C order; bfloat16 as 16-bit words."""
    if isinstance(rows, Tensor):
        rows = rows.contiguous()
        rows = (rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows).numpy()
    wanted = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
    assert rows.dtype == wanted.newbyteorder("="), (rows.dtype, dtype)
    return np.ascontiguousarray(rows, dtype=wanted)
