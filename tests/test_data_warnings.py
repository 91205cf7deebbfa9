"""Warnings about graphs whose scores mean little: one class, one training node, nothing to test on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import command

import siafu
from siafu.config import build
from siafu.data_warnings import data_warnings, score_warnings
from siafu.dynamic import DynamicGraph, Protocol
from siafu.graph import Graph
from siafu.preview import preview_task
from siafu.store import write_store

pytestmark = pytest.mark.usefixtures("one_thread")


def small(y: list[int], train: list[int], test: list[int]) -> Graph:
    """Four nodes in a ring."""

    def mask(rows: list[int]) -> torch.Tensor:
        return torch.isin(torch.arange(4), torch.tensor(rows))

    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    rows = {"x": np.eye(4, dtype=np.float32), "y": np.array(y)}
    return Graph.from_edges(edges, **rows, train_mask=mask(train), test_mask=mask(test), name="ring")


ONE_NODE = "ring: trains on one node alone; give more training nodes"
ONE_CLASS = "ring: every training label is class 1, so no other class is learned; give labels of others"
NO_TEST = "ring: no node with a label to test on, so there is no test score"


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (small([0, 1, 0, 1], [0, 1], [2, 3]), ()),
        (small([0, 1, 0, 1], [0], [2, 3]), (ONE_NODE,)),
        (small([0, 1, 0, 1], [1, 3], [0]), (ONE_CLASS,)),
        (small([0, 1, 0, 1], [0, 1], []), (NO_TEST,)),
        (small([0, 1, -1, -1], [1, 3], [2]), (ONE_NODE, NO_TEST)),
    ],
)
def test_each_reason_is_one_warning(graph: Graph, expected: tuple[str, ...]) -> None:
    assert data_warnings(graph, preview_task(graph, build({}), None)) == expected


@pytest.mark.parametrize(
    ("y", "undefined"), [([0, 1, 0, 0], ["test"]), ([1, 0, 1, 0], []), ([1, 1, 0, 1], [])]
)
def test_an_area_that_a_split_leaves_undefined_is_warned_of(
    y: list[int], undefined: list[str], tmp_path: Path
) -> None:
    graph = small(y, [0, 1], [2, 3])
    many_labels = replace(graph, y=torch.tensor(y)[:, None].to(torch.uint8))
    for each in (graph, many_labels):
        config = build({"train": {"metric": "roc_auc"}})
        found = [text for text in data_warnings(each, preview_task(each, config, None)) if "roc_auc" in text]
        assert len(found) == len(undefined)
        assert all(f"the {nodes} nodes, so roc_auc is undefined" in found[0] for nodes in undefined)
        assert not [
            text for text in data_warnings(each, preview_task(each, build({}), None)) if "roc_auc" in text
        ]


def test_a_run_with_an_undefined_validation_score_selects_weights_by_the_loss(tmp_path: Path) -> None:
    graph = small([0, 1, 0, 1], [0, 1], [2, 3])
    run = siafu.train(
        replace(graph, val_mask=torch.tensor([True, False, False, False])),
        metric="roc_auc",
        epochs=3,
        out=tmp_path / "run",
    )
    assert (run.metrics["val_score"], run.metrics["best_epoch"] > 0) == (None, True)
    assert run.metrics["test_score"] is not None
    assert any("their loss selects the best weights" in text for text in run.metrics["warnings"])


def test_a_link_split_without_test_pairs_is_warned_of() -> None:
    graph = siafu.load("karate")
    config = build({"task": "link", "link": {"split": [0.9, 0.1, 0.0]}})
    assert isinstance(graph, Graph)
    assert data_warnings(graph, preview_task(graph, config, None)) == (
        "karate: no pair to test on, so there is no test score",
    )


@pytest.mark.parametrize(
    ("task", "more", "split", "expected"),
    [
        ("link", {}, (0.7, 0.1, 0.2), []),
        ("link", {}, (0.9, 0.1, 0.0), ["no step to test on"]),
        ("edge", {"edge_y": np.ones(60, int)}, (0.7, 0.1, 0.2), ["every training label is class 1"]),
        ("edge", {"edge_y": np.arange(60) % 2}, (0.7, 0.1, 0.2), []),
        ("node", {"y": np.zeros((20, 5), int)}, (0.7, 0.1, 0.2), ["every training label is class 0"]),
    ],
)
def test_dynamic_graphs_are_warned_of_too(
    task: str, more: dict[str, Any], split: tuple[float, float, float], expected: list[str]
) -> None:
    src, dst, t = np.arange(60) % 5, (np.arange(60) + 1) % 5, np.arange(60) // 3
    protocol = Protocol(window=1, split=split, task=task)
    graph = DynamicGraph.from_events(src, dst, t, num_nodes=5, protocol=protocol, **more)
    config = build(
        {"method": "snapshots", "task": task, "snapshots": {"window": 1}, "model": {"kind": "cd-gcn"}}
    )
    found = data_warnings(graph, preview_task(graph, config, None))
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))


@pytest.mark.parametrize("more", [(), ("--seeds", 2, "--baseline")])
def test_a_run_warns_once_and_records_the_warnings(
    tmp_path: Path, more: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    graph = small([0, 1, 0, 1], [0], [])
    write_store(replace(graph, val_mask=graph.test_mask), tmp_path / "store")
    asked = ("train", tmp_path / "store", "--epochs", 1, "--hidden", 2, "--out", tmp_path / "run", *more)
    code, out, err = command(*asked, "--json", capsys=capsys)
    assert code == 0, err
    expected = [ONE_NODE, NO_TEST]
    assert [line for line in err.splitlines() if "warning" in line] == [
        f"warning: {text}" for text in expected
    ]
    assert json.loads(out)["warnings"] == expected
    events = (tmp_path / "run" / ("seed-0" if more else ".") / "events.jsonl").read_text().splitlines()
    notes = [json.loads(line)["text"] for line in events if '"phase":"note"' in line]
    assert notes == expected


RESULT: dict[str, Any] = {
    **{"finished": True, "metric": "accuracy", "test_score": 0.98, "test_majority_score": 0.98},
    **{"majority_class": "fine", "majority_share": 0.979, "positive_class": "fraud", "threshold": 0.1},
}


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {},
            "2.1 % of the training labels are class fraud; the test accuracy of always answering fine is 98.0 %",
        ),
        ({}, "judge it by train.metric=average_precision, or give rare classes more weight"),
        (
            {"metric": "average_precision", "test_score": 0.02, "test_majority_score": 0.02},
            "the test average precision of a random order is 0.02, and the model's is 0.02: give rare classes",
        ),
        (
            {"positive_class": "fine"},
            "97.9 % of the training labels are class fine; the test accuracy of always answering fine",
        ),
    ],
)
def test_a_model_no_better_than_its_majority_class_is_warned_of(changes: dict[str, Any], wanted: str) -> None:
    said = list[str]()
    (text,) = score_warnings(RESULT | changes, said.append)
    assert wanted in text
    assert said == [f"warning: {text}"]


@pytest.mark.parametrize(
    "changes",
    [{"test_score": 0.981}, {"finished": False}, {"test_majority_score": None}, {"test_score": None}],
)
def test_a_better_or_unfinished_model_is_not_warned_of(changes: dict[str, Any]) -> None:
    assert score_warnings(RESULT | changes, pytest.fail) == ()
