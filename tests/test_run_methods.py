"""Methods of a run: its history, predictions, embeddings, confusion matrix and report."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import siafu
from siafu.graph import Graph
from siafu.inference import Run
from siafu.training.procedure import Callbacks

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    import torch_geometric.data  # noqa: F401

QUICK: dict[str, Any] = {"epochs": 3, "hidden": 4, "search": "off", "evaluate_every": 2}


@pytest.fixture
def run(graph: Graph, tmp_path: Path) -> Run:
    return siafu.train(graph, out=tmp_path / "run", **QUICK)


def test_the_history_has_a_column_for_each_value_of_the_epochs(run: Run) -> None:
    history = run.history
    assert history["epoch"].tolist() == [1, 2, 3]
    assert np.isfinite(history["loss"]).all()
    assert np.isnan(history["val_score"]).tolist() == [True, False, False]
    assert "dollars" not in history
    assert set(map(len, history.values())) == {3}


def test_the_history_of_a_stopped_run_has_its_epochs(graph: Graph, tmp_path: Path) -> None:
    stopped = siafu.train(
        graph, out=tmp_path / "run", callbacks=Callbacks(should_stop=lambda: "SIGINT"), **QUICK
    )
    assert stopped.history["epoch"].tolist() == [1]


def test_a_run_predicts_the_graph_that_it_was_given(run: Run, graph: Graph) -> None:
    expected = siafu.predict(run, graph, embeddings=True)
    assert torch.equal(run.predict()["output"], expected["output"])
    assert torch.equal(run.embeddings(), expected["embedding"])
    assert torch.equal(siafu.predict(run)["class"], expected["class"])
    half = graph.subgraph(range(120))
    assert torch.equal(run.predict(half)["output"], siafu.predict(run, half)["output"])
    assert torch.equal(run.embeddings(half), siafu.predict(run, half, embeddings=True)["embedding"])


def test_a_run_predicts_a_pyg_data_that_it_was_given(graph: Graph, tmp_path: Path) -> None:
    trained = siafu.train(graph.to_pyg(), out=tmp_path / "run", **QUICK)
    assert torch.equal(trained.predict()["output"], siafu.predict(trained, graph)["output"])


def test_a_run_writes_its_predictions(run: Run, tmp_path: Path) -> None:
    run.predict(out=tmp_path / "predictions.csv")
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 241


def test_a_run_on_a_named_graph_loads_it(tmp_path: Path) -> None:
    trained = siafu.train("karate", out=tmp_path / "run", **QUICK)
    assert trained.graph is None
    assert torch.equal(trained.predict()["output"], siafu.predict(trained, "karate")["output"])


def test_an_opened_run_knows_no_graph_and_says_so(run: Run) -> None:
    opened = siafu.open(run.directory)
    assert repr(opened) == repr(run)
    with pytest.raises(ValueError, match="trained on a graph given in Python; name the data to predict"):
        opened.predict()
    resumed = siafu.resume(run.directory, graph=run.graph)
    assert torch.equal(resumed.predict()["output"], run.predict()["output"])


def test_the_best_run_of_a_search_predicts_the_graph_of_the_search(graph: Graph, tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "epochs": 2,
        "hidden": 4,
        "space": {"train": {"lr": [0.01]}},
        "callbacks": Callbacks(),
    }
    best = siafu.tune(graph, model="gcn", trials=1, out=tmp_path / "search", **how).best
    assert best is not None
    assert best.predict()["class"].shape == (240,)


def test_the_confusion_matrix_counts_the_test_nodes(run: Run, graph: Graph) -> None:
    found = run.confusion()
    test = graph.test_mask
    assert test is not None
    assert graph.y is not None
    expected = torch.zeros(3, 3, dtype=torch.int64)
    expected.index_put_((graph.y[test], run.predict()["class"][test]), torch.tensor(1), accumulate=True)
    assert found.confusion.tolist() == expected.tolist()
    assert str(found).splitlines()[0] == "true class as row, predicted class as column"
    assert str(found).splitlines()[1].split() == ["0", "1", "2"]
    assert str(found).splitlines()[2].split() == ["0", *map(str, expected[0].tolist())]


def test_a_run_without_classes_has_no_confusion_matrix(graph: Graph, tmp_path: Path) -> None:
    numbers = Graph.from_edges(graph.edge_index, x=graph.x, y=torch.rand(240), train_mask=graph.train_mask)
    trained = siafu.train(numbers, out=tmp_path / "run", **QUICK)
    with pytest.raises(
        ValueError, match="has no confusion matrix; expected a finished run of one class a node"
    ):
        trained.confusion()


def test_a_run_writes_its_report(run: Run, tmp_path: Path) -> None:
    assert run.report(tmp_path / "page.html") == tmp_path / "page.html"
    assert "confusion" in (tmp_path / "page.html").read_text().lower()


def test_a_run_of_several_seeds_names_a_run_to_open(graph: Graph, tmp_path: Path) -> None:
    several = siafu.train(graph, out=tmp_path / "run", seeds=2, **QUICK)
    for read in (lambda: several.history, several.confusion):
        with pytest.raises(
            ValueError, match=r"holds 2 runs, each with a .* of its own; open one: siafu.open\('.*seed-0'\)"
        ):
            read()
    assert siafu.open(tmp_path / "run" / "seed-0").history["epoch"].tolist() == [1, 2, 3]
    assert several.report(tmp_path / "page.html").is_file()


def test_a_run_on_columns_predicts_the_graph_that_it_was_given(tmp_path: Path) -> None:
    names = [f"n{place}" for place in range(40)]
    nodes = pa.table({"id": names, "kind": ["a", "b"] * 20, "label": ["x", "y"] * 20})
    graph = Graph.from_tables(nodes=nodes, edges=pa.table({"src": names[1:], "dst": names[:-1]}))
    trained = siafu.train(graph, out=tmp_path / "run", **QUICK)
    assert torch.equal(trained.predict()["output"], siafu.predict(trained, graph)["output"])
