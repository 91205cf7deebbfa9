"""The part of each node as a file says it.

    .npy            (N,) integers
    .parquet, .pq   the column ``part``, else the only one
    any other       text: a number a line, or CSV with a column ``part`` or only one

Where the first line of a text is no number, it is a header. Row ``i`` is the node of the user's row ``i``, wherever
the graph keeps it.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch
from torch import Tensor

from siafu.graph import Graph

_COLUMN = "part"


def read_parts(path: Path, graph: Graph, *, parts: int) -> Tensor:
    """Read the part of each node, (N,) int32; refuse a file that does not partition this graph into ``parts`` parts."""
    match path.suffix.lower():
        case ".npy":
            given = _read_npy(path)
        case ".parquet" | ".pq":
            given = _read_column(path, _open_parquet(path))
        case _:
            given = _read_column(path, _open_text(path))
    if given.shape != (graph.num_nodes,):
        raise ValueError(
            f"{path} has {_shape(given)}; expected {graph.num_nodes}, a part for each node of {graph.name}"
        )
    bad = (given < 0) | (given >= parts)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{path}: row {row} is part {given[row]}; expected 0 to {parts - 1}, as {parts} parts are asked for"
        )
    part_of_row = torch.from_numpy(given.astype(np.int32))
    return part_of_row if graph.node_id is None else part_of_row[graph.node_id]


def _shape(given: np.ndarray) -> str:
    return f"{given.shape[0]} rows" if given.ndim == 1 else f"the shape {given.shape}"


def _read_npy(path: Path) -> np.ndarray:
    try:
        given = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, SyntaxError) as error:
        raise ValueError(f"{path} is not a .npy file of numbers, or is cut off: {error}") from None
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "iu":
        found = f"an array of {given.dtype}" if isinstance(given, np.ndarray) else "an .npz file"
        raise ValueError(f"{path} is {found}; expected integers, the part of each node")
    return given


def _open_parquet(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not readable as Parquet: {error}") from None


def _open_text(path: Path) -> pa.Table:
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline().split(",")[0].strip().lstrip("+-")
        options = pa_csv.ReadOptions(autogenerate_column_names=first.isdigit())
        return pa_csv.read_csv(path, read_options=options)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not readable as text, a part number a line: {error}") from None


def _read_column(path: Path, table: pa.Table) -> np.ndarray:
    name = _COLUMN if _COLUMN in table.column_names else table.column_names[0]
    if name != _COLUMN and table.num_columns > 1:
        raise ValueError(
            f"{path} has columns {', '.join(table.column_names)}; expected one that is called {_COLUMN}"
        )
    column = table.column(name)
    if not pa.types.is_integer(column.type):
        raise ValueError(f"{path}: column {name!r} holds {column.type}; expected integers")
    if column.null_count:
        row = column.is_null().index(True).as_py()
        raise ValueError(f"{path}: row {row} of column {name!r} is empty; expected a part for each node")
    return column.to_numpy()
