"""Labels of nodes: classes by number or name, multi-label columns of 0 and 1, or regression targets."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.data.columns.schema import require_column
from siafu.data.importing.nodes import NodeTable, NodeValues, node_table
from siafu.data.importing.numpy_files import NpyFile
from siafu.data.importing.tables import Table
from siafu.store.node_names import is_string

LabelKind = Literal["class", "multilabel", "number"]
_MOST_CLASSES = 65536
_PLAUSIBLE_CLASSES = 50  # however few nodes have a label
_NODES_A_CLASS = 4  # at least, on average, where there are more classes
_OPTION = "--label-kind class|multilabel|number (label_kind in Python) says what the labels are"


class Labels(NamedTuple):
    """Labels of all nodes: ``y`` as in :class:`siafu.graph.Graph`, and the names of the classes."""

    y: np.ndarray
    class_names: tuple[str, ...] | None


def check_label_kind(kind: str | None) -> None:
    """Refuse an unknown kind of labels."""
    if kind is not None and kind not in get_args(LabelKind):
        raise ValueError(f"label_kind is {kind!r}; expected one of {get_args(LabelKind)}")


def label_table(table: Table, *, id_column: str | None = None, label: str | None = None) -> NodeTable:
    """Find the columns of a table of labels: that of the user, ``label`` or ``y``, else all beside the ids."""
    if label is not None:
        require_column(label, table.names, str(table.path))
    return words_as_text(
        node_table(table, named=("label", "y") if label is None else (label,), id_column=id_column)
    )


def words_as_text(source: NodeTable) -> NodeTable:
    """Have columns of labels in text read as strings, unless they are numbers."""
    table = source.table
    if not table.csv:
        return source
    plain = (pa.types.is_integer, pa.types.is_floating)
    words = [name for name in source.columns if not any(test(table.type_of(name)) for test in plain)]
    return NodeTable(table.read_as(dict.fromkeys(words, pa.string())), source.id_column, source.columns)


def labels_of_array(array: NpyFile, kind: LabelKind | None = None) -> Labels:
    """Read (N,) or (N, C) labels, one row per node."""
    values = array.read()
    if values.ndim == 2 and values.shape[1] == 1 and kind != "multilabel":
        values = values[:, 0]
    if values.ndim not in (1, 2) or values.shape[0] == 0:
        raise ValueError(f"{array.shown} is {values.shape}; expected (N,) classes or (N, C) labels")
    return Labels(checked_labels(values, lambda row: f"{array.shown}: row {row}", kind), None)


def labels_of_nodes(
    values: NodeValues, source: NodeTable, num_nodes: int, kind: LabelKind | None = None
) -> Labels:
    """Scatter the labels of a table to their nodes; nodes without a row are unlabelled."""
    if len(source.columns) == 1 and kind != "multilabel":
        return _one_column(values, source, num_nodes, kind)
    columns = [_numbers(values.columns[name], values, name, kind) for name in source.columns]
    table = checked_labels(np.stack(columns, axis=1), values.at, kind)
    y = np.full((num_nodes, len(columns)), np.nan if table.dtype.kind == "f" else 0, dtype=table.dtype)
    y[values.rows] = table
    named = table.dtype == np.uint8 and (source.table.header or not source.table.csv)
    return Labels(y, source.columns if named else None)


def checked_labels(values: np.ndarray, at: Callable[[int], str], kind: LabelKind | None = None) -> np.ndarray:
    """Convert labels to their stored form; ``at`` names the row of a label that is refused.

    Without a kind, floats are regression targets, several columns are multi-label, and one integer column is classes.
    """
    if kind == "number" or (kind is None and values.dtype.kind == "f"):
        with np.errstate(over="ignore"):
            targets = values.astype(np.float32)
        _refuse(np.isinf(targets), values, at, "a finite number, or NaN for none")
        return targets
    if kind == "multilabel" or (kind is None and values.ndim == 2):
        _refuse((values != 0) & (values != 1), values, at, "0 or 1 where there are several labels a node")
        return values.astype(np.uint8)[:, None] if values.ndim == 1 else values.astype(np.uint8)
    return _classes(values, at, kind)


def whole_classes(values: np.ndarray) -> np.ndarray:
    """Convert whole floats to integers, NaN to -1; floats with a fraction or below -1 stay floats."""
    if values.dtype.kind != "f":
        return values
    with np.errstate(invalid="ignore"):
        whole = np.where(np.isnan(values), -1, values)
        fits = (whole == np.floor(whole)) & (whole >= -1) & (whole < 2**53)
    return whole.astype(np.int64) if fits.all() and not np.isnan(values).all() else values


def _classes(values: np.ndarray, at: Callable[[int], str], kind: LabelKind | None) -> np.ndarray:
    """Return one class per node, int64; refuse implausibly many classes unless the kind is given."""
    if values.ndim != 1:
        raise ValueError(f"labels are {values.shape}; expected (N,) where they are classes: {_OPTION}")
    values = whole_classes(values)
    found = "a class from 0, or -1 for none"
    _refuse(values < -1 if values.dtype.kind in "if" else values < 0, values, at, f"{found}; {_OPTION}")
    _refuse(values != np.floor(values), values, at, f"{found}; {_OPTION}")
    most = max(_MOST_CLASSES, values.size)
    _refuse(values >= most, values, at, f"a class below {most}; {_OPTION}")
    classes = values.astype(np.int64)
    count, labelled = int(classes.max(initial=-1)) + 1, int((classes >= 0).sum())
    if kind is None and count > _PLAUSIBLE_CLASSES and labelled < _NODES_A_CLASS * count:
        raise ValueError(
            f"{at(int(classes.argmax()))}: label {count - 1} makes {count} classes for {labelled} labelled nodes; "
            f"expected at least {_NODES_A_CLASS} nodes a class, or at most {_PLAUSIBLE_CLASSES} classes, where nothing "
            f"says what whole numbers are: {_OPTION}"
        )
    return classes


def _one_column(values: NodeValues, source: NodeTable, num_nodes: int, kind: LabelKind | None) -> Labels:
    column, names = values.columns[source.columns[0]], None
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_string(column.type) and kind != "number":
        names, classes = _named(column)
    else:
        numbers = _numbers(column, values, source.columns[0], kind)
        classes = checked_labels(whole_classes(numbers) if kind is None else numbers, values.at, kind)
    y = np.full(num_nodes, np.nan if classes.dtype.kind == "f" else -1, dtype=classes.dtype)
    y[values.rows] = classes
    return Labels(y, names)


def _named(column: pa.ChunkedArray) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the sorted words of a column and the number of each row's word; -1 for an empty one."""
    column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    names = sorted(name for name in pc.unique(column).to_pylist() if name is not None)
    found = pc.index_in(column, value_set=pa.array(names, column.type), skip_nulls=True)
    return tuple(names), pc.fill_null(found, -1).to_numpy().astype(np.int64)


def _numbers(column: pa.ChunkedArray, values: NodeValues, name: str, kind: LabelKind | None) -> np.ndarray:
    if kind == "number" and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        return column.cast(pa.float64(), safe=False).to_numpy()  # an empty one is NaN
    if pa.types.is_integer(column.type):
        return pc.fill_null(column, -1).to_numpy() if column.null_count else column.to_numpy()
    if pa.types.is_boolean(column.type):
        return pc.fill_null(column.cast(pa.int8()), -1).to_numpy()
    if pa.types.is_floating(column.type):
        return column.to_numpy()
    raise ValueError(
        f"{values.places[0].file}: column {name!r} holds {column.type}; give numbers or one column of words"
    )


def _refuse(bad: np.ndarray, values: np.ndarray, at: Callable[[int], str], expected: str) -> None:
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{at(place[0])}: label {values[place]}; expected {expected}")
