"""Kinds of labels: classes, multi-label columns or numbers, inferred or given by the user."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from siafu.data.importing import import_events, import_graph

NODES = 60


def labels_in(folder: Path, column: list[str], name: str = "label", **how: Any) -> torch.Tensor:
    """The labels of a ring of nodes, from text."""
    count = len(column)
    (folder / "e.csv").write_text("".join(f"{i},{(i + 1) % count}\n" for i in range(count)))
    rows = "".join(f"{i},{value}\n" for i, value in enumerate(column))
    (folder / "y.csv").write_text(f"id,{name}\n" + rows)
    store = import_graph(folder / "store", edges=folder / "e.csv", labels=folder / "y.csv", **how)
    y = store.graph().y
    assert y is not None
    return y


def test_whole_numbers_of_implausibly_many_classes_are_refused(tmp_path: Path) -> None:
    numbers = [str(17 * i + 8) for i in range(20)]
    with pytest.raises(
        ValueError, match=r"line 21: label 331 makes 332 classes for 20 labelled.*--label-kind"
    ):
        labels_in(tmp_path, numbers)
    np.save(tmp_path / "y.npy", np.arange(20) * 17 + 8)
    with pytest.raises(ValueError, match=r"332 classes for 20 labelled nodes.*--label-kind"):
        import_graph(tmp_path / "store", edges=tmp_path / "e.csv", labels=tmp_path / "y.npy")


def test_the_same_numbers_are_what_the_user_says(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    numbers = [str(17 * i + 8) for i in range(20)]
    y = labels_in(tmp_path / "a", numbers, label_kind="number")
    assert y.dtype == torch.float32
    assert y.tolist() == [17.0 * i + 8 for i in range(20)]
    y = labels_in(tmp_path, numbers, label_kind="class")
    assert y.dtype == torch.int64
    assert int(y.max()) == 331


@pytest.mark.parametrize("per_class", [4, 5])
def test_many_classes_of_enough_nodes_and_few_classes_of_one_are_classes(
    tmp_path: Path, per_class: int
) -> None:
    (tmp_path / "a").mkdir()
    many = labels_in(tmp_path / "a", [str(i % 60) for i in range(60 * per_class)])
    assert int(many.max()) == 59
    assert labels_in(tmp_path, [str(i) for i in range(50)]).dtype == torch.int64


def test_classes_with_blanks_that_pandas_wrote_as_floats_are_classes(tmp_path: Path) -> None:
    y = labels_in(tmp_path, ["2.0", "", "0.0", "1.0"])
    assert y.tolist() == [2, -1, 0, 1]
    assert y.dtype == torch.int64


@pytest.mark.parametrize("column", [["2.5", "", "0.0"], ["-7.0", "2.0", "3.0"]])
def test_floats_that_can_be_no_classes_are_numbers(tmp_path: Path, column: list[str]) -> None:
    assert labels_in(tmp_path, column).dtype == torch.float32


def test_an_empty_number_is_none(tmp_path: Path) -> None:
    y = labels_in(tmp_path, ["3", "", "5"], label_kind="number")
    assert y[1].isnan()
    assert y[[0, 2]].tolist() == [3, 5]


def test_one_column_may_be_many_labels(tmp_path: Path) -> None:
    y = labels_in(tmp_path, ["1", "0", "1"], label_kind="multilabel")
    assert y.dtype == torch.uint8
    assert y.tolist() == [[1], [0], [1]]


@pytest.mark.parametrize(
    ("column", "kind", "match"),
    [
        (["1", "0", "2"], "multilabel", "line 4: label 2; expected 0 or 1"),
        (["1.5", "0", "2"], "class", r"line 2: label 1.5; expected a class from 0.*--label-kind"),
        (["-5", "0", "2"], None, r"line 2: label -5; expected a class from 0.*--label-kind"),
        (["a", "b", "c"], "number", "holds string"),
        (["1", "0", "2"], "words", "label_kind is 'words'; expected one of"),
    ],
)
def test_labels_that_are_not_what_the_user_says_are_refused(
    tmp_path: Path, column: list[str], kind: Any, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        labels_in(tmp_path, column, label_kind=kind)


def test_numbers_by_step_may_be_whole(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst,t\n0,1,0\n1,2,1\n")
    np.save(tmp_path / "y.npy", np.array([[100, 2, 7], [90, 1, 8]]))
    how: dict[str, Any] = {"events": tmp_path / "e.csv", "labels": tmp_path / "y.npy"}
    with pytest.raises(ValueError, match="101 classes for 6 labelled nodes"):
        import_events(tmp_path / "store", **how)
    store = import_events(tmp_path / "store", **how, label_kind="number")
    assert store.graph().y.tolist() == [[100, 2, 7], [90, 1, 8]]  # type: ignore[union-attr]
    assert store.manifest.provenance.columns["labels"]["kind"] == "numbers"
