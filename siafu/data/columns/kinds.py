"""Find the kind of a column from all of its values, batch by batch, in bounded memory."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.columns import Kind
from siafu.data.columns.parsing import (
    BOOLEAN,
    DATE,
    DATE_ORDERS,
    LIST,
    NUMBER,
    At,
    Parser,
    first_mismatch,
    matches,
    native_kind,
    texts,
    without_words_for_blank,
)
from siafu.data.columns.schema import ColumnSchema, DateOrder
from siafu.store.node_names import is_string

_MOST_COUNTED = 1 << 17  # different values that are counted
_NEARLY = 0.95  # share of numbers or dates from which another value is an error
_FEW = 10  # so many different values always make a category
_PADDED = r"^[+-]?0\d"
_SENTENCE_WORDS = 3.0  # on average, from which different values are texts


class Found(NamedTuple):
    """What a column turned out to be.

    Attributes:
        schema: its kind; ignore where it tells nothing.
        note: a few words on its values, or why it is ignored.
        length: of the lists in it.
    """

    schema: ColumnSchema
    note: str
    length: int = 0


@dataclass
class _Pattern:
    """How many texts match a pattern, and the first that does not."""

    pattern: str
    count: int = 0
    first_bad: tuple[str, str] | None = None
    given_up: bool = False

    def add(self, values: pa.Array, seen: int, at: At) -> None:
        """Count a batch; once few match, no more is counted. ``seen`` is the number of texts so far."""
        if self.given_up:
            return
        self.count += pc.sum(matches(values, self.pattern)).as_py() or 0
        if self.first_bad is None and (row := first_mismatch(values, self.pattern)) >= 0:
            self.first_bad = (at(row), values[row].as_py())
        self.given_up = self.count < seen / 2

    def of_all(self, seen: int) -> bool:
        """Return whether all texts match."""
        return not self.given_up and self.count == seen


class KindFinder:
    """Finds the kind of one column.

    Attributes:
        name: of the column.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows = self._blank = self._numeric_blank = self._words = self._padded = 0
        self._native: Kind | None = None
        self._unreadable: pa.DataType | None = None
        self._numbers, self._booleans, self._lists = _Pattern(NUMBER), _Pattern(BOOLEAN), _Pattern(LIST)
        self._dates = {order: _Pattern(DATE[order]) for order in DATE_ORDERS}
        self._different: set[object] = set()
        self._counted = 0  # rows until there were too many different values
        self._low, self._high = np.inf, -np.inf
        self._length: int | None = None

    def add(self, values: pa.Array, at: At) -> None:
        """Look at a batch; ``at`` says where its rows are."""
        self._rows += len(values)
        if is_string(values.type):
            self._add_texts(texts(values), at)
            return
        kind = native_kind(values.type)
        if kind is None and not pa.types.is_null(values.type):
            self._unreadable = values.type
        self._native = self._native or kind
        if kind in ("number", "boolean", "date"):
            self._add_typed(Parser(self.name, kind, order=None).parse(values, at))
            return
        self._blank += values.null_count
        if kind == "list":
            lengths = pc.drop_null(pc.list_value_length(values))
            self._length = lengths[0].as_py() if len(lengths) and self._length is None else self._length

    def found(self, said: ColumnSchema | None = None) -> Found:
        """Return what the column is: as the user said, else as its values look."""
        if said is not None:
            note = "as the schema says" if said.kind == "ignore" else self._note(said.kind)
            return Found(said, note, self._length or 0)
        if self._unreadable is not None:
            return _ignored(f"holds {self._unreadable}")
        if self._blank == self._rows:
            return _ignored("is blank in every row")
        if len(self._different) == 1 and not self._blank:
            return _ignored("has the same value in every row")
        if self._native is not None:
            kind = "boolean" if self._native == "number" and self._different <= {0.0, 1.0} else self._native
            return self._as(kind)
        return self._found_text()

    @property
    def _too_many(self) -> bool:
        return len(self._different) >= _MOST_COUNTED

    def _add_typed(self, values: np.ndarray) -> None:
        blank = np.isnan(values) if values.dtype.kind == "f" else values < 0
        self._blank += int(blank.sum())
        self._numeric_blank = self._blank
        filled = values[~blank].astype(np.float64)
        self._widen(filled)
        self._count_different(filled[:_MOST_COUNTED].tolist(), filled.size)

    def _widen(self, filled: np.ndarray) -> None:
        if filled.size:
            self._low, self._high = min(self._low, filled.min()), max(self._high, filled.max())

    def _add_texts(self, values: pa.Array, at: At) -> None:
        self._blank += values.null_count
        self._numeric_blank += without_words_for_blank(values).null_count
        seen = self._rows - self._blank
        plain = without_words_for_blank(values)
        seen_plain = self._rows - self._numeric_blank
        self._booleans.add(values, seen, at)
        self._lists.add(values, seen, at)
        self._numbers.add(plain, seen_plain, at)
        for pattern in self._dates.values():
            pattern.add(plain, seen_plain, at)
        if self._numbers.first_bad is None:
            self._widen(plain.drop_null().cast(pa.float64()).to_numpy())
            self._padded += pc.sum(matches(plain, _PADDED)).as_py() or 0
        if not self._lists.given_up and self._length is None:
            self._length = _first_length(values)
        self._words += pc.sum(pc.count_substring(values, " ")).as_py() or 0
        self._count_different(pc.unique(values.drop_null()).to_pylist(), len(values) - values.null_count)

    def _count_different(self, values: list[object], rows: int) -> None:
        if not self._too_many:
            self._different.update(values)
            self._counted += rows

    def _found_text(self) -> Found:
        seen, plain = self._rows - self._blank, self._rows - self._numeric_blank
        if not plain:  # NA in every row
            return self._as("category") if len(self._different) > 1 else _ignored("is blank in every row")
        if self._booleans.of_all(seen):
            return self._as("boolean")
        if self._numbers.of_all(plain) and not self._padded:
            return self._as("number")
        fits = [order for order, pattern in self._dates.items() if pattern.of_all(plain)]
        if fits:
            return self._dated(fits)
        if self._lists.of_all(seen):
            return self._as("list")
        self._refuse_nearly(plain)
        return self._worded(seen)

    def _dated(self, fits: list[DateOrder]) -> Found:
        if len(fits) > 1:
            raise ValueError(
                f"column {self.name!r}: every date fits {' and '.join(fits)}, such as "
                f"{next(iter(self._different))!r}; say "
                f'which in a schema file (--schema): [nodes.columns] {self.name} = {{ kind = "date", order = '
                f'"{fits[0]}" }}'
            )
        return Found(ColumnSchema(kind="date", order=fits[0]), self._note("date"))

    def _refuse_nearly(self, plain: int) -> None:
        """Refuse a column of numbers or dates in which a few values are something else."""
        for pattern in (self._numbers, *self._dates.values()):
            if pattern.given_up or pattern.first_bad is None or self._padded or plain < 2 * _FEW:
                continue
            if _NEARLY * plain <= pattern.count < plain:
                place, value = pattern.first_bad
                kind = "number" if pattern is self._numbers else "date"
                raise ValueError(
                    f"{place}, column {self.name!r}: {value!r} is no {kind}, as {pattern.count:,} of its {plain:,} "
                    f'values are; correct it, leave it blank, or say kind = "category" in a schema file (--schema)'
                )

    def _worded(self, seen: int) -> Found:
        """Tell categories from texts, and from names that differ in nearly every row."""
        words = self._words / seen + 1
        if len(self._different) > max(self._counted / 2, _FEW):
            if words >= _SENTENCE_WORDS:
                return self._as("text")
            return _ignored(f"has {self._num_different} different values in {seen:,} rows")
        return self._as("category")

    @property
    def _num_different(self) -> str:
        return f"over {_MOST_COUNTED:,}" if self._too_many else f"{len(self._different):,}"

    def _as(self, kind: Kind) -> Found:
        return Found(ColumnSchema(kind=kind), self._note(kind), self._length or 0)

    def _note(self, kind: str) -> str:
        blank = self._numeric_blank if kind in ("number", "date") else self._blank
        parts = []
        if kind == "category":
            parts.append(f"{self._num_different} values")
        if kind in ("number", "date") and np.isfinite(self._low):
            parts.append(f"{_shown(self._low, kind)} to {_shown(self._high, kind)}")
        if kind == "list":
            parts.append(f"{self._length} numbers each")
        return ", ".join([*parts, *([f"{blank:,} blank"] if blank else [])])


def _shown(value: float, kind: str) -> str:
    if kind == "number":
        return f"{value:g}"
    return str(np.datetime64(int(value), "s")).partition("T")[0]


def _ignored(reason: str) -> Found:
    return Found(ColumnSchema(kind="ignore"), reason)


def _first_length(values: pa.Array) -> int | None:
    """Return the length of the first list."""
    lists = values.drop_null()[:1]
    return lists[0].as_py().count(",") + 1 if len(lists) else None
