"""Read features in batches of rows from any supported file, and write them to a store."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from siafu.array_checks import check_width
from siafu.comm.quantization import quantize_int8
from siafu.data.importing.file_location import FileLocation
from siafu.data.importing.limits import Limits
from siafu.data.importing.node_ids import IdMap
from siafu.data.importing.numpy_files import NpyFile, names_in_npz, text_in_npz, unpack_npz
from siafu.data.importing.tables import Batch, Table, column_named, decoded, refuse_numbers_as_names
from siafu.event_log import Progress
from siafu.native import SparseRows
from siafu.sparse_input import MOST_SPARSE
from siafu.store.writer import ArrayFolderWriter

FeatureDType = Literal["float32", "bfloat16", "int8"]
FeatureLayout = Literal["auto", "sparse", "dense"]
CSR = ("indptr", "indices", "data", "shape")
_BLOCK_VALUES = 1 << 22
_ANY_KIND = "; --nodes, instead of --features, reads words, dates and blanks too"


class FeatureRows(NamedTuple):
    """A batch of rows: their ids (None if in order of row number), and (n, F) numbers."""

    ids: pa.Array | None
    x: np.ndarray
    place: FileLocation


@dataclass(frozen=True)
class FeatureFormat:
    """How features are stored.

    Attributes:
        dtype: of the numbers.
        layout: compressed sparse rows or dense rows; auto: sparse if most numbers are zero and ``dtype`` is float32.
    """

    dtype: FeatureDType = "float32"
    layout: FeatureLayout = "auto"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("dtype", self.dtype, FeatureDType),
            ("layout", self.layout, FeatureLayout),
        ):
            if value not in get_args(known):
                raise ValueError(f"feature_{name} is {value!r}; expected one of {get_args(known)}")
        if self.layout == "sparse" and self.dtype != "float32":
            raise ValueError(f"feature_layout is sparse, but feature_dtype is {self.dtype}; expected float32")


class FeatureSource(Protocol):
    """A file of features."""

    @property
    def path(self) -> Path:
        """The file, as the user gave it."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the features."""

    @property
    def num_rows(self) -> int | None:
        """The number of rows, if known and if rows are numbered."""

    def rows(self, progress: Progress) -> Iterator[FeatureRows]:
        """Read the rows."""


@dataclass(frozen=True)
class ArrayFeatures:
    """Features in an array, (N, F) or (N,)."""

    array: NpyFile

    @property
    def path(self) -> Path:
        """See :class:`FeatureSource`."""
        return self.array.shown

    @property
    def columns(self) -> tuple[str, ...]:
        """See :class:`FeatureSource`."""
        return tuple(str(i) for i in range(self.array.shape[1] if len(self.array.shape) == 2 else 1))

    @property
    def num_rows(self) -> int | None:
        """See :class:`FeatureSource`."""
        return self.array.shape[0]

    def rows(self, progress: Progress) -> Iterator[FeatureRows]:
        """See :class:`FeatureSource`."""
        for rows in _row_ranges(self.array.shape[0], len(self.columns)):
            x = self.array.read(rows).reshape(rows.stop - rows.start, -1)
            yield FeatureRows(None, x, FileLocation(self.path, "row", rows.start))
            progress("features", rows.stop, self.array.shape[0])


@dataclass(frozen=True)
class SparseFeatures:
    """Features in compressed sparse rows."""

    path: Path
    indptr: np.ndarray
    indices: NpyFile
    data: NpyFile
    width: int
    limits: Limits

    def check_dense(self) -> None:
        """Refuse rows that would take far more room dense than their file does."""
        rows, stored = self.indptr.size - 1, 8 * (self.indptr.size + self.indices.shape[0])
        what = f"{self.path}: x of {rows:,} x {self.width:,} numbers"
        self.limits.check_unpacked(what, 4 * rows * self.width, stored)

    @property
    def columns(self) -> tuple[str, ...]:
        """See :class:`FeatureSource`."""
        return tuple(str(i) for i in range(self.width))

    @property
    def num_rows(self) -> int | None:
        """See :class:`FeatureSource`."""
        return self.indptr.size - 1

    def rows(self, progress: Progress) -> Iterator[FeatureRows]:
        """See :class:`FeatureSource`."""
        total = self.indptr.size - 1
        for rows in _row_ranges(total, self.width):
            part = slice(int(self.indptr[rows.start]), int(self.indptr[rows.stop]))
            count = np.diff(self.indptr[rows.start : rows.stop + 1])
            x = np.zeros((rows.stop - rows.start, self.width), dtype=np.float32)
            row, column = np.arange(len(x)).repeat(count), self.indices.read(part).astype(np.int64)
            if column.size and not 0 <= column.min() <= column.max() < self.width:
                raise ValueError(f"{self.indices.shown}: a column lies outside 0 to {self.width - 1}")
            np.add.at(x, (row, column), self.data.read(part).astype(np.float32))
            yield FeatureRows(None, x, FileLocation(self.path, "row", rows.start))
            progress("features", rows.stop, total)


@dataclass(frozen=True)
class TableFeatures:
    """Features in a table: an optional id column, and numeric columns."""

    table: Table
    id_column: str | None
    columns: tuple[str, ...]
    num_rows: int | None = None

    @property
    def path(self) -> Path:
        """See :class:`FeatureSource`."""
        return self.table.path

    def rows(self, progress: Progress) -> Iterator[FeatureRows]:
        """See :class:`FeatureSource`."""
        wanted = self.columns if self.id_column is None else (self.id_column, *self.columns)
        for batch in _with_hint(self.table.batches(wanted, label="features", progress=progress)):
            ids = None if self.id_column is None else decoded(batch.columns.column(self.id_column))
            yield FeatureRows(ids, _matrix(batch, self.columns), batch.place)


def _with_hint(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches; have an error about words among numbers name the option for columns of any kind."""
    try:
        yield from batches
    except ValueError as error:
        if str(error).endswith(" is not a number"):
            raise ValueError(f"{error}{_ANY_KIND}") from None
        raise


def table_features(table: Table) -> TableFeatures:
    """Find the columns of a table of features: ``id``, else the first, and all others."""
    id_column = column_named(table, "id", 0)
    refuse_numbers_as_names(table, id_column)
    columns = tuple(name for name in table.names if name != id_column)
    if not columns:
        raise ValueError(f"{table.path} has the one column {id_column!r}; expected features beside the ids")
    table = table.read_as(dict.fromkeys(columns, pa.float32())) if table.csv else table
    return TableFeatures(table, id_column, columns)


def array_features(array: NpyFile) -> ArrayFeatures:
    """Check the shape of an array of features."""
    if len(array.shape) not in (1, 2) or array.shape[0] == 0:
        raise ValueError(f"{array.shown} is {array.shape}; expected (N, F), a row of features a node")
    check_width(array.shape, str(array.shown))
    return ArrayFeatures(array)


def scipy_features(path: Path, scratch: Path, limits: Limits) -> SparseFeatures:
    """Open a sparse matrix in the layout of ``scipy.sparse.save_npz``."""
    arrays = unpack_npz(path, scratch, CSR, limits)
    layout = text_in_npz(path, "format")
    if layout != "csr" or not set(CSR) <= arrays.keys():
        found = f"the layout {layout!r}" if layout else f"arrays {', '.join(names_in_npz(path)) or 'none'}"
        raise ValueError(f"{path} has {found}; expected a CSR matrix, as scipy.sparse.save_npz writes it")
    return sparse_features(path, arrays, prefix="", limits=limits)


def sparse_features(path: Path, arrays: dict[str, NpyFile], *, prefix: str, limits: Limits) -> SparseFeatures:
    """Check the arrays of a CSR matrix: ``indptr``, ``indices``, ``data``, ``shape``, each after a prefix."""
    indptr, shape = arrays[f"{prefix}indptr"].read(), arrays[f"{prefix}shape"].read()
    indices, data = arrays[f"{prefix}indices"], arrays[f"{prefix}data"]
    fits = indptr.ndim == 1 and shape.shape == (2,) and indptr.size == shape[0] + 1 and indptr[0] == 0
    if not fits or np.diff(indptr).min(initial=0) < 0 or indices.shape != (indptr[-1],) != data.shape:
        raise ValueError(
            f"{path}: {prefix}indptr, indices, data and shape make no CSR matrix; write it again"
        )
    num_rows, width = (int(size) for size in shape)
    check_width((num_rows, width), f"{path}: x")
    stored = 8 * (indptr.size + indices.shape[0])
    limits.check_unpacked(f"{path}: a row of x, of {width:,} numbers,", 4 * width, stored)
    return SparseFeatures(path, indptr.astype(np.int64), indices, data, int(shape[1]), limits)


class WrittenFeatures(NamedTuple):
    """Features in a store: the number of rows, and the number of columns of sparse ones (None: dense)."""

    num_rows: int
    sparse_width: int | None


def write_features(
    source: FeatureSource,
    store: ArrayFolderWriter,
    ids: IdMap | None,
    how: FeatureFormat,
    progress: Progress,
) -> WrittenFeatures:
    """Write features row by row, and add new ids to the map."""
    writer: _DenseWriter | _SparseWriter | None = None
    for block in source.rows(progress):
        if ids is not None and block.ids is not None:
            _add_ids(ids, block, source)
        rows = _finite(block, source.columns, how.dtype)
        if writer is None:
            sparse = how.layout == "sparse" or (how.layout == "auto" and _is_sparse(source, rows))
            writer = _SparseWriter(store) if sparse else _DenseWriter(store, how.dtype, source)
        writer.append(rows)
    if writer is None or not writer.num_rows:
        raise ValueError(f"{source.path} holds no row; expected a row of features a node")
    width = len(source.columns) if isinstance(writer, _SparseWriter) else None
    return WrittenFeatures(writer.num_rows, width)


def _is_sparse(source: FeatureSource, first: Tensor) -> bool:
    """Say whether most features are zero: of all if that is known, else of the first block."""
    if first.dtype != torch.float32:
        return False
    if isinstance(source, SparseFeatures):
        return source.indices.shape[0] <= MOST_SPARSE * (source.indptr.size - 1) * source.width
    return int(first.count_nonzero()) <= MOST_SPARSE * first.numel()


class _DenseWriter:
    """Writes ``x``, and ``x_scale`` of int8."""

    def __init__(self, store: ArrayFolderWriter, dtype: FeatureDType, source: FeatureSource) -> None:
        if isinstance(source, SparseFeatures):
            source.check_dense()
        self._x = store.array("x", dtype, row=(len(source.columns),))
        self._scale = store.array("x_scale", "float32") if dtype == "int8" else None

    @property
    def num_rows(self) -> int:
        return self._x.num_rows

    def append(self, rows: Tensor) -> None:
        if self._scale is not None:
            rows, scales = quantize_int8(rows)
            self._scale.append(scales)
        self._x.append(rows)


class _SparseWriter:
    """Writes the arrays of compressed sparse rows."""

    def __init__(self, store: ArrayFolderWriter) -> None:
        self._indptr = store.array("x_indptr", "int64")
        self._indices, self._values = store.array("x_indices", "int32"), store.array("x_values", "float32")
        self._indptr.append(np.zeros(1, dtype=np.int64))

    @property
    def num_rows(self) -> int:
        return self._indptr.num_rows - 1

    def append(self, rows: Tensor) -> None:
        sparse = SparseRows.from_dense(rows)
        self._indptr.append(sparse.indptr[1:] + self._indices.num_rows)
        self._indices.append(sparse.indices)
        self._values.append(sparse.values)


def _add_ids(ids: IdMap, block: FeatureRows, source: FeatureSource) -> None:
    assert block.ids is not None
    assert isinstance(source, TableFeatures)
    assert source.id_column is not None
    first = ids.count
    rows = ids.rows(block.ids, block.place, source.id_column)
    repeated = rows != np.arange(first, first + rows.size)
    if repeated.any():
        row = int(repeated.argmax())
        raise ValueError(
            f"{block.place.at(row)}, column {source.id_column!r}: {block.ids[row].as_py()!r} again; "
            "expected one row a node"
        )


def _finite(block: FeatureRows, columns: tuple[str, ...], dtype: FeatureDType) -> Tensor:
    """Return the rows in the stored dtype, or float32 before quantisation; refuse numbers that are not finite."""
    with np.errstate(over="ignore"):
        x = torch.from_numpy(np.ascontiguousarray(block.x, dtype=np.float32))
    x = x.to(torch.bfloat16) if dtype == "bfloat16" else x
    bad = ~torch.isfinite(x)
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        found, wanted = block.x[row, column], str(x.dtype).removeprefix("torch.")
        raise ValueError(
            f"{block.place.at(row)}, column {columns[column]!r} is {found}; expected a finite {wanted} number"
            f"{_ANY_KIND if block.ids is not None and np.isnan(found) else ''}"
        )
    return x


def _matrix(batch: Batch, columns: tuple[str, ...]) -> np.ndarray:
    """Join columns of numbers into (n, F)."""
    x = np.empty((batch.columns.num_rows, len(columns)), dtype=np.float32)
    for place, name in enumerate(columns):
        column = batch.columns.column(name)
        if not _is_number(column.type):
            raise ValueError(
                f"{batch.place.file}: column {name!r} holds {column.type}; expected numbers{_ANY_KIND}"
            )
        x[:, place] = column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)  # null becomes NaN
    return x


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def _row_ranges(total: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK_VALUES // max(1, width))
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))
