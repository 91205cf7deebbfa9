"""Read edges in batches from any supported file."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from siafu.data.columns.schema import EdgeSchema, require_column
from siafu.data.importing.edge_columns import EdgeColumns, edge_columns
from siafu.data.importing.file_location import FileLocation
from siafu.data.importing.limits import DEFAULT, Limits
from siafu.data.importing.numpy_files import NpyFile
from siafu.data.importing.tables import Batch, Table, decoded, open_table, refuse_ids_as_names
from siafu.event_log import Progress
from siafu.store.node_names import is_string

_BATCH_ROWS = 1 << 20
_NOTHING_SAID = EdgeSchema()


class EdgeBatch(NamedTuple):
    """A batch of edges: (n,) ids of sources and targets as written, and (n,) float32 weights or None.

    Events also have a time, (n,) int64 or float64, and may have a class, (n,) int64.
    """

    src: pa.Array
    dst: pa.Array
    weight: np.ndarray | None
    place: FileLocation
    time: np.ndarray | None = None
    label: np.ndarray | None = None
    more: dict[str, np.ndarray] = {}  # noqa: RUF012 - further columns, by the name of their field; never changed


class EdgeSource(Protocol):
    """A file of edges."""

    @property
    def path(self) -> Path:
        """The file, as the user gave it."""

    @property
    def columns(self) -> tuple[str, str]:
        """The names of the source and target columns."""

    @property
    def strings(self) -> bool:
        """True if ids are strings, not integers."""

    @property
    def weighted(self) -> bool:
        """True if edges have weights."""

    @property
    def most_edges(self) -> int:
        """An upper bound on the number of edges, known without reading them."""

    @property
    def roles(self) -> dict[str, str]:
        """The role of each column or array."""

    @property
    def stored(self) -> dict[str, np.dtype]:
        """The dtypes of further columns that are stored, by the name of their field."""

    def batches(self, progress: Progress) -> Iterator[EdgeBatch]:
        """Yield the edges in batches; may be called again."""


@dataclass(frozen=True)
class TableEdges:
    """Edges in a table.

    Attributes:
        table: the table.
        columns: the ends, sources and targets.
        weight_column: the weights, if there are.
        more: further columns, which are stored with the edges.
        named: whether the user, or the names src and dst, say what the ends are; else they are the first two.
    """

    table: Table
    columns: tuple[str, str]
    weight_column: str | None
    more: EdgeColumns | None = None
    named: bool = True
    label: ClassVar[str] = "edges"

    @property
    def path(self) -> Path:
        """See :class:`EdgeSource`."""
        return self.table.path

    @property
    def weighted(self) -> bool:
        """See :class:`EdgeSource`."""
        return self.weight_column is not None

    @property
    def strings(self) -> bool:
        """See :class:`EdgeSource`."""
        return is_string(value_type(self.table.type_of(self.columns[0])))

    @property
    def most_edges(self) -> int:
        """See :class:`EdgeSource`."""
        return self.table.most_rows

    @property
    def roles(self) -> dict[str, str]:
        """See :class:`EdgeSource`."""
        weight = {} if self.weight_column is None else {"weight": self.weight_column}
        return {"src": self.columns[0], "dst": self.columns[1], **weight}

    @property
    def stored(self) -> dict[str, np.dtype]:
        """The dtypes of further columns that are stored, by the name of their field."""
        return {} if self.more is None else self.more.fields

    def batches(self, progress: Progress) -> Iterator[EdgeBatch]:
        """See :class:`EdgeSource`."""
        for batch in self.table.batches(self._wanted(), label=self.label, progress=progress):
            if self.strings and self.columns != ("src", "dst"):
                refuse_ids_as_names(self.table, batch, self.columns)
            yield self._read(batch)

    def _wanted(self) -> tuple[str, ...]:
        more = () if self.more is None else tuple(self.more.parsers)
        return (*self.columns, *(() if self.weight_column is None else (self.weight_column,)), *more)

    def _read(self, batch: Batch) -> EdgeBatch:
        src, dst = (decoded(batch.columns.column(name)) for name in self.columns)
        weight = None if self.weight_column is None else _weights(batch, self.weight_column)
        more = {} if self.more is None else self.more.read(batch)
        return EdgeBatch(src, dst, weight, batch.place, more=more)


@dataclass(frozen=True)
class ArrayEdges:
    """Edges in an array of integers, (E, 2) or (2, E); two by two is read as sources above targets."""

    array: NpyFile
    weight: NpyFile | None = None
    columns: tuple[str, str] = ("src", "dst")
    strings: bool = False

    @property
    def stored(self) -> dict[str, np.dtype]:
        """See :class:`EdgeSource`."""
        return {}

    @property
    def path(self) -> Path:
        """See :class:`EdgeSource`."""
        return self.array.shown

    @property
    def weighted(self) -> bool:
        """See :class:`EdgeSource`."""
        return self.weight is not None

    @property
    def most_edges(self) -> int:
        """See :class:`EdgeSource`."""
        return self.array.shape[1 if self.array.shape[0] == 2 else 0]

    @property
    def roles(self) -> dict[str, str]:
        """See :class:`EdgeSource`."""
        kind = "row" if self.array.shape[0] == 2 else "column"
        weight = {} if self.weight is None else {"weight": self.weight.shown.name}
        return {"src": f"{kind} 0 of {self.path.name}", "dst": f"{kind} 1 of {self.path.name}", **weight}

    def batches(self, progress: Progress) -> Iterator[EdgeBatch]:
        """See :class:`EdgeSource`."""
        wide, total = self.array.shape[0] == 2, self.most_edges
        for start in range(0, total, _BATCH_ROWS):
            rows = slice(start, min(start + _BATCH_ROWS, total))
            pair = self.array.read(slice(None), rows) if wide else self.array.read(rows).T
            src, dst = (native_ids(ids) for ids in pair)
            place = FileLocation(self.path, "edge", start)
            weight = None if self.weight is None else finite(self.weight.read(rows), place)
            yield EdgeBatch(src, dst, weight, place)
            progress("edges", rows.stop, total)


def table_edges(path: Path, limits: Limits = DEFAULT) -> TableEdges:
    """Open a table of edges."""
    return edges_in(open_table(path, wanted=("src", "dst"), limits=limits))


def edges_in(table: Table, schema: EdgeSchema = _NOTHING_SAID) -> TableEdges:
    """Find the columns of ends and weights in a table of edges."""
    if len(table.names) < 2:
        raise ValueError(
            f"{table.path} has the one column {table.names[0]!r}; expected src and dst, or any two"
        )
    columns = end_columns(table, schema)
    weight = schema.weight if schema.weight is not None else "weight" if "weight" in table.names else None
    if schema.weight is not None:
        require_column(schema.weight, table.names, str(table.path))
    weight = None if weight in columns else weight
    table = with_ids(table, columns)
    table = table.read_as({weight: pa.float32()}) if table.csv and weight is not None else table
    named = schema.source is not None or columns == ("src", "dst")
    return TableEdges(table, columns, weight, named=named)


def with_columns(edges: TableEdges, schema: EdgeSchema) -> TableEdges:
    """Have all further columns of a table read, and stored with the edges where they are understood."""
    others = tuple(name for name in edges.table.names if name not in (*edges.columns, edges.weight_column))
    table = edges.table.read_as(dict.fromkeys(others, pa.string())) if edges.table.csv else edges.table
    return replace(edges, table=table, more=edge_columns(table, others, schema))


def end_columns(table: Table, schema: EdgeSchema = _NOTHING_SAID) -> tuple[str, str]:
    """Return the columns of sources and targets: those of the schema, ``src`` and ``dst``, or the first two."""
    if schema.source is not None or schema.target is not None:
        if schema.source is None or schema.target is None or schema.source == schema.target:
            raise ValueError(
                f"{table.path}: the source is {schema.source!r} and the target {schema.target!r}; expected two columns "
                "(--source and --target)"
            )
        what = str(table.path)
        return require_column(schema.source, table.names, what), require_column(
            schema.target, table.names, what
        )
    named = {"src", "dst"} & set(table.names)
    if len(named) == 1:
        missing = ({"src", "dst"} - named).pop()
        raise ValueError(f"{table.path} has a column {named.pop()!r} but no {missing!r}; found {table.names}")
    return ("src", "dst") if named else (table.names[0], table.names[1])


def with_ids(table: Table, columns: tuple[str, str]) -> Table:
    """Return the table with two columns read as ids of the same kind, integers or strings."""
    if table.csv:
        types = [table.type_of(name) for name in columns]
        if not all(map(is_number, types)):
            return table.read_as(dict.fromkeys(columns, pa.string()))
        return table.with_ids(columns, whole=any(map(pa.types.is_floating, types)))
    for name in columns:
        kind = value_type(table.type_of(name))
        if not (is_string(kind) or is_number(kind)):
            raise ValueError(f"{table.path}: column {name!r} holds {kind}; expected ids, integers or strings")
    return whole_ids(table, columns)


def whole_ids(table: Table, columns: tuple[str, ...]) -> Table:
    """Return the table with float id columns read as whole numbers."""
    floats = [name for name in columns if pa.types.is_floating(value_type(table.type_of(name)))]
    return table.with_ids(floats, whole=True) if floats else table


def is_number(kind: pa.DataType) -> bool:
    """Return whether ids of this type may be integers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def array_edges(array: NpyFile, *, weight: NpyFile | None = None) -> ArrayEdges:
    """Check the shape and the dtype of an array of edges."""
    if array.dtype.kind not in "iu" or len(array.shape) != 2 or 2 not in array.shape:
        raise ValueError(f"{array.shown} is {array.shape} {array.dtype}; expected integers, (E, 2) or (2, E)")
    if weight is not None:
        count = array.shape[1 if array.shape[0] == 2 else 0]
        if weight.shape != (count,):
            raise ValueError(f"{weight.shown} is {weight.shape}; expected ({count},), one weight an edge")
    return ArrayEdges(array, weight)


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, which may be dictionary-encoded."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def native_ids(ids: np.ndarray) -> pa.Array:
    """Convert integers to ids in native byte order."""
    return pa.array(np.ascontiguousarray(ids, dtype=ids.dtype.newbyteorder("=")))


def _weights(batch: Batch, name: str) -> np.ndarray:
    column = batch.columns.column(name)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise ValueError(f"{batch.place.file}: column {name!r} holds {column.type}; expected numbers")
    return finite(column.to_numpy(zero_copy_only=False), batch.place, name)


def finite(weight: np.ndarray, place: FileLocation, name: str = "weight") -> np.ndarray:
    """Convert weights to float32; refuse those that are not finite."""
    with np.errstate(over="ignore"):
        weight = weight.astype(np.float32)
    bad = ~np.isfinite(weight)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{place.at(row)}, column {name!r} is {weight[row]}; expected a finite number")
    return weight
