"""A space of the user's own: a clear error for every mistake, with file and key."""

from pathlib import Path
from typing import Any

import pytest

from siafu.tuning.space import Choices, Entry, Range
from siafu.tuning.space_file import read_space

GOOD = """
train.lr = {low = 0.001, high = 0.1, log = true}

[model]
kind = ["gcn", "sage"]
hidden = {low = 16, high = 70, step = 16}
dropout = {low = 0.1, high = 0.5}
residual = [true, false]
"""


def test_a_space_is_read_from_tables_and_keys_with_dots(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(GOOD)
    assert set(read_space(tmp_path / "space.toml", fixed={})) == {
        Entry("train.lr", Range(0.001, 0.1, log=True)),
        Entry("model.kind", Choices(("gcn", "sage"))),
        Entry("model.hidden", Range(16, 64, step=16)),
        Entry("model.dropout", Range(0.1, 0.5)),
        Entry("model.residual", Choices((True, False))),
    }


def test_a_space_in_python_is_a_mapping() -> None:
    assert read_space({"model.hidden": [8, 16]}, fixed={}) == (Entry("model.hidden", Choices((8, 16))),)
    assert read_space({"model": {"hidden": [8]}}, fixed={}) == (Entry("model.hidden", Choices((8,))),)
    assert read_space({"seed": {"low": 0, "high": 3}}, fixed={}) == (Entry("seed", Range(0, 3)),)


BAD = [
    ("model.hiden = [64]", "model.hiden is not a setting; did you mean model.hidden?"),
    ("hidden = [64]", "hidden is not a setting"),
    ("model.hidden = []", "model.hidden is an empty list"),
    ("model.hidden = 64", "model.hidden is 64; expected a list of choices, or a table"),
    ("model.hidden = [64, 64]", "model.hidden has the choice 64 twice"),
    ("model.hidden = [[64]]", r"model.hidden has the choice \[64\]"),
    ("model.hidden = [0]", "model.hidden is 0; expected a number greater"),
    ('model.norm = ["layr"]', "model.norm is 'layr'; expected"),
    ("model.hidden = {low = 8.0, high = 64.5}", "model.hidden is 64.5; expected"),
    ("model.hidden = {low = 8.0, high = 64.0}", "model.hidden is 28.72; expected"),
    ("train.lr = {low = 0.1}", "train.lr has no high"),
    ("train.lr = {high = 0.1, log = true}", "train.lr has no low"),
    ("train.lr = {low = 0.1, high = 0.01}", "train.lr goes from low = 0.1 to high = 0.01"),
    ("train.lr = {low = 0, high = 0.1, log = true}", "train.lr has log = true and low = 0"),
    ("train.lr = {low = 0, high = 0.1}", "train.lr is 0; expected a number greater than 0"),
    ("train.lr = {low = 0.1, high = 1, log = true, step = 0.1}", "train.lr has both log and step"),
    (
        "train.lr = {low = 0.1, high = 1, step = 0}",
        "train.lr has step = 0; expected a number above 0, and at most 0.9",
    ),
    (
        "train.lr = {low = 0.1, high = 1, lag = true}",
        "train.lr has the field 'lag'; expected low, high, log, step",
    ),
    ("train.lr = {low = nan, high = 1}", "train.lr has low = nan; expected a finite number"),
    ("train.lr = {low = true, high = 1}", "train.lr has low = True; expected a finite number"),
    ("train.lr = {low = 0.1, high = 1, log = 1}", "train.lr has log = 1; expected true or false"),
    ("ranks = [1, 2]", "ranks cannot be searched, since scores would not compare; leave it out"),
    ("data.fold = [0, 1]", "data.fold cannot be searched"),
    (
        "train.epochs = [10, 20]",
        "train.epochs is to be searched, but you also set it to 5; leave one of the two out",
    ),
    ("", "names no setting; expected lines such as model.hidden"),
    ("model.hidden = ", "not a TOML file"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_space_is_refused_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "space.toml"
    file.write_text(text)
    fixed: dict[str, Any] = {"train": {"epochs": 5}}
    with pytest.raises(ValueError, match=f"^{file}: .*{message}"):
        read_space(file, fixed=fixed)
