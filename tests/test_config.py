"""Config: layers, keywords, assignments, TOML there and back, and what is said of mistakes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu import config
from siafu.config import Config, build, from_assignments, from_keywords, parse_toml, read_toml, write_toml


def test_nothing_given_is_the_defaults() -> None:
    assert build() == Config()
    assert (Config().model.kind, Config().model.layers, Config().method) == ("gcn", 2, "full")


def test_each_later_layer_overrides_key_by_key() -> None:
    made = build({"model": {"hidden": 8, "layers": 3}, "seed": 1}, {"model": {"hidden": 16}}, {"seed": 2})
    assert (made.model.hidden, made.model.layers, made.seed) == (16, 3, 2)


def test_layers_are_left_as_they_were() -> None:
    first: dict[str, Any] = {"model": {"hidden": 8}}
    config.merge(first, {"model": {"hidden": 16}})
    assert first == {"model": {"hidden": 8}}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"model": {"hiden": 8}}, "model.hiden is not a setting; did you mean model.hidden?"),
        ({"train": {"epoch": 8}}, "train.epoch is not a setting; did you mean train.epochs?"),
        ({"modle": {"hidden": 8}}, "modle is not a setting; did you mean model?"),
        ({"Seed": 8}, "Seed is not a setting; did you mean seed?"),
        ({"sed": 8}, "sed is not a setting; did you mean seed or seeds?"),
        ({"model": {"epochs": 8}}, "model.epochs is not a setting; did you mean train.epochs?"),
        ({"train": {"seed": 8}}, "train.seed is not a setting; did you mean seed or seeds?"),
        ({"lazy": {"bit": 8}}, "lazy.bit is not a setting; did you mean lazy.bits?"),
        ({"model": {"width_of_all": 8}}, "model.width_of_all is not a setting; did you mean model.residual?"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="not a setting") as caught:
        build(tree)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"model": {"hidden": "wide"}}, "model.hidden is 'wide'; expected a valid integer"),
        ({"model": {"hidden": 1.5}}, "model.hidden is 1.5; expected a valid integer"),
        ({"model": {"hidden": 0}}, "model.hidden is 0; expected a number greater than or equal to 1"),
        ({"model": {"dropout": 1}}, "model.dropout is 1; expected a number less than 1"),
        ({"model": {"kind": "gnc"}}, "model.kind is 'gnc'; expected 'gcn', 'sage', 'gat'"),
        ({"model": "gcn"}, "model is 'gcn'; expected a table; its settings are model.kind, model.layers"),
        ({"train": {"lr": float("nan")}}, "train.lr is nan; expected a"),
        ({"seed": -1}, "seed is -1; expected a number greater than or equal to 0"),
        ({"baseline": "perhaps"}, "baseline is 'perhaps'; expected a valid boolean"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_what_is_expected(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        build(tree)
    assert str(caught.value).startswith(message)


def test_every_mistake_is_told() -> None:
    with pytest.raises(
        ValueError, match=r"model\.hidden is 0.*\n.*seed is -1|seed is -1.*\n.*model\.hidden is 0"
    ):
        build({"model": {"hidden": 0}, "seed": -1})


def test_assignments_are_toml_values_or_else_texts() -> None:
    found = from_assignments(
        [
            "model.hidden=128",
            "model.kind=gat",
            "train.lr = 1e-3",
            "baseline=true",
            "train.patience=None",
            "source=a=b",
        ]
    )
    assert found == {
        "model": {"hidden": 128, "kind": "gat"},
        "train": {"lr": 0.001, "patience": None},
        "baseline": True,
        "source": "a=b",
    }
    assert build(found).train.patience == 0


@pytest.mark.parametrize("text", ["model.hidden", "=3", " =3"])
def test_an_assignment_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected table\.key=value, such as model\.hidden=128"):
        from_assignments([text])


def test_keywords_find_their_table() -> None:
    assert from_keywords({"epochs": 3, "hidden": 8, "seed": 1, "fold": 2, "train": {"lr": 0.1}}) == {
        "train": {"epochs": 3, "lr": 0.1},
        "model": {"hidden": 8},
        "seed": 1,
        "data": {"fold": 2},
    }


def test_an_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"hiden is not a setting; did you mean hidden\?"):
        from_keywords({"hiden": 3})


def test_a_keyword_of_two_tables_is_ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_table_keys", lambda: {"model": ["size"], "train": ["size"]})
    with pytest.raises(
        ValueError, match=r"size is ambiguous: it is a setting of model, train; give config=\{'model'"
    ):
        from_keywords({"size": 3})


def test_no_setting_is_ambiguous_today() -> None:
    for fields in config._table_keys().values():
        for key in fields:
            from_keywords({key: None})


def test_a_file_is_read_by_tables(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('seed = 3\n[model]\nkind = "sage"\n')
    assert read_toml(tmp_path / "run.toml") == {"seed": 3, "model": {"kind": "sage"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed 3", "run.toml: not a TOML file: "),
        (b"\xff\xfe", "run.toml: not a TOML file: "),
        (b"[model]\nhiden = 3", r"run.toml: model.hiden is not a setting; did you mean model.hidden\?"),
        (b"[model]\nhidden = 'x'", "run.toml: model.hidden is 'x'; expected a valid integer"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_the_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_toml(tmp_path / "run.toml")


@given(
    source=st.text(),
    names=st.lists(st.text(), max_size=3),
    hidden=st.integers(1, 2**40),
    lr=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    dropout=st.none() | st.floats(0, 1, exclude_max=True),
    baseline=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_settings_written_as_toml_come_back_equal(
    source: str, names: list[str], hidden: int, lr: float, dropout: float | None, baseline: bool, seed: int
) -> None:
    made = build(
        {"source": source, "class_names": names, "baseline": baseline, "seed": seed},
        {"model": {"hidden": hidden, "input_dropout": dropout}, "train": {"lr": lr}},
    )
    assert parse_toml(write_toml(made)) == made
