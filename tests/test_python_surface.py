"""The package as Python users see it: its names, PyG's graphs wherever a graph is, reports, short reprs."""

import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import siafu
from siafu.comm import single_rank_comm
from siafu.graph import Graph
from siafu.training.procedure import Callbacks

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric.data import Data, TemporalData

QUICK: dict[str, Any] = {"epochs": 2, "hidden": 4, "search": "off"}


@pytest.fixture
def data(graph: Graph) -> Data:
    return graph.to_pyg()


def test_dir_lists_the_public_names_alone() -> None:
    import siafu.run  # adds submodules to the package's dictionary

    assert sorted(dir(siafu)) == sorted([*siafu.__all__, "__version__"])
    assert {"import_graph", "report", "tune", "train"} <= set(dir(siafu))


def test_a_pyg_data_is_predicted_as_the_graph_that_it_is(graph: Graph, data: Data, tmp_path: Path) -> None:
    run = siafu.train(data, out=tmp_path / "run", **QUICK)
    expected = siafu.predict(run, graph)["output"]
    assert torch.equal(siafu.predict(run, data)["output"], expected)
    assert torch.equal(siafu.predict(tmp_path / "run", data)["output"], expected)


def test_a_pyg_temporal_data_is_predicted_and_refused_by_a_static_model(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", **QUICK)
    events = TemporalData(src=torch.tensor([0, 1]), dst=torch.tensor([1, 2]), t=torch.tensor([0, 1]))
    with pytest.raises(
        ValueError, match="changes over time, but the model was trained on a graph that does not"
    ):
        siafu.predict(run, events)


def test_a_pyg_data_is_tuned_on(data: Data, tmp_path: Path) -> None:
    space = {"train": {"lr": [0.01]}}
    how: dict[str, Any] = {"epochs": 2, "hidden": 4, "space": space, "callbacks": Callbacks()}
    found = siafu.tune(data, model="gcn", trials=1, out=tmp_path / "search", **how)
    assert found.best is not None
    assert siafu.report(found, out=tmp_path / "search.html").read_text().startswith("<!doctype html>")


def test_a_pyg_data_resumes_a_run(data: Data, tmp_path: Path) -> None:
    stop = iter([None, "SIGINT"])
    how = {"callbacks": Callbacks(should_stop=lambda: next(stop, None)), **QUICK, "epochs": 4}
    assert not siafu.train(data, out=tmp_path / "run", **how).metrics["finished"]
    assert siafu.resume(tmp_path / "run", graph=data).metrics["epochs"] == 4


def test_a_pyg_data_is_cut_into_parts_and_sampled(graph: Graph, data: Data) -> None:
    with closing(single_rank_comm()) as comm:
        part = siafu.part_of(data, comm)
        with pytest.raises(ValueError, match="the graph is a int; expected a siafu Graph"):
            siafu.part_of(7, comm)
    assert torch.equal(part.own.indices, graph.indices)
    assert len(siafu.NeighborLoader(data, [2], batch_size=100)) == 3


def test_tables_are_imported_from_the_top_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    siafu.import_graph(tmp_path / "my.store", edges=tmp_path / "edges.csv")
    assert siafu.load(tmp_path / "my.store").num_nodes == 3


def test_a_report_shows_runs_and_folders_of_runs(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "first", **QUICK)
    siafu.train(graph, out=tmp_path / "second", **QUICK)
    page = siafu.report(run, tmp_path / "second", out=tmp_path / "both.html")
    assert page == tmp_path / "both.html"
    assert "2 runs" in page.read_text()
    with pytest.raises(ValueError, match="run is a int; expected a run, a search, or the folder of one"):
        siafu.report(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a report needs at least one run"):
        siafu.report()


def test_the_repr_of_a_run_shows_its_folder_and_scores(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", **QUICK)
    test, val = (f"{100 * run.metrics[f'{split}_score']:.1f} %" for split in ("test", "val"))
    folder = str(tmp_path / "run")
    assert repr(run) == f"Run({folder!r}, gcn, full, test accuracy {test}, val accuracy {val})"
    assert repr(siafu.open(folder)) == repr(run)


def test_the_repr_of_a_stopped_run_says_so(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", callbacks=Callbacks(should_stop=lambda: "SIGINT"), **QUICK)
    assert repr(run).endswith("gcn, full, stopped by SIGINT after epoch 1)")
