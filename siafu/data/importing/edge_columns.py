"""Columns of edges other than their ends and weight: stored in the order of the edges."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from siafu.columns import ColumnType, Kind
from siafu.data.columns.kinds import Found
from siafu.data.columns.parsing import Parser
from siafu.data.columns.schema import ColumnSchema, EdgeSchema, refuse_unknown_columns
from siafu.data.importing.node_columns import find_kinds, parser_of
from siafu.data.importing.tables import Batch, Table, decoded
from siafu.event_log import no_progress
from siafu.store.columns import VALUES, ColumnWriter
from siafu.store.manifest import EDGE_COLUMN
from siafu.store.writer import StoreWriter

_FIRST_ROWS = 1 << 18  # the kinds of columns of edges are found from these
_STORED: tuple[Kind, ...] = ("number", "boolean", "category", "date")


@dataclass(frozen=True)
class EdgeColumns:
    """The columns that are stored with the edges.

    Attributes:
        found: what each column beside ends and weight is.
        parsers: of those that are stored, by name.
    """

    found: dict[str, Found]
    parsers: dict[str, Parser]

    @property
    def types(self) -> list[ColumnType]:
        """The types of the stored columns."""
        return [self.found[name].schema.type(name) for name in self.parsers]

    @property
    def fields(self) -> dict[str, np.dtype]:
        """The dtype of each stored column in a buffer, by the name of its field."""
        return {field_of(place): np.dtype(VALUES[type.kind]) for place, type in enumerate(self.types)}

    def read(self, batch: Batch) -> dict[str, np.ndarray]:
        """Parse a batch, into values by the name of the field."""
        read = zip(self.fields, self.parsers.items(), strict=True)
        return {
            field: parser.parse(decoded(batch.columns.column(name)), batch.place.at)
            for field, (name, parser) in read
        }

    def writers(self, store: StoreWriter) -> dict[str, ColumnWriter]:
        """Begin the arrays of a store, by the name of the field."""
        places = enumerate(self.types)
        return {field_of(place): ColumnWriter(store, EDGE_COLUMN, place, type) for place, type in places}

    def close(self, writers: Mapping[str, ColumnWriter]) -> None:
        """Write the vocabularies, after all values."""
        for writer, parser in zip(writers.values(), self.parsers.values(), strict=True):
            writer.close(pa.array(list(parser.vocabulary), pa.large_string()))


def field_of(place: int) -> str:
    """Return the name of a stored column's field in a buffer."""
    return f"{EDGE_COLUMN}_{place}"


def edge_columns(table: Table, names: tuple[str, ...], schema: EdgeSchema) -> EdgeColumns:
    """Find the kinds of the columns of edges by their first rows, or as the schema says."""
    refuse_unknown_columns(schema.columns, names, f"{table.path}, beside ends and weight")
    found = {name: _found(table, name, schema.columns.get(name)) for name in names}
    stored = {name: each for name, each in found.items() if each.schema.kind != "ignore"}
    return EdgeColumns(found, {name: parser_of(name, each) for name, each in stored.items()})


def _found(table: Table, name: str, said: ColumnSchema | None) -> Found:
    """Return the kind of one column; one that is not understood is ignored unless the user named it."""
    try:
        (found,) = find_kinds(
            table, [name], {} if said is None else {name: said}, no_progress, most_rows=_FIRST_ROWS
        ).values()
    except ValueError as error:
        if said is not None:
            raise
        return Found(ColumnSchema(kind="ignore"), str(error))
    if found.schema.kind in (*_STORED, "ignore"):
        return found._replace(note="") if said is None and found.schema.kind != "ignore" else found
    if said is not None:
        raise ValueError(
            f"{table.path}: column {name!r}: a {said.kind} of edges is not stored; expected one of {_STORED}"
        )
    return Found(ColumnSchema(kind="ignore"), f"a {found.schema.kind} of edges is not stored")
