"""Graphs in one ``.npz`` file of NumPy arrays, read without trust: nothing is unpickled, sizes are checked first.

    edge_index      (2, E) integers, sources above targets
    undirected      1: every pair stands in both directions; 0: directed as stored (also where it is missing)
    num_nodes       N; where it is missing, the rows of y or x say it
    x               (N, F) numbers; or as compressed rows x_indptr (N + 1,), x_indices, x_data, x_shape
    y               (N,) integers, a class from 0 or -1 for none; (N, C) of 0 and 1 for many labels;
                    or targets in float
    train_mask, val_mask, test_mask     (N,) bool, or (N, S) for S splits, of which ``fold`` picks one
    edge_weight     (E,) numbers
    edge_split      (E,) 0 train, 1 validation, 2 test, for tasks on pairs
    node_names      (N,) strings or integers, the ids to show
    class_names     (C,) strings

Any of them but ``edge_index`` may be missing; other arrays are left alone. A file of ``src``, ``dst`` and ``t`` is a
graph that changes over time.
"""

import errno
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from siafu import native
from siafu.files import atomic_writer
from siafu.graph import Graph
from siafu.native import SparseRows
from siafu.sparse_input import MOST_SPARSE, read_features, sparse_rows
from siafu.user_input import check_edges

Array = NDArray[Any]
_MASKS = ("train_mask", "val_mask", "test_mask")
_GRAPH_ARRAYS = (
    *("edge_index", "undirected", "num_nodes", "x", "x_indptr", "x_indices", "x_data", "x_shape", "y"),
    *_MASKS,
    *("edge_weight", "edge_split", "node_names", "class_names"),
)
_FEW_NODES, _NODES_AN_EDGE = 1 << 24, 100
_DAMAGE = (
    *(ValueError, LookupError, EOFError, ArithmeticError, MemoryError, RuntimeError),
    *(SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


class Header(NamedTuple):
    """The shape and dtype of an array, read before the array itself."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """The size of the array in memory."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


def read_headers(path: Path) -> dict[str, Header]:
    """Read the shapes and dtypes of a file's arrays, but no array."""
    with path.open("rb") as file, _NamingFile(path), zipfile.ZipFile(file) as archive:
        return {_array_name(entry): _header(archive, entry) for entry in archive.infolist()}


def read_arrays(path: Path, names: tuple[str, ...], *, limit_bytes: int | None = None) -> dict[str, Array]:
    """Read those of the named arrays that the file has; the default limit is the machine's memory."""
    headers = {name: header for name, header in read_headers(path).items() if name in names}
    _check_memory(path, sum(header.num_bytes for header in headers.values()), limit_bytes)
    with path.open("rb") as file, _NamingFile(path), np.load(file, allow_pickle=False) as arrays:
        return {name: _native_order(arrays[name]) for name in headers}


def read_npz(path: Path, *, fold: int = 0, limit_bytes: int | None = None) -> Graph:
    """Read a graph in the layout above; errors name the file and the array."""
    arrays = read_arrays(path, _GRAPH_ARRAYS, limit_bytes=limit_bytes)
    if "edge_index" not in arrays:
        raise ValueError(f"{path}: no array called edge_index; expected the layout of siafu.data.npz")
    rows = _num_nodes(path, arrays)
    edges = _edges(path, arrays["edge_index"])
    check_edges(edges, rows, str(path))  # first of all, since it also holds the number of nodes to what fits
    _check_memory(path, _dense_bytes(path, arrays, rows), limit_bytes)
    graph = Graph.from_edges(
        edges,
        x=_features(path, arrays, rows),
        y=_labels(path, arrays, rows),
        **_masks(path, arrays, fold=fold, rows=rows),
        edge_weight=_numbers(path, arrays, "edge_weight", (edges.shape[1],)),
        edge_split=arrays.get("edge_split"),
        num_nodes=rows,
        name=str(path),
    )
    if arrays.get("undirected", np.array(0)).any():
        _check_symmetric(graph)
    return replace(graph, name=path.stem, **read_names(path, arrays, rows))


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write the arrays to a temporary file in the same folder, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as file:
        np.savez_compressed(file, allow_pickle=False, **dict(arrays))


def to_compressed(x: Array) -> dict[str, Array]:
    """Convert features, (N, F), to the four arrays of compressed rows."""
    row, column = np.nonzero(x)
    counts = np.bincount(row, minlength=len(x))
    return {
        "x_indptr": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "x_indices": column.astype(np.int32),
        "x_data": x[row, column].astype(np.float32),
        "x_shape": np.array(x.shape, dtype=np.int64),
    }


class _NamingFile:
    """Converts any error that a foreign or damaged file causes into one that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _DAMAGE) or (isinstance(error, OSError) and error.errno in (None, errno.EINVAL)):
            raise ValueError(
                f"{self._path}: not a whole .npz file of plain arrays ({error}); copy or download it again"
            ) from error


def _array_name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(".npy")


def _header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Header:
    with archive.open(entry) as file:
        if np.lib.format.read_magic(file) != (
            1,
            0,
        ):  # others are for tables, and may have a header of gigabytes
            raise ValueError(f"{entry.filename} has the header of a table")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        begin = file.tell()
    header = Header(shape, dtype)
    if dtype.hasobject or dtype.fields is not None:
        raise ValueError(f"{entry.filename} holds {dtype}")
    if header.num_bytes != entry.file_size - begin:
        raise ValueError(f"{entry.filename} has {entry.file_size - begin} bytes for {shape} {dtype}")
    return header


def _native_order(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _check_memory(path: Path, needed: int, limit: int | None) -> None:
    limit = psutil.virtual_memory().total if limit is None else limit
    if needed > limit:
        raise ValueError(
            f"{path}: unpacks to {needed} bytes, more than the {limit} there are; if it is what it should "
            'be, make a store of it with "siafu import"'
        )


def _edges(path: Path, edge_index: Array) -> torch.Tensor:
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        _refuse(path, "edge_index", edge_index, "two rows of integers, sources above targets")
    if edge_index.size and edge_index.dtype.kind == "u" and int(edge_index.max()) > 2**31:
        raise ValueError(f"{path}: edge_index names node {edge_index.max()}; there are not so many")
    return torch.from_numpy(edge_index if edge_index.dtype.kind == "i" else edge_index.astype(np.int64))


def _num_nodes(path: Path, arrays: dict[str, Array]) -> int:
    if "num_nodes" in arrays:
        given = arrays["num_nodes"]
        if given.ndim != 0 or given.dtype.kind not in "iu":
            _refuse(path, "num_nodes", given, "one integer")
        _check_count(path, arrays, int(given))
        return int(given)
    for name in ("y", "x", *_MASKS):
        if name in arrays and arrays[name].ndim:
            return len(arrays[name])
    if "x_indptr" in arrays:
        return arrays["x_indptr"].size - 1
    return int(arrays["edge_index"].max(initial=-1)) + 1


def _check_count(path: Path, arrays: dict[str, Array], count: int) -> None:
    """Refuse a number of nodes that neither rows nor edges justify."""
    if arrays.keys() & {"y", "x", "x_indptr", *_MASKS}:
        return  # of which there is a row for each node
    most = max(_FEW_NODES, _NODES_AN_EDGE * arrays["edge_index"].shape[-1])
    if count > most:
        raise ValueError(
            f"{path}: num_nodes is {count:,} beside {arrays['edge_index'].shape[-1]:,} edges, without features, labels "
            f"or masks; expected at most {most:,}: if you trust the file, use siafu import --max-nodes"
        )


def _num_features(path: Path, arrays: dict[str, Array], rows: int) -> int:
    """Return the number of features of compressed rows; 0 where there are none."""
    if "x_shape" not in arrays:
        return 0
    shape = arrays["x_shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape[0] != rows or shape[1] < 1:
        raise ValueError(
            f"{path}: x_shape is {shape.tolist()}; expected {rows} rows and the number of features"
        )
    return int(shape[1])


def _dense_bytes(path: Path, arrays: dict[str, Array], rows: int) -> int:
    """Return the bytes of features as dense rows if they will be dense, else those of one such row."""
    width = _num_features(path, arrays, rows)
    stays_sparse = "x_indices" in arrays and arrays["x_indices"].size <= MOST_SPARSE * rows * width
    return 4 * width * (1 if stays_sparse else rows)


def _features(path: Path, arrays: dict[str, Array], rows: int) -> Array | torch.Tensor | SparseRows | None:
    if "x" in arrays:
        x = arrays["x"]
        if x.ndim != 2 or x.shape[0] != rows or x.dtype.kind not in "biuf":
            _refuse(path, "x", x, f"a row of numbers for each of {rows} nodes")
        return x.astype(np.float32, copy=False)
    there = [name for name in ("x_indptr", "x_indices", "x_data", "x_shape") if name in arrays]
    if not there:
        return None
    if len(there) < 4:
        raise ValueError(
            f"{path}: has {', '.join(there)}; expected all of x_indptr, x_indices, x_data, x_shape, or x"
        )
    return read_features(_sparse(path, arrays, rows))


def _sparse(path: Path, arrays: dict[str, Array], rows: int) -> SparseRows:
    indptr, indices, values = arrays["x_indptr"], arrays["x_indices"], arrays["x_data"]
    if indptr.shape != (rows + 1,) or indptr.dtype.kind not in "iu":
        _refuse(path, "x_indptr", indptr, f"{rows + 1} integers, one more than nodes")
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or values.shape != indices.shape:
        _refuse(path, "x_indices", indices, f"integers, as many as x_data has numbers ({values.shape})")
    if values.dtype.kind not in "biuf":
        _refuse(path, "x_data", values, "numbers")
    return sparse_rows(
        torch.from_numpy(indptr.astype(np.int64)),
        torch.from_numpy(indices.astype(np.int64)),
        torch.from_numpy(values.astype(np.float32)),
        _num_features(path, arrays, rows),
        f"{path}: x",
    )


def _labels(path: Path, arrays: dict[str, Array], rows: int) -> Array | None:
    y = arrays.get("y")
    if y is None:
        return None
    if y.ndim not in (1, 2) or y.shape[0] != rows or y.dtype.kind not in "biuf":
        _refuse(path, "y", y, f"a label, or a row of labels, for each of {rows} nodes")
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "biu" and ((y != 0) & (y != 1)).any():
        row, column = np.argwhere((y != 0) & (y != 1))[0]
        raise ValueError(
            f"{path}: y[{row}, {column}] is {y[row, column]}; expected 0 or 1, one column a label"
        )
    return y


def _masks(path: Path, arrays: dict[str, Array], *, fold: int, rows: int) -> dict[str, Any]:
    """Pick the masks of one split."""
    masks = {name: arrays[name] for name in _MASKS if name in arrays}
    for name, mask in masks.items():
        if mask.dtype != np.bool_ or mask.ndim not in (1, 2) or mask.shape[0] != rows:
            _refuse(path, name, mask, f"bool for each of {rows} nodes, one column a split")
    counts = {mask.shape[1] for mask in masks.values() if mask.ndim == 2}
    if len(counts) > 1:
        raise ValueError(
            f"{path}: the masks have {sorted(counts)} columns; expected as many in each, one a split"
        )
    folds = counts.pop() if counts else 1
    if not 0 <= fold < folds:
        raise ValueError(
            f"{path}: fold {fold} was asked for, but it has {folds} (0 to {folds - 1}); set data.fold"
        )
    return {name: mask[:, fold] if mask.ndim == 2 else mask for name, mask in masks.items()}


def _numbers(path: Path, arrays: dict[str, Array], name: str, shape: tuple[int, ...]) -> Array | None:
    array = arrays.get(name)
    if array is not None and (array.shape != shape or array.dtype.kind not in "biuf"):
        _refuse(path, name, array, f"{shape} numbers")
    return array


def read_names(path: Path, arrays: dict[str, Array], rows: int) -> dict[str, Any]:
    """Read the names of nodes and classes, if the file has them."""
    found: dict[str, Any] = {}
    if "node_names" in arrays:
        names = arrays["node_names"]
        if names.shape != (rows,) or names.dtype.kind not in "iuU":
            _refuse(path, "node_names", names, f"a string or an integer for each of {rows} nodes")
        import pyarrow as pa

        found["node_names"] = pa.array(names)
    if "class_names" in arrays:
        names = arrays["class_names"]
        if names.ndim != 1 or names.dtype.kind != "U":
            _refuse(path, "class_names", names, "strings, one a class")
        found["class_names"] = tuple(names.tolist())
    return found


def _check_symmetric(graph: Graph) -> None:
    """Refuse a graph that is declared undirected but is not symmetric."""
    there = graph.block.csr
    back = native.transpose(there, num_cols=graph.num_nodes)
    same = torch.equal(there.indptr, back.indptr) and torch.equal(there.indices, back.indices)
    if not same:
        raise ValueError(
            f"{graph.name}: undirected is 1, but some edge has no reverse; store both, or undirected 0"
        )


def _refuse(path: Path, name: str, array: Array, expected: str) -> None:
    raise ValueError(f"{path}: {name} is {array.shape} {array.dtype}; expected {expected}")
