"""Encoders are fitted to training nodes; features of known values are what they should be."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siafu.columns import Column, ColumnType, Kind, Scale
from siafu.data.columns import Encoder, encode_columns, fit_encoder
from siafu.data.columns import encode as encode_module
from siafu.native import SparseRows


def column(
    kind: Kind,
    values: object,
    *,
    vocabulary: list[str] | None = None,
    name: str = "c",
    width: int = 64,
    scale: Scale = "auto",
) -> Column:
    """A column of values; texts and categories are given as lists."""
    words = None if vocabulary is None else pa.array(vocabulary, pa.large_string())
    array = pa.array(values, pa.large_string()) if kind == "text" else np.array(values)
    return Column(ColumnType(name, kind, width, scale), array, words)


def encoded(of: Column, *, train: list[int] | None = None) -> tuple[np.ndarray, list[str]]:
    """The features of a column, and their names."""
    encoder = fit_encoder((of,), None if train is None else np.array(train))
    x = encode_columns((of,), encoder, "graph")
    dense = x.to_dense() if isinstance(x, SparseRows) else x
    assert dense.dtype == torch.float32
    return dense.numpy(), encoder.features


def test_numbers_are_standardised_by_training_nodes_and_blanks_have_a_feature() -> None:
    x, names = encoded(column("number", [1.0, 3.0, np.nan, 7.0]), train=[0, 1, 2])
    assert names == ["c", "c is blank"]
    np.testing.assert_allclose(x, [[-1, 0], [1, 0], [0, 1], [5, 0]])


def test_without_blanks_in_training_nodes_a_blank_is_the_mean() -> None:
    x, names = encoded(column("number", [1.0, 3.0, np.nan]), train=[0, 1])
    assert names == ["c"]
    np.testing.assert_allclose(x[2], [0])


def test_skewed_numbers_are_scaled_by_quantiles() -> None:
    values = np.exp(np.random.Generator(np.random.PCG64(0)).normal(size=2000) * 2)
    x, _ = encoded(column("number", values))
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert (np.diff(x[np.argsort(values), 0]) >= 0).all()
    standard, _ = encoded(column("number", values, scale="standard"))
    assert standard.max() == 10  # cut there


def test_a_number_that_never_changes_is_zero() -> None:
    x, _ = encoded(column("number", [5.0, 5.0, 6.0]), train=[0, 1])
    np.testing.assert_allclose(x[:2, 0], 0)


def test_booleans_are_minus_one_and_one() -> None:
    x, names = encoded(column("boolean", np.array([0, 1, -1], dtype=np.int8)))
    assert names == ["c", "c is blank"]
    np.testing.assert_array_equal(x, [[-1, 0], [1, 0], [0, 1]])


def test_categories_are_one_hot_and_values_without_training_nodes_unknown() -> None:
    codes = np.array([0, 1, 0, 2, -1], dtype=np.int32)
    x, names = encoded(column("category", codes, vocabulary=["GB", "DE", "FR"]), train=[0, 1, 2])
    assert names == ["c = GB", "c = DE", "c is unknown"]
    np.testing.assert_array_equal(x, [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0]])


def test_rare_values_are_unknown() -> None:
    codes = np.array([0] * 500 + [1] * 499 + [2], dtype=np.int32)
    _, names = encoded(column("category", codes, vocabulary=["GB", "DE", "FR"]))
    assert names == ["c = GB", "c = DE", "c is unknown"]


def test_values_beyond_the_width_are_hashed() -> None:
    codes = np.arange(40, dtype=np.int32).repeat(2)
    x, names = encoded(column("category", codes, vocabulary=[f"d{i}" for i in range(40)], width=8))
    assert names == [
        *(f"c = d{i}" for i in (0, 1, 10, 11, 12, 13, 14, 15)),
        *(f"c hashed to {i}" for i in range(2)),
    ]
    np.testing.assert_array_equal(x.sum(1), 1)
    assert x[:, 8:].sum(0).min() > 10


def test_a_vocabulary_in_another_order_gives_the_same_features() -> None:
    first = column("category", np.array([0, 1, 1, 2]), vocabulary=["GB", "DE", "FR"])
    other = column("category", np.array([2, 0, 0, 1]), vocabulary=["DE", "FR", "GB", "unused"])
    encoder = fit_encoder((first,))
    assert torch.equal(*(encode_columns((each,), encoder, "g") for each in (first, other)))  # type: ignore[arg-type]


def test_dates_have_an_age_and_cycles() -> None:
    day = 86400.0
    values = np.array([0.0, 7 * day, 14 * day, np.nan])
    x, names = encoded(column("date", values))
    parts = ["age", "sine of the year", "cosine of the year", "sine of the week", "cosine of the week"]
    assert names == [*(f"c {part}" for part in parts), "c is blank"]
    np.testing.assert_allclose(x[:3, 0], [1.5**0.5, 0, -(1.5**0.5)], atol=1e-6)
    np.testing.assert_allclose(x[0, 3:5], x[1, 3:5])  # the same day of the week
    np.testing.assert_array_equal(x[3], [0, 0, 0, 0, 0, 1])
    _, with_hours = encoded(column("date", values + 3600))
    assert with_hours[5:7] == ["c sine of the day", "c cosine of the day"]


def test_lists_are_scaled_number_by_number() -> None:
    rows = np.array([[0, 10], [2, 30], [np.nan, np.nan]], dtype=np.float32)
    x, names = encoded(column("list", rows))
    assert names == ["c[0]", "c[1]", "c is blank"]
    np.testing.assert_allclose(x, [[-1, -1, 0], [1, 1, 0], [0, 0, 1]])


def test_texts_are_hashed_words_of_length_one() -> None:
    x, names = encoded(column("text", ["Late payment, late", "PAYMENT", ""], width=32))
    assert len(names) == 33
    assert names[-1] == "c is blank"
    np.testing.assert_allclose(np.linalg.norm(x[:2, :-1], axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(np.sort(x[0][x[0] > 0]), [5**-0.5, 2 * 5**-0.5], rtol=1e-6)
    np.testing.assert_array_equal(x[2, :-1], 0)
    assert x[2, -1] == 1


def test_encoders_survive_json_exactly() -> None:
    draws = np.random.Generator(np.random.PCG64(1))
    columns = (
        column("number", np.exp(3 * draws.normal(size=300)), name="a"),
        column("date", draws.normal(size=300) * 1e9, name="b"),
        column("category", draws.integers(-1, 3, 300).astype(np.int32), vocabulary=["x", "y", "z"], name="d"),
        column("text", [f"word {i}" for i in range(300)], name="e", width=8),
        column("list", draws.normal(size=(300, 2)).astype(np.float32), name="f"),
        column("boolean", draws.integers(-1, 2, 300).astype(np.int8), name="g"),
    )
    encoder = fit_encoder(columns, np.arange(200))
    again = Encoder.parse(json.loads(json.dumps(encoder.model_dump(mode="json"))), "file")
    assert again == encoder
    x = encode_columns(columns, encoder, "g")
    assert torch.equal(x, encode_columns(columns[::-1], again, "g"))  # type: ignore[arg-type]


def test_rows_are_encoded_in_chunks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.arange(50, dtype=np.int32)
    columns = (column("category", codes, vocabulary=[f"v{i}" for i in range(50)]),)
    encoder = fit_encoder(columns)
    whole = encode_columns(columns, encoder, "g")
    assert isinstance(whole, SparseRows)  # one of 51 is not zero
    monkeypatch.setattr(encode_module, "_CHUNK_VALUES", 7 * 51)
    parts = encode_columns(columns, encoder, "g")
    assert isinstance(parts, SparseRows)
    assert torch.equal(whole.to_dense(), parts.to_dense())
    assert torch.equal(whole.to_dense()[:, :50].argmax(1).sort().values, torch.arange(50))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("b", "number")], "lacks the column 'a' and has the column 'b', which the model does not know"),
        ([], "lacks the column 'a'; the model was trained on a"),
        ([("a", "number"), ("b", "number")], "has the column 'b', which the model does not know"),
        ([("a", "date")], "column 'a' is a date here, but a number in the training data.*--schema"),
    ],
)
def test_other_columns_than_in_training_are_named(columns: list[tuple[str, Kind]], message: str) -> None:
    encoder = fit_encoder((column("number", [1.0, 2.0], name="a"),))
    given = tuple(column(kind, [1.0, 2.0], name=name) for name, kind in columns)
    with pytest.raises(ValueError, match=f"shop: {message}"):
        encode_columns(given, encoder, "shop")


def test_lists_of_another_length_are_refused() -> None:
    encoder = fit_encoder((column("list", np.ones((2, 3), np.float32)),))
    with pytest.raises(ValueError, match="lists of 2 numbers; the model was trained on lists of 3"):
        encode_columns((column("list", np.ones((2, 2), np.float32)),), encoder, "g")


def test_a_damaged_encoder_is_refused_with_its_file_and_field() -> None:
    with pytest.raises(ValueError, match=r"run/encoder.json: columns.0.*put the right file back"):
        Encoder.parse({"columns": [{"kind": "number", "name": "a", "blanks": False}]}, "run/encoder.json")


@given(st.lists(st.floats(-1e9, 1e9) | st.just(float("nan")), min_size=1, max_size=40))
def test_features_of_any_numbers_are_finite(values: list[float]) -> None:
    x, _ = encoded(column("number", np.array(values)))
    assert np.isfinite(x).all()
    assert np.abs(x).max() <= 10
