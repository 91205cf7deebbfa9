"""Standardised columns: by the training nodes of all ranks, kept with the run, and refused where they cannot be."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import siafu
from siafu.comm import single_rank_comm
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.training.scaling import FILE, Scaling, load_scaling, measure_scaling, save_scaling


def rows(count: int = 200) -> Graph:
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 10, 0.1, 5, 0])
    x += torch.tensor([0.0, 170, 3, -2, 7])
    train = torch.arange(count) % 2 == 0
    return Graph.from_edges([[0], [1]], x=x, train_mask=train, num_nodes=count)


def test_columns_of_training_nodes_get_mean_zero_and_deviation_one() -> None:
    graph = rows()
    scaled = measure_scaling(graph, single_rank_comm()).apply(graph.x)[graph.train_mask]
    assert scaled.mean(0) == pytest.approx([0, 0, 0, 0, 0], abs=1e-4)
    assert scaled.std(0, correction=0) == pytest.approx([1, 1, 1, 1, 0], abs=1e-4)


def test_values_far_from_the_rest_are_clipped() -> None:
    scaling = Scaling(torch.zeros(1), torch.ones(1))
    assert scaling.apply(torch.tensor([[1e9], [-1e9], [2.0]])).tolist() == [[10.0], [-10.0], [2.0]]


def test_ranks_measure_what_one_rank_does() -> None:
    graph = rows()
    whole = measure_scaling(graph, single_rank_comm())
    assert graph.x is not None
    assert graph.train_mask is not None
    parts = [replace(rows(100), x=graph.x[half::2], train_mask=graph.train_mask[half::2]) for half in (0, 1)]
    for found in run_threads(lambda comm: measure_scaling(parts[comm.rank], comm), ranks=2, threads=1):
        assert torch.allclose(found.mean, whole.mean)
        assert torch.allclose(found.deviation, whole.deviation)


def test_a_scaling_is_read_as_it_was_written(tmp_path: Path) -> None:
    scaling = measure_scaling(rows(), single_rank_comm())
    save_scaling(scaling, tmp_path)
    assert all(map(torch.equal, load_scaling(tmp_path), scaling))


def test_another_graph_is_predicted_by_the_columns_of_the_training_graph(
    graph: Graph, tmp_path: Path
) -> None:
    assert graph.x is not None
    run = siafu.train(graph, out=tmp_path / "run", epochs=2, normalize="standard")
    assert (tmp_path / "run" / FILE).is_file()
    whole = siafu.predict(run, graph)["output"]
    shifted = replace(
        graph, train_mask=torch.arange(graph.num_nodes) < 3
    )  # other training nodes change nothing
    assert torch.equal(siafu.predict(siafu.open(tmp_path / "run"), shifted)["output"], whole)


def test_raw_scales_do_not_spoil_a_run(graph: Graph, tmp_path: Path) -> None:
    assert graph.x is not None
    raw = replace(graph, x=graph.x * torch.logspace(-3, 4, graph.x.shape[1]) + 1000)
    plain = siafu.train(raw, out=tmp_path / "plain", epochs=60, normalize="none").metrics["val_accuracy"]
    assert siafu.train(raw, out=tmp_path / "run", epochs=60).metrics["val_accuracy"] > plain + 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"inputs": "stream"}, "set data.normalize to none"), ({"layout": "sparse"}, "set data.layout to auto")],
)
def test_standardised_columns_lie_in_memory_and_are_dense(
    graph: Graph, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        siafu.train(graph, out=tmp_path / "run", epochs=2, normalize="standard", **settings)
