"""Tables with a row per node: an id column, and columns of values."""

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from siafu.data.importing.file_location import FileLocation
from siafu.data.importing.node_ids import RowLookup
from siafu.data.importing.tables import (
    Table,
    column_named,
    decoded,
    refuse_ids_as_names,
    refuse_numbers_as_names,
)
from siafu.event_log import Progress
from siafu.store.node_names import is_string


@dataclass(frozen=True)
class NodeTable:
    """A table of nodes: its id column and its value columns."""

    table: Table
    id_column: str
    columns: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The file, as the user gave it."""
        return self.table.path


@dataclass(frozen=True)
class NodeValues:
    """The contents of a table of nodes.

    Attributes:
        rows: (n,) int32, the node of each row, each at most once.
        columns: n values for each column.
        starts, places: the file locations of the rows, by ranges.
    """

    rows: np.ndarray
    columns: dict[str, pa.ChunkedArray]
    starts: tuple[int, ...]
    places: tuple[FileLocation, ...]

    def at(self, row: int) -> str:
        """Format the location of a row, for messages."""
        part = bisect_right(self.starts, row) - 1
        return self.places[part].at(row - self.starts[part])


def node_table(table: Table, *, named: tuple[str, ...], id_column: str | None = None) -> NodeTable:
    """Find the columns of a table of nodes: ``id``, else the first; one with a given name, else all others."""
    if id_column is None or id_column not in table.names:
        id_column = column_named(table, "id", 0)
    refuse_numbers_as_names(table, id_column)
    others = tuple(name for name in table.names if name != id_column)
    columns = next(((name,) for name in named if name in others), others)
    if not columns:
        raise ValueError(
            f"{table.path} has the one column {id_column!r}; expected {named[0]!r} beside the ids"
        )
    return NodeTable(table, id_column, columns)


def read_nodes(source: NodeTable, ids: RowLookup, *, label: str, progress: Progress) -> NodeValues:
    """Read a table of nodes; refuse a node with two rows."""
    rows: list[np.ndarray] = []
    batches, starts, places = [], [0], []
    for batch in source.table.batches((source.id_column, *source.columns), label=label, progress=progress):
        names = decoded(batch.columns.column(source.id_column))
        if is_string(names.type) and source.id_column != "id":
            refuse_ids_as_names(source.table, batch, [source.id_column])
        rows.append(ids.rows(names, batch.place, source.id_column))
        batches.append(batch.columns.select(list(source.columns)))
        places.append(batch.place)
        starts.append(starts[-1] + len(names))
    if not starts[-1]:
        raise ValueError(f"{source.path} holds no row; expected a row a node")
    joined = pa.Table.from_batches(batches)
    columns = {name: joined.column(name) for name in source.columns}
    values = NodeValues(np.concatenate(rows), columns, tuple(starts[:-1]), tuple(places))
    _refuse_repeated(values, source)
    return values


def _refuse_repeated(values: NodeValues, source: NodeTable) -> None:
    _, first, count = np.unique(values.rows, return_index=True, return_counts=True)
    if first.size == values.rows.size:
        return
    node = values.rows[first[count > 1].min()]
    again = np.flatnonzero(values.rows == node)[:2]
    raise ValueError(
        f"{values.at(int(again[1]))}, column {source.id_column!r}: the node of {values.at(int(again[0]))} "
        "again; expected one row a node"
    )
