"""Store typed columns as raw arrays: numbers as they are, vocabularies and texts as offsets and bytes.

Arrow is imported where there are columns: most stores have none.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from siafu.columns import Column, Columns, ColumnType
from siafu.store.manifest import ColumnSpec, DType
from siafu.store.node_names import strings_from_arrays, strings_to_arrays

if TYPE_CHECKING:
    import pyarrow as pa

VALUES: dict[str, DType] = {
    "number": "float64",
    "date": "float64",
    "boolean": "int8",
    "category": "int32",
    "list": "float32",
}


class Rows(Protocol):
    """An array that is written range by range."""

    def append(self, rows: np.ndarray) -> None:
        """Append rows."""


class Folder(Protocol):
    """A folder of arrays that is being written."""

    def array(self, name: str, dtype: DType, *, row: tuple[int, ...] = ()) -> Rows:
        """Begin an array."""


class ColumnWriter:
    """Writes the arrays of one column, a range of values at a time."""

    def __init__(self, store: Folder, prefix: str, place: int, type: ColumnType) -> None:
        """``prefix`` says whether it is a column of nodes or of edges, ``place`` which."""
        self._store, self._name, self._kind = store, f"{prefix}_{place}", type.kind
        self._values: Rows | None = None
        self._text: _StringWriter | None = None

    def append(self, values: Any) -> None:
        """Append values as :class:`siafu.columns.Column` has them."""
        if self._kind == "text":
            self._text = self._text or _StringWriter(self._store, self._name)
            self._text.append(values)
            return
        if self._values is None:
            self._values = self._store.array(self._name, VALUES[self._kind], row=values.shape[1:])
        self._values.append(values)

    def close(self, vocabulary: Any = None) -> None:
        """Write the vocabulary, if the column is a category."""
        if self._kind == "category":
            _StringWriter(self._store, self._name).append(vocabulary)


class _StringWriter:
    """Writes strings as offsets and bytes."""

    def __init__(self, store: Folder, name: str) -> None:
        self._offsets, self._bytes = (
            store.array(f"{name}_offsets", "int64"),
            store.array(f"{name}_bytes", "uint8"),
        )
        self._offsets.append(np.zeros(1, dtype=np.int64))
        self._end = 0

    def append(self, strings: Any) -> None:
        offsets, text = strings_to_arrays(strings)
        self._offsets.append(offsets[1:] + self._end)
        self._bytes.append(text)
        self._end += text.size


def read_columns(
    arrays: Mapping[str, np.ndarray], prefix: str, specs: Sequence[ColumnSpec], what: str
) -> Columns:
    """Rebuild the columns from the arrays of a store; ``what`` names it in errors."""
    return tuple(_column(arrays, f"{prefix}_{place}", spec, what) for place, spec in enumerate(specs))


def _column(arrays: Mapping[str, np.ndarray], name: str, spec: ColumnSpec, what: str) -> Column:
    if spec.kind == "text":
        return Column(spec.type, _strings(arrays, name, what))
    values = arrays[name]
    if spec.kind != "category":
        return Column(spec.type, values)
    vocabulary = _strings(arrays, name, what)
    if values.size and not -1 <= values.min() <= values.max() < len(vocabulary):
        raise ValueError(f"{what}: column {spec.name!r} has places outside its vocabulary; import it again")
    return Column(spec.type, values, vocabulary)


def _strings(arrays: Mapping[str, np.ndarray], name: str, what: str) -> "pa.Array":
    try:
        return strings_from_arrays(arrays[f"{name}_offsets"], arrays[f"{name}_bytes"])
    except ValueError as error:
        raise ValueError(f"{what}: {name}: {error}") from None
