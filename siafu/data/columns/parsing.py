"""Parse a column: from Arrow arrays, as a table has them, to the values of :class:`siafu.columns.Column`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.columns import Kind
from siafu.data.columns.schema import DateOrder
from siafu.store.node_names import is_string

At = Callable[[int], str]  # the place of a row, for messages
MOST_VALUES = 1 << 20  # of a category
DATE_ORDERS: tuple[DateOrder, ...] = ("iso", "day-first", "month-first")

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
BOOLEAN = r"^(?i:true|false|yes|no|t|f|y|n|0|1)$"
LIST = r"^\[[^\[\]]*\]$"
_TIME = r"(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?)?"
_ZONE = r"(?:Z|[+-]\d{2}:?\d{2})$"
DATE: dict[DateOrder, str] = {
    "iso": r"^\d{4}-\d{2}-\d{2}" + _TIME + r"(?:Z|[+-]\d{2}:?\d{2})?$",
    "day-first": r"^(?:0?[1-9]|[12]\d|3[01])[/.-](?:0?[1-9]|1[0-2])[/.-]\d{4}" + _TIME + "$",
    "month-first": r"^(?:0?[1-9]|1[0-2])[/.-](?:0?[1-9]|[12]\d|3[01])[/.-]\d{4}" + _TIME + "$",
}
_PARTS = r"^(?P<a>\d{1,2})[/.-](?P<b>\d{1,2})[/.-](?P<y>\d{4})(?P<t>.*)$"
_NO_NUMBER = ("nan", "na", "n/a", "null", "none", "-")
_TRUE = ("true", "yes", "t", "y", "1")


def texts(values: pa.Array) -> pa.Array:
    """Return strings without the space around them; null where nothing is left."""
    trimmed = pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    return pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.large_string()), trimmed)


def without_words_for_blank(values: pa.Array) -> pa.Array:
    """Return trimmed strings, with null for words such as NA, which stand for a blank among numbers and dates."""
    blank = pc.is_in(pc.utf8_lower(values), value_set=pa.array(_NO_NUMBER, pa.large_string()))
    return pc.if_else(blank, pa.scalar(None, pa.large_string()), values)


def native_kind(kind: pa.DataType) -> Kind | None:
    """Return the kind of an Arrow type; None for strings, whose kind is found from the values, and for others."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    if _is_list(kind) and native_kind(kind.value_type) == "number":
        return "list"
    return None


class Parser:
    """Parses the values of one column, batch by batch.

    Attributes:
        vocabulary: categories: the values so far, by their place.
    """

    def __init__(self, name: str, kind: Kind, *, order: DateOrder | None, length: int = 0) -> None:
        """``order`` is that of dates in text, ``length`` that of lists."""
        self._name, self._kind, self._order, self._length = name, kind, order, length
        self.vocabulary: dict[str, int] = {}

    def parse(self, values: pa.Array, at: At) -> Any:
        """Parse a batch; ``at`` says where its rows are."""
        match self._kind:
            case "number":
                return self._numbers(values, at)
            case "boolean":
                return self._booleans(values, at)
            case "category":
                return self._categories(values, at)
            case "date":
                return self._dates(values, at)
            case "list":
                return self._lists(values, at)
        return pc.fill_null(_as_strings(values), "")

    def _numbers(self, values: pa.Array, at: At) -> np.ndarray:
        if is_string(values.type):
            values = without_words_for_blank(texts(values))
            self._refuse(values, NUMBER, at, "a number")
        elif native_kind(values.type) not in ("number", "boolean"):
            raise self._error(at(0), values.type, "numbers")
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        if (bad := np.isinf(numbers)).any():
            row = int(bad.argmax())
            raise self._error(at(row), values[row].as_py(), "a finite number, or a blank")
        return numbers

    def _booleans(self, values: pa.Array, at: At) -> np.ndarray:
        if is_string(values.type):
            values = texts(values)
            self._refuse(values, BOOLEAN, at, "true or false, yes or no, 1 or 0")
            true = pa.array(_TRUE, pa.large_string())
            found = pc.if_else(pc.is_valid(values), pc.is_in(pc.utf8_lower(values), value_set=true), None)
        else:
            numbers = self._numbers(values, at)
            bad = ~np.isin(numbers, (0, 1)) & ~np.isnan(numbers)
            if bad.any():
                row = int(bad.argmax())
                raise self._error(at(row), values[row].as_py(), "0 or 1, or a blank")
            return np.where(np.isnan(numbers), -1, numbers).astype(np.int8)
        return pc.fill_null(found.cast(pa.int8()), -1).to_numpy(zero_copy_only=False)

    def _categories(self, values: pa.Array, at: At) -> np.ndarray:
        encoded = pc.dictionary_encode(texts(_as_strings(values)))
        places = np.array(
            [
                self.vocabulary.setdefault(value, len(self.vocabulary))
                for value in encoded.dictionary.to_pylist()
            ],
            dtype=np.int32,
        )
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        found = np.where(codes < 0, -1, places[codes] if places.size else -1).astype(np.int32)
        if len(self.vocabulary) > MOST_VALUES:
            row = int((found >= MOST_VALUES).argmax())
            raise ValueError(
                f"{at(row)}, column {self._name!r}: {values[row].as_py()!r} is the {MOST_VALUES + 1:,}th different "
                f'value of a category; expected at most {MOST_VALUES:,}: say kind = "text" (its words are hashed) or '
                'kind = "ignore" in a schema file (--schema)'
            )
        return found

    def _dates(self, values: pa.Array, at: At) -> np.ndarray:
        if is_string(values.type):
            values = without_words_for_blank(texts(values))
            order = self._order or "iso"
            self._refuse(values, DATE[order], at, f"a date ({order})")
            seconds, bad = _seconds(values, order)
            if bad >= 0:
                raise self._error(at(bad), values[bad].as_py(), f"a date of the calendar ({order})")
            return seconds
        if native_kind(values.type) != "date":
            raise self._error(at(0), values.type, "dates")
        return _native_seconds(values)

    def _lists(self, values: pa.Array, at: At) -> np.ndarray:
        if is_string(values.type):
            values = texts(values)
            self._refuse(values, LIST, at, "a list of numbers such as [1, 2.5]")
            values = pc.split_pattern(pc.utf8_trim(values, "[]"), ",")
        elif native_kind(values.type) != "list":
            raise self._error(at(0), values.type, "lists of numbers")
        lengths = pc.list_value_length(values)
        filled = pc.is_valid(values).to_numpy(zero_copy_only=False)
        wrong = filled & (pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False) != self._length)
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{at(row)}, column {self._name!r}: a list of {lengths[row].as_py()} numbers; expected "
                f"{self._length}, as in the rows above"
            )
        owner = np.flatnonzero(filled).repeat(self._length)
        flat = Parser(self._name, "number", order=None)._numbers(
            pc.list_flatten(values.filter(pa.array(filled))), lambda place: at(int(owner[place]))
        )
        rows = np.full((len(values), self._length), np.nan, dtype=np.float32)
        rows[filled] = flat.reshape(-1, self._length)
        return rows

    def _refuse(self, values: pa.Array, pattern: str, at: At, expected: str) -> None:
        """Refuse the first text that does not match."""
        row = first_mismatch(values, pattern)
        if row >= 0:
            raise self._error(at(row), values[row].as_py(), expected)

    def _error(self, place: str, found: object, expected: str) -> ValueError:
        return ValueError(
            f"{place}, column {self._name!r}: {found!r}; expected {expected}: correct it, leave it blank, or say "
            "another kind in a schema file (--schema)"
        )


def matches(values: pa.Array, pattern: str) -> pa.Array:
    """Return whether each text matches; null for null."""
    return pc.match_substring_regex(values, pattern)


def first_mismatch(values: pa.Array, pattern: str) -> int:
    """Return the row of the first text that does not match; -1 if all do."""
    return int(pc.index(matches(values, pattern), False).as_py())


def split_words(values: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return all words of n texts in lower case, and the row of each."""
    words = pc.split_pattern_regex(pc.utf8_lower(values), r"[^\pL\pN]+")
    flat, rows = pc.list_flatten(words), pc.list_parent_indices(words).to_numpy()
    filled = pc.not_equal(flat, "")
    return flat.filter(filled), rows[filled.to_numpy(zero_copy_only=False)]


def _seconds(values: pa.Array, order: DateOrder) -> tuple[np.ndarray, int]:
    """Return seconds since 1970 in UTC, and the row of the first text that is no day of the calendar, or -1."""
    values = values if order == "iso" else _to_iso(values, order)
    values = pc.replace_substring_regex(values, r"([ T])(\d:)", r"\g<1>0\2".replace(r"\g<1>", r"\1"))
    zoned = matches(values, r"^.{11,}" + _ZONE)
    plain = _cast(pc.if_else(zoned, None, values), pa.timestamp("us"))
    in_zone = _cast(pc.if_else(zoned, values, None), pa.timestamp("us", "UTC"))
    if isinstance(plain, int) or isinstance(in_zone, int):
        return np.empty(0), plain if isinstance(plain, int) else in_zone
    return _native_seconds(
        pc.coalesce(plain.cast(pa.int64()), in_zone.cast(pa.int64())).cast(pa.timestamp("us"))
    ), -1


def _cast(values: pa.Array, kind: pa.DataType) -> Any:
    """Return timestamps, or the row of the first text that is none."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        for row in range(len(values)):
            try:
                values[row : row + 1].cast(kind)
            except pa.ArrowInvalid:
                return row
        raise


def _to_iso(values: pa.Array, order: DateOrder) -> pa.Array:
    """Return dates such as 31/1/2024 as 2024-01-31."""
    parts = pc.extract_regex(values, _PARTS)
    a, b, year, rest = (pc.struct_field(parts, name) for name in "abyt")
    day, month = (a, b) if order == "day-first" else (b, a)
    padded = [pc.utf8_lpad(part, 2, "0") for part in (month, day)]
    separators = [pa.scalar(text, pa.large_string()) for text in ("-", "")]
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(year, *padded, separators[0]), rest, separators[1]
    )


def _native_seconds(values: pa.Array) -> np.ndarray:
    micros = values.cast(pa.timestamp("us"), safe=False) if not pa.types.is_timestamp(values.type) else values
    micros = micros.cast(pa.timestamp("us", micros.type.tz), safe=False).cast(pa.int64())
    return micros.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / 1e6


def _as_strings(values: pa.Array) -> pa.Array:
    return values if is_string(values.type) else values.cast(pa.large_string())


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
