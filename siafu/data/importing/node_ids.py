"""From the user's ids to rows: row numbers as they are, or a map by first appearance."""

from itertools import repeat
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.data.importing.file_location import FileLocation
from siafu.store.node_names import is_string
from siafu.user_input import MAX_NODES

_MAX_GUESSED = 1 << 29
_MAX_SPARSITY = 4


class RowLookup(Protocol):
    """Maps ids to rows."""

    def rows(self, ids: pa.Array, place: FileLocation, column: str) -> np.ndarray:
        """Return the rows of some ids, (n,) int32; ``place`` and ``column`` locate them for errors."""

    def pairs(
        self, src: pa.Array, dst: pa.Array, place: FileLocation, columns: tuple[str, str]
    ) -> list[np.ndarray]:
        """Return the rows of the sources and of the targets of some edges."""


class SparseIdsError(Exception):
    """Integer ids are too sparse to be row numbers."""


class RowNumbers:
    """Integer ids that are row numbers.

    Attributes:
        count: N.
        counted_by: the file that says so.
    """

    def __init__(self, count: int, counted_by: str) -> None:
        self.count, self.counted_by = count, counted_by

    def rows(self, ids: pa.Array, place: FileLocation, column: str) -> np.ndarray:
        """See :class:`RowLookup`."""
        numbers = _integers(ids, place, column, self.counted_by)
        bad = numbers >= self.count
        if bad.any():
            row = int(bad.argmax())
            raise ValueError(
                f"{place.at(row)}, column {column!r}: there is no node {numbers[row]}; {self.counted_by} has "
                f"{self.count} nodes, 0 to {self.count - 1}: add it there or drop the row"
            )
        return numbers.astype(np.int32)

    def pairs(
        self, src: pa.Array, dst: pa.Array, place: FileLocation, columns: tuple[str, str]
    ) -> list[np.ndarray]:
        """See :class:`RowLookup`."""
        return [self.rows(src, place, columns[0]), self.rows(dst, place, columns[1])]


class InferredRowNumbers:
    """Integer ids without a known count: taken as row numbers while at least a quarter of them is in use."""

    def __init__(self, most_edges: int) -> None:
        """``most_edges`` bounds the number of edges, and so of ids in use."""
        self._most = min(_MAX_GUESSED, _MAX_SPARSITY * 2 * most_edges)
        self._seen = np.zeros(1024, dtype=bool)
        self.count = 0

    def rows(self, ids: pa.Array, place: FileLocation, column: str) -> np.ndarray:
        """See :class:`RowLookup`."""
        numbers = _integers(ids, place, column, "edges")
        largest = int(numbers.max(initial=-1))
        if largest >= self._most:
            raise SparseIdsError
        self.count = max(self.count, largest + 1)
        if self.count > self._seen.size:
            self._seen = np.concatenate([self._seen, np.zeros(2 * self.count - self._seen.size, dtype=bool)])
        self._seen[numbers] = True
        return numbers.astype(np.int32)

    def pairs(
        self, src: pa.Array, dst: pa.Array, place: FileLocation, columns: tuple[str, str]
    ) -> list[np.ndarray]:
        """See :class:`RowLookup`."""
        return [self.rows(src, place, columns[0]), self.rows(dst, place, columns[1])]

    def confirmed(self, path: str) -> RowNumbers:
        """Return the row numbers after all edges were read; refuse ids that are too sparse."""
        if self.count > _MAX_SPARSITY * int(np.count_nonzero(self._seen)):
            raise SparseIdsError
        return RowNumbers(self.count, path)


class IdMap:
    """Ids of one kind, integers or strings, numbered by first appearance.

    Attributes:
        strings: whether ids are strings.
        defined_by: the file that defined all nodes; None while new ids are accepted.
    """

    def __init__(self, *, strings: bool) -> None:
        self._table: _Strings | _Integers = _Strings() if strings else _Integers()
        self.strings = strings
        self.defined_by: str | None = None

    @property
    def count(self) -> int:
        """The number of nodes so far."""
        return self._table.count

    def names(self) -> pa.Array:
        """Return the ids by row."""
        return self._table.names()

    def rows(self, ids: pa.Array, place: FileLocation, column: str) -> np.ndarray:
        """See :class:`RowLookup`."""
        encoded = pc.dictionary_encode(self._checked(ids, place, column))
        different = encoded.dictionary
        rows = self._table.find(different)
        new = rows < 0
        of_id = encoded.indices.to_numpy(zero_copy_only=False)
        if new.any():
            if self.defined_by is not None:
                row = int(new[of_id].argmax())
                raise ValueError(
                    f"{place.at(row)}, column {column!r}: there is no node {ids[row].as_py()!r} in "
                    f"{self.defined_by}: add it there or drop the row"
                )
            rows[new] = self._add(different.filter(pa.array(new)), place)
        return rows[of_id].astype(np.int32)

    def pairs(
        self, src: pa.Array, dst: pa.Array, place: FileLocation, columns: tuple[str, str]
    ) -> list[np.ndarray]:
        """See :class:`RowLookup`; an edge's source is numbered before its target."""
        src, dst = self._checked(src, place, columns[0]), self._checked(dst, place, columns[1])
        if self.defined_by is not None:
            return [self.rows(src, place, columns[0]), self.rows(dst, place, columns[1])]
        turns = np.arange(2 * len(src)).reshape(2, -1).T.ravel()  # src 0, dst 0, src 1, dst 1, ...
        rows = self.rows(pa.concat_arrays([src, dst]).take(pa.array(turns)), place, columns[0])
        return [rows[0::2].copy(), rows[1::2].copy()]

    def _add(self, ids: pa.Array, place: FileLocation) -> np.ndarray:
        first = self.count
        if first + len(ids) > MAX_NODES:
            raise ValueError(f"{place.file}: over {MAX_NODES} different ids; that many nodes fit no graph")
        self._table.append(ids)
        return np.arange(first, self.count)

    def _checked(self, ids: pa.Array, place: FileLocation, column: str) -> pa.Array:
        if is_string(ids.type) != self.strings or not (self.strings or pa.types.is_integer(ids.type)):
            wanted = "strings" if self.strings else "integers"
            raise ValueError(
                f"{place.file}: column {column!r} holds {ids.type}, but ids in other columns are {wanted}; "
                "write them alike"
            )
        refuse_missing(ids, place, column)
        if not self.strings:
            _refuse_negative(ids.to_numpy(zero_copy_only=False), place, column)
        return ids.cast(pa.large_string() if self.strings else pa.int64())


class _Strings:
    def __init__(self) -> None:
        self._row: dict[str, int] = {}

    @property
    def count(self) -> int:
        return len(self._row)

    def find(self, ids: pa.Array) -> np.ndarray:
        rows = map(self._row.get, ids.to_pylist(), repeat(-1))
        return np.fromiter(rows, dtype=np.int64, count=len(ids))

    def append(self, ids: pa.Array) -> None:
        for name in ids.to_pylist():
            self._row[name] = len(self._row)

    def names(self) -> pa.Array:
        return pa.array(self._row, type=pa.large_string())


class _Integers:
    """Sorted ids beside their rows: 12 bytes a node, where a dict of integers takes over 100."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, dtype=np.int64)
        self._rows = np.empty(0, dtype=np.int32)

    @property
    def count(self) -> int:
        return self._sorted.size

    def find(self, ids: pa.Array) -> np.ndarray:
        wanted = ids.to_numpy(zero_copy_only=False)
        if not self.count:
            return np.full(wanted.size, -1, dtype=np.int64)
        order = wanted.argsort()  # ascending queries stay in the cache
        place = np.minimum(np.searchsorted(self._sorted, wanted[order]), self.count - 1)
        rows = np.empty(wanted.size, dtype=np.int64)
        rows[order] = np.where(self._sorted[place] == wanted[order], self._rows[place], -1)
        return rows

    def append(self, ids: pa.Array) -> None:
        new = ids.to_numpy(zero_copy_only=False)
        rows = np.arange(self.count, self.count + new.size, dtype=np.int32)
        order = new.argsort()
        both = np.concatenate([self._sorted, new[order]])
        merge = both.argsort(kind="stable")  # two ascending runs: one pass
        self._rows = np.concatenate([self._rows, rows[order]])[merge]
        self._sorted = both[merge]

    def names(self) -> pa.Array:
        ids = np.empty(self.count, dtype=np.int64)
        ids[self._rows] = self._sorted
        return pa.array(ids)


def refuse_missing(ids: pa.Array, place: FileLocation, column: str) -> None:
    """Refuse an empty field where an id is expected."""
    missing = pc.is_null(ids)
    if is_string(ids.type):
        missing = pc.or_(missing, pc.fill_null(pc.equal(ids, ""), fill_value=True))
    row = pc.index(missing, True).as_py()
    if row >= 0:
        raise ValueError(f"{place.at(row)}, column {column!r} is empty; expected the id of a node")


def _integers(ids: Any, place: FileLocation, column: str, counted_by: str) -> np.ndarray:
    if not pa.types.is_integer(ids.type):
        raise ValueError(
            f"{place.file}: column {column!r} holds {ids.type}, but ids beside {counted_by} are row numbers; "
            "give the features as a table with an id column, or number the nodes from 0"
        )
    refuse_missing(ids, place, column)
    numbers = ids.to_numpy(zero_copy_only=False)
    _refuse_negative(numbers, place, column)
    return numbers


def _refuse_negative(numbers: np.ndarray, place: FileLocation, column: str) -> None:
    bad = numbers < 0
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(f"{place.at(row)}, column {column!r} is {numbers[row]}; node ids start at 0")
