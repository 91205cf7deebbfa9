"""Tables of nodes with typed columns: find the kind of each column, then write its values to a store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from siafu.columns import ColumnType
from siafu.data.columns.kinds import Found, KindFinder
from siafu.data.columns.parsing import Parser
from siafu.data.columns.schema import ColumnSchema, NodeSchema, refuse_unknown_columns, require_column
from siafu.data.importing.node_ids import IdMap
from siafu.data.importing.plausibility import refuse_edge_table
from siafu.data.importing.tables import Table, column_named, decoded, refuse_numbers_as_names
from siafu.event_log import Progress
from siafu.store.columns import ColumnWriter
from siafu.store.manifest import NODE_COLUMN
from siafu.store.writer import StoreWriter


@dataclass(frozen=True)
class ColumnTable:
    """A table of nodes: its id column, and columns of any kind.

    Attributes:
        table: whose columns in text are read as strings, but for the ids.
        id_column: the column of ids.
        columns: those that may become features.
        label, split: the columns of labels and of the split, if there are.
    """

    table: Table
    id_column: str
    columns: tuple[str, ...]
    label: str | None = None
    split: str | None = None

    @property
    def path(self) -> Path:
        """The first file, as the user gave it."""
        return self.table.path


def column_table(table: Table, schema: NodeSchema) -> ColumnTable:
    """Find the columns of a table of nodes: ids, labels and split as the schema says; all others may be features."""
    what = str(table.path)
    refuse_edge_table(table, "nodes")
    id_column = require_column(schema.id, table.names, what) if schema.id else column_named(table, "id", 0)
    refuse_numbers_as_names(table, id_column)
    roles = {id_column}
    for name in (schema.label, schema.split):
        if name is not None:
            roles.add(require_column(name, table.names, what))
    refuse_unknown_columns(schema.columns, table.names, what)
    columns = tuple(name for name in table.names if name not in roles)
    table = table.read_as(dict.fromkeys(columns, pa.string())) if table.csv else table
    return ColumnTable(table, id_column, columns, schema.label, schema.split)


def find_kinds(
    table: Table,
    columns: Sequence[str],
    said: Mapping[str, ColumnSchema],
    progress: Progress,
    *,
    most_rows: int | None = None,
) -> dict[str, Found]:
    """Find the kind of each column from all rows, or from the first ``most_rows`` of a table."""
    if not columns:
        return {}
    finders, rows = [KindFinder(name) for name in columns], 0
    for batch in table.batches(columns, label="columns", progress=progress):
        for finder in finders:
            finder.add(decoded(batch.columns.column(finder.name)), batch.place.at)
        rows += batch.columns.num_rows
        if most_rows is not None and rows >= most_rows:
            break
    if not rows:
        raise ValueError(f"{table.path} holds no row; expected at least one")
    found = {}
    for finder in finders:
        try:
            found[finder.name] = finder.found(said.get(finder.name))
        except ValueError as error:
            text = str(error)
            raise ValueError(text if str(table.path) in text else f"{table.path}: {text}") from None
    return found


def parser_of(name: str, found: Found) -> Parser:
    """Return the parser of a column of a known kind."""
    assert found.schema.kind != "ignore"
    return Parser(name, found.schema.kind, order=found.schema.order, length=found.length)


def write_node_columns(
    source: ColumnTable, found: Mapping[str, Found], ids: IdMap, store: StoreWriter, progress: Progress
) -> list[ColumnType]:
    """Write the columns, one value a node, and number the nodes; no further nodes are accepted after it."""
    types = [found[name].schema.type(name) for name in source.columns if found[name].schema.kind != "ignore"]
    parsers = [parser_of(type.name, found[type.name]) for type in types]
    writers = [ColumnWriter(store, NODE_COLUMN, place, type) for place, type in enumerate(types)]
    wanted = (source.id_column, *(type.name for type in types))
    for batch in source.table.batches(wanted, label="nodes", progress=progress):
        given = decoded(batch.columns.column(source.id_column))
        first = ids.count
        rows = ids.rows(given, batch.place, source.id_column)
        repeated = rows != np.arange(first, first + rows.size)
        if repeated.any():
            row = int(repeated.argmax())
            raise ValueError(
                f"{batch.place.at(row)}, column {source.id_column!r}: {given[row].as_py()!r} again; expected one row a "
                "node: name the column of ids with --id"
            )
        for type, parser, writer in zip(types, parsers, writers, strict=True):
            writer.append(parser.parse(decoded(batch.columns.column(type.name)), batch.place.at))
    for parser, writer in zip(parsers, writers, strict=True):
        writer.close(pa.array(list(parser.vocabulary), pa.large_string()))
    ids.defined_by = str(source.path)
    return types
