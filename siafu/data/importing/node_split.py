"""Train, validation and test splits as users write them: numbers 0 to 3, or words."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.data.importing.nodes import NodeTable, NodeValues, node_table
from siafu.data.importing.numpy_files import NpyFile
from siafu.data.importing.tables import Table
from siafu.store import TEST, TRAIN, UNUSED, VALIDATION, split_masks
from siafu.store.node_names import is_string

_WORDS = {
    "train": TRAIN,
    "valid": VALIDATION,
    "val": VALIDATION,
    "validation": VALIDATION,
    "test": TEST,
    "none": UNUSED,
    "": UNUSED,
}


def split_table(table: Table) -> NodeTable:
    """Find the columns of a table of splits: the column ``split``, else the only one beside the ids."""
    source = node_table(table, named=("split",))
    if len(source.columns) > 1:
        raise ValueError(
            f"{table.path} has columns {', '.join(table.names)}; expected one that is called split"
        )
    return codes_or_words(source)


def codes_or_words(source: NodeTable) -> NodeTable:
    """Have the column of a split in text read as strings, unless it holds integers."""
    (name,) = source.columns
    if source.table.csv and not pa.types.is_integer(source.table.type_of(name)):
        return NodeTable(source.table.read_as({name: pa.string()}), source.id_column, source.columns)
    return source


def masks_of_array(array: NpyFile) -> dict[str, np.ndarray]:
    """Read (N,) or (N, S) codes into masks."""
    if array.dtype.kind not in "iu" or len(array.shape) not in (1, 2):
        raise ValueError(
            f"{array.shown} is {array.shape} {array.dtype}; expected (N,) integers: 0 train, 1 validation, "
            "2 test, 3 none"
        )
    return split_masks(array.read(), str(array.shown))


def masks_of_nodes(values: NodeValues, source: NodeTable, num_nodes: int) -> dict[str, np.ndarray]:
    """Scatter the splits of a table to their nodes; nodes without a row are in no split."""
    (name,) = source.columns
    column = values.columns[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    codes = np.full(num_nodes, UNUSED, dtype=np.int64)
    codes[values.rows] = _codes(column, values, name)
    return split_masks(codes, str(source.path))


def _codes(column: pa.ChunkedArray, values: NodeValues, name: str) -> np.ndarray:
    if is_string(column.type):
        words = pa.array(list(_WORDS), column.type)
        lower = pc.fill_null(pc.utf8_lower(pc.utf8_trim_whitespace(column)), "")
        place = pc.fill_null(pc.index_in(lower, value_set=words), -1).to_numpy()
        codes = np.array([*_WORDS.values(), -1])[place]
    elif pa.types.is_integer(column.type):
        codes = pc.fill_null(column, UNUSED).to_numpy()
    else:
        raise ValueError(
            f"{values.places[0].file}: column {name!r} holds {column.type}; expected words or 0 to 3"
        )
    bad = (codes < TRAIN) | (codes > UNUSED)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{values.at(row)}, column {name!r} is {column[row].as_py()!r}; expected train, valid, test or "
            "none, or 0, 1, 2 or 3"
        )
    return codes
