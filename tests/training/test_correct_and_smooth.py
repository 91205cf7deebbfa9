"""Correct-and-smooth against the same thing in dense torch, on one rank and several."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranked import graph_of, parts_of
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.halo import Halo
from siafu.context import NO_EXCHANGE, HaloExchange
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.partition.cut import Part
from siafu.training.config import TrainConfig
from siafu.training.correct_and_smooth.adjacency import SymmetricAdjacency
from siafu.training.correct_and_smooth.config import CorrectAndSmoothConfig
from siafu.training.correct_and_smooth.propagation import CorrectAndSmooth
from siafu.training.spill import spill_to, tables_in
from siafu.training.task import task_of

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "fixed-scale": {"scale": 2.5, "correct_alpha": 1.0},
    "no-correction": {"correct_steps": 0, "smooth_alpha": 0.5},
    "no-smoothing": {"smooth_steps": 0},
}


def in_both_directions(graph: Graph) -> Graph:
    """The same nodes, with the reverse of each edge beside it."""
    dst = torch.arange(graph.num_nodes).repeat_interleave(graph.indptr.diff())
    edges = torch.stack([graph.indices.long(), dst])
    weight = graph.edge_weight
    both = Graph.from_edges(
        torch.cat([edges, edges.flip(0)], 1),
        edge_weight=None if weight is None else torch.cat([weight, weight]),
        num_nodes=graph.num_nodes,
    )
    return replace(
        graph, indptr=both.indptr, indices=both.indices, edge_weight=both.edge_weight, checked=both.checked
    )


def dense_adjacency(graph: Graph) -> Tensor:
    """``D^-1/2 (A + A^T) D^-1/2``, (N, N) float64."""
    a = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    dst = torch.arange(graph.num_nodes).repeat_interleave(graph.indptr.diff())
    weight = torch.ones(dst.numel()) if graph.edge_weight is None else graph.edge_weight
    a.index_put_((dst, graph.indices.long()), weight.double(), accumulate=True)
    a = a + a.T
    degree = a.sum(1)
    scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
    return scale[:, None] * a * scale


def dense_result(graph: Graph, out: Tensor, config: CorrectAndSmoothConfig, *, validation: bool) -> Tensor:
    """The probabilities after both steps, as the publication defines them, (N, C) float64."""
    s, task = dense_adjacency(graph), task_of(graph, TrainConfig())
    is_class = task.kind == "class"
    z = (out.softmax(1) if is_class else out.sigmoid()).double()
    y = torch.zeros_like(z)
    known = torch.cat([task.rows["train"], task.rows["val"]])
    y[known] = torch.eye(z.shape[1]).double()[task.y[known]] if is_class else task.y[known].double()
    train, a = task.rows["train"], config.correct_alpha
    first = torch.zeros_like(z)
    first[train] = y[train] - z[train]
    error = first
    for _ in range(config.correct_steps):
        error = a * s @ error + (1 - a) * first
        if config.scale == "auto":
            error = error.clamp(-1, 1)
        else:
            error[train] = first[train]
    if config.scale == "auto":
        size = first.abs().sum() / train.numel()
        scale = size / error.abs().sum(1, keepdim=True)
        scale[scale > 1000] = 1
    else:
        scale = torch.tensor(config.scale)
    z = z + scale * error
    labelled = known if validation else train
    z[labelled] = y[labelled]
    start, a = z, config.smooth_alpha
    for _ in range(config.smooth_steps):
        z = (a * s @ z + (1 - a) * start).clamp(0, 1)
    return z


def result_of(
    graph: Graph,
    out: Tensor,
    config: CorrectAndSmoothConfig,
    *,
    ranks: int,
    splits: tuple[str, ...],
    folder: Path | None = None,
) -> Tensor:
    """The outputs after both steps, in the order of the user."""
    parts = parts_of(graph, ranks)
    found = torch.empty_like(out)

    def run(comm: Comm) -> None:
        part: Part = parts[comm.rank]
        exchange: HaloExchange = NO_EXCHANGE
        if ranks > 1:
            exchange = Halo(comm, part.route, num_own=part.own.num_nodes)
        ids = torch.arange(graph.num_nodes) if part.own.node_id is None else part.own.node_id
        steps = CorrectAndSmooth(
            SymmetricAdjacency(part.context(exchange)),
            task_of(part.own, TrainConfig(), comm),
            config,
            torch.empty if folder is None else spill_to(folder),
        )
        found[ids] = steps.smooth(steps.correct(out[ids]), splits)

    run_threads(run, ranks=ranks, threads=1, deadline_s=30)
    return found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("labels", ["class", "labels"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
def test_both_steps_are_those_of_dense_torch_on_any_number_of_ranks(
    case: str, labels: str, weighted: bool, directed: bool
) -> None:
    graph = graph_of(weighted=weighted, labels=labels)
    graph = graph if directed else in_both_directions(graph)
    config = CorrectAndSmoothConfig.model_validate(CASES[case])
    width = task_of(graph, TrainConfig()).num_outputs
    out = torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(3))
    wanted = dense_result(graph, out, config, validation=False)
    for ranks in (1, 3):
        found = result_of(graph, out, config, ranks=ranks, splits=("train",))
        probability, limits = (
            (found.exp(), (1e-9, None)) if labels == "class" else (found.sigmoid(), (1e-6, 1 - 1e-6))
        )
        torch.testing.assert_close(probability.double(), wanted.clamp(*limits), rtol=2e-4, atol=2e-6)


def test_validation_labels_are_read_where_they_are_asked_for() -> None:
    graph, config = graph_of(), CorrectAndSmoothConfig()
    out = torch.randn(graph.num_nodes, 4, generator=torch.Generator().manual_seed(3))
    found = result_of(graph, out, config, ranks=1, splits=("train", "val"))
    wanted = dense_result(graph, out, config, validation=True)
    torch.testing.assert_close(found.exp().double(), wanted.clamp(min=1e-9), rtol=2e-4, atol=2e-6)
    assert not torch.equal(found, result_of(graph, out, config, ranks=1, splits=("train",)))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_a_graph_with_every_edge_in_both_directions_is_symmetric(ranks: int, weighted: bool) -> None:
    both, one = in_both_directions(graph_of(weighted=weighted)), graph_of(weighted=weighted)

    def is_symmetric(comm: Comm, parts: list[Part]) -> bool:
        part = parts[comm.rank]
        exchange = Halo(comm, part.route, num_own=part.own.num_nodes) if ranks > 1 else NO_EXCHANGE
        return SymmetricAdjacency(part.context(exchange)).symmetric

    for graph, wanted in ((both, True), (one, False)):
        parts = parts_of(graph, ranks)
        found = run_threads(
            lambda comm, p=parts: is_symmetric(comm, p), ranks=ranks, threads=1, deadline_s=30
        )
        assert found == [wanted] * ranks


def test_tables_lie_on_disk_where_they_do_not_fit_into_memory(tmp_path: Path) -> None:
    graph, config = graph_of(), CorrectAndSmoothConfig(correct_steps=3, smooth_steps=3)
    out = torch.randn(graph.num_nodes, 4, generator=torch.Generator().manual_seed(3))
    here = result_of(graph, out, config, ranks=1, splits=("train",))
    assert torch.equal(here, result_of(graph, out, config, ranks=1, splits=("train",), folder=tmp_path))
    assert tables_in(tmp_path, count=4, rows=10, width=3) is torch.empty
    assert tables_in(tmp_path, count=4, rows=1 << 40, width=64) is not torch.empty


def test_a_model_without_errors_keeps_its_probabilities_before_they_are_smoothed() -> None:
    graph = graph_of()
    task = task_of(graph, TrainConfig())
    out = torch.full((graph.num_nodes, 4), -1e4)
    out[:, 0] = 0.0
    rows = task.rows["train"]
    out[rows] = -1e4
    out[rows, task.y[rows]] = 0.0
    found = result_of(graph, out, CorrectAndSmoothConfig(smooth_steps=0), ranks=1, splits=("train",))
    assert torch.equal(found.argmax(1), out.argmax(1))
    assert bool(found.isfinite().all())
