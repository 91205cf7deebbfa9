"""Values of columns as written become typed values, and the kind of a column is found from all of them."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from siafu.columns import Kind
from siafu.data.columns import parsing
from siafu.data.columns.encoders import word_hash
from siafu.data.columns.kinds import Found, KindFinder
from siafu.data.columns.parsing import Parser
from siafu.data.columns.schema import ColumnSchema, DateOrder


def place(row: int) -> str:
    return f"t.csv: line {row + 2}"


def find(values: list[object] | pa.Array, *, batches: int = 1) -> Found:
    """The kind of a column that comes in some batches."""
    finder, array = KindFinder("c"), values if isinstance(values, pa.Array) else pa.array(values)
    step = -(-len(array) // batches)
    for start in range(0, len(array), step):
        finder.add(array[start : start + step], lambda row, start=start: place(start + row))  # type: ignore[misc]
    return finder.found()


def parse(kind: Kind, values: list[object], *, order: DateOrder | None = None, length: int = 0) -> np.ndarray:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return np.asarray(Parser("c", kind, order=order, length=length).parse(array, place))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5", "", "-3e4", "NaN", " 7 "], "number"),
        ([1, 2, None], "number"),
        (["yes", "no", "", "Yes"], "boolean"),
        (["0", "1", "1"], "boolean"),
        ([0, 1, None], "boolean"),
        ([True, False], "boolean"),
        (["2024-01-31", "", "2023-12-01 10:30", "2023-12-01T10:30:05Z"], "date"),
        (["31/01/2024", "1/2/2024"], "date"),
        (["01/31/2024", "1/2/2024 8:15"], "date"),
        ([dt.date(2024, 1, 31), None, dt.date(2024, 2, 1)], "date"),
        (["GB", "DE", "GB", ""], "category"),
        (["007", "012", "7"], "category"),
        (["NA", "US", "NA"], "category"),
        (["[1, 2]", "[3, 4.5]", ""], "list"),
        ([[1.0, 2.0], None, [3.0, 4.0]], "list"),
        ([f"a sentence of words, number {i}" for i in range(30)], "text"),
    ],
)
@pytest.mark.parametrize("batches", [1, 3])
def test_the_kind_is_found_from_the_values(values: list[object], kind: str, batches: int) -> None:
    assert find(values, batches=batches).schema.kind == kind


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (["", "", None], "is blank in every row"),
        (["GB", "GB"], "has the same value in every row"),
        ([3, 3, 3], "has the same value in every row"),
        ([f"u-{i}" for i in range(100)], "has 100 different values in 100 rows"),
        ([b"x", b"y"], "holds binary"),
    ],
)
def test_columns_that_tell_nothing_are_ignored_with_a_reason(values: list[object], note: str) -> None:
    found = find(values)
    assert found.schema.kind == "ignore"
    assert found.note == note


def test_notes_count_blanks_and_values() -> None:
    assert find(["18", "90", "", "N/A"]).note == "18 to 90, 2 blank"
    assert find(["a", "b", "a", ""]).note == "2 values, 1 blank"
    assert find([[1.0, 2.0], None]).note == "2 numbers each, 1 blank"


def test_a_few_words_among_numbers_are_an_error_that_names_line_and_column() -> None:
    with pytest.raises(ValueError, match=r"t.csv: line 7, column 'c': 'old' is no number, as 99 of its 100"):
        find([str(i + 18) if i != 5 else "old" for i in range(100)], batches=4)


def test_a_date_that_no_format_fits_is_an_error_that_names_line_and_column() -> None:
    values: list[object] = [f"2024-01-{i % 28 + 1:02}" for i in range(100)]
    values[40] = "2024-1-40"
    with pytest.raises(ValueError, match=r"t.csv: line 42, column 'c': '2024-1-40' is no date, as 99 of"):
        find(values, batches=3)


def test_dates_that_fit_two_orders_must_be_said() -> None:
    with pytest.raises(ValueError, match=r"every date fits day-first and month-first.*--schema"):
        find(["01/02/2024", "03/04/2024"])


def test_a_schema_comes_before_the_values() -> None:
    finder = KindFinder("c")
    finder.add(pa.array(["1", "2"]), place)
    assert finder.found(ColumnSchema(kind="category")).schema.kind == "category"


def test_dates_are_seconds_since_1970_in_utc() -> None:
    second = dt.datetime(2024, 1, 31, 10, 30, tzinfo=dt.UTC).timestamp()
    iso = ["2024-01-31 10:30", "2024-01-31T10:30:00Z", "2024-01-31 12:30:00+02:00", "2024-01-31", ""]
    expected = [second, second, second, second - 10.5 * 3600, np.nan]
    np.testing.assert_array_equal(parse("date", iso, order="iso"), expected)
    np.testing.assert_array_equal(parse("date", ["31/1/2024 10:30"], order="day-first"), [second])
    np.testing.assert_array_equal(parse("date", ["1/31/2024 10:30"], order="month-first"), [second])
    stamps = pa.array([dt.datetime(2024, 1, 31, 10, 30), None])
    np.testing.assert_array_equal(parse("date", stamps), [second, np.nan])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("number", "12 years", r"line 4, column 'c': '12 years'; expected a number"),
        ("boolean", "maybe", r"line 4, column 'c': 'maybe'; expected true or false"),
        ("date", "2024-02-30", r"line 4, column 'c': '2024-02-30'; expected a date of the calendar"),
        ("date", "soon", r"line 4, column 'c': 'soon'; expected a date \(iso\)"),
        ("list", "1, 2", r"line 4, column 'c': '1, 2'; expected a list of numbers"),
        ("list", "[1, 2, 3]", r"line 4, column 'c': a list of 3 numbers; expected 2"),
        ("list", "[1, x]", r"line 4, column 'c': 'x'; expected a number"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_line(kind: Kind, value: str, message: str) -> None:
    good = {"number": "1", "boolean": "yes", "date": "2024-01-01", "list": "[1, 2]"}[kind]
    with pytest.raises(ValueError, match=message):
        parse(kind, [good, "", value, good], order="iso", length=2)


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"line 3, column 'c': inf; expected a finite number"):
        parse("number", [1.0, np.inf])


def test_places_of_a_category_are_the_same_in_all_batches() -> None:
    parser = Parser("c", "category", order=None)
    assert parser.parse(pa.array(["b", "", "a", " b "]), place).tolist() == [0, -1, 1, 0]
    assert parser.parse(pa.array(["c", "a"]), place).tolist() == [2, 1]
    assert list(parser.vocabulary) == ["b", "a", "c"]


def test_a_category_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MOST_VALUES", 3)
    with pytest.raises(
        ValueError, match=r"line 6, column 'c': 'e' is the 4th different value .* at most 3.*--schema"
    ):
        parse("category", ["a", "b", "c", "a", "e", "f"])


def test_the_hash_of_a_word_never_changes() -> None:
    assert [word_hash(word, 1000) for word in ("fraud", "Żuk")] == [469, 823]
