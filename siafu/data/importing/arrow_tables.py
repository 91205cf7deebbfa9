"""Make a graph of tables in memory, of pandas, Polars or Arrow, through Arrow's interface; neither is imported here."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from siafu.data.columns.schema import EdgeSchema, NodeSchema, TableSchema
from siafu.data.importing.edge_sort import Combine
from siafu.data.importing.graph import import_graph
from siafu.data.importing.labels import LabelKind
from siafu.data.importing.tables import MemoryTable, memory_table
from siafu.graph import Graph

_UNNAMED_INDEX = "__index_level_0__"  # how Arrow calls an index of pandas without a name


def graph_from_tables(
    *,
    nodes: Any,
    edges: Any,
    schema: TableSchema,
    split: str | None = None,
    split_seed: int = 0,
    combine: Combine | None = None,
    undirected: bool = False,
    label_kind: LabelKind | None = None,
    name: str = "graph",
) -> Graph:
    """Make a graph of tables; see :meth:`siafu.Graph.from_tables`."""
    given = {"nodes": [] if nodes is None else _tables(nodes, "nodes"), "edges": _tables(edges, "edges")}
    with tempfile.TemporaryDirectory(prefix="siafu-tables-") as folder:
        store = import_graph(
            Path(folder) / "store",
            edges=given["edges"],
            nodes=given["nodes"] or None,
            split=split,
            split_seed=split_seed,
            schema=schema,
            combine=combine,
            undirected=undirected,
            label_kind=label_kind,
            name=name,
        )
        return store.graph()  # mapped: the files live on until the graph is gone


def schema_of_names(
    *,
    id: str | None,
    label: str | None,
    split_column: str | None,
    source: str | None,
    target: str | None,
    weight: str | None,
) -> TableSchema:
    """Make a schema of the names of columns."""
    return TableSchema(
        nodes=NodeSchema(id=id, label=label, split=split_column),
        edges=EdgeSchema(source=source, target=target, weight=weight),
    )


def _tables(given: Any, what: str) -> list[MemoryTable]:
    """Convert one table, or a list of tables, to Arrow."""
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    names = [what] if len(several) == 1 else [f"{what}[{place}]" for place in range(len(several))]
    return [memory_table(_arrow(each, name), name) for each, name in zip(several, names, strict=True)]


def _arrow(table: Any, what: str) -> pa.Table:
    if not isinstance(table, pa.Table) and not hasattr(table, "__arrow_c_stream__"):
        raise ValueError(
            f"{what} is a {type(table).__name__}; expected a table of pandas (2.2 or newer), Polars or Arrow; for "
            "files use siafu import"
        )
    table = pa.table(table)
    return table.drop_columns([_UNNAMED_INDEX]) if _UNNAMED_INDEX in table.column_names else table
