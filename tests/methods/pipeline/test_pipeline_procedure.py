"""The pipeline without staleness computes what `full` computes, for any parts, intervals and workers."""

import copy
from typing import Any

import pytest
import torch
from ranked import MODELS, PLAIN, graph_of, parts_of, trainer_of
from torch import Tensor

from siafu import native
from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.methods.full.procedure import FullProcedure
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.pipeline.intervals import cut_intervals
from siafu.methods.pipeline.procedure import PipelineProcedure
from siafu.nn.aggregates import aggregate, aggregate_static
from siafu.nn.dropout import set_keys
from siafu.nn.model import Model, StageRows
from siafu.nn.ops import TorchOps
from siafu.training.procedure import train_epoch
from siafu.workers.setup import Setup

EPOCHS = 3
ROW_BY_ROW = {
    name: {**model, "norm": "layer" if model.get("norm") == "batch" else model.get("norm", "none")}
    for name, model in MODELS.items()
}


def trained(
    graph: Graph,
    ranks: int,
    model: dict[str, Any],
    *,
    comm: CommConfig = PLAIN,
    pipeline: PipelineConfig | None = None,
    epochs: int = EPOCHS,
    **train: Any,
) -> list[dict[str, Any]]:
    """Train on a number of ranks; returns losses, weights and bytes of each."""
    parts = parts_of(graph, ranks)

    def rank(group: Comm) -> dict[str, Any]:
        trainer = trainer_of(group, parts[group.rank], model, comm, pipeline=pipeline, **train)
        if isinstance(trainer, PipelineProcedure):
            losses = trainer.train_epochs(epochs)
            trainer.close()
        else:
            losses = [train_epoch(trainer, epoch) for epoch in range(1, epochs + 1)]
        return {"losses": losses, "weights": dict(trainer.model.state_dict()), "sent": group.meter.sent}

    return run_threads(rank, ranks=ranks, threads=1)


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9, abs=1e-9)
    for name, value in wanted["weights"].items():
        torch.testing.assert_close(
            found["weights"][name], value, rtol=1e-9, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize(
    ("model", "ranks", "intervals"),
    [
        *((model, *cut) for model in ROW_BY_ROW for cut in ((1, 8), (2, 3))),
        *((model, *cut) for model in ("gcn", "sage", "gat", "gin") for cut in ((1, 1), (1, 32), (4, 8))),
    ],
)
def test_losses_and_weights_are_those_of_full_training(model: str, ranks: int, intervals: int) -> None:
    graph, config = graph_of(), PipelineConfig(intervals=intervals, workers="inline")
    (wanted,) = trained(graph, 1, ROW_BY_ROW[model])
    for found in trained(graph, ranks, ROW_BY_ROW[model], pipeline=config):
        assert_equal(found, wanted)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin"])
def test_losses_and_weights_are_those_of_full_training_after_twenty_epochs_with_dropout(model: str) -> None:
    graph, config = graph_of(), PipelineConfig(intervals=5, workers="threads", num_workers=3)
    (wanted,) = trained(graph, 1, MODELS[model] | {"jump": "none"}, epochs=20)
    for found in trained(graph, 2, MODELS[model] | {"jump": "none"}, pipeline=config, epochs=20):
        assert_equal(found, wanted)


@pytest.mark.parametrize(
    ("given", "train"),
    [
        ({"weighted": True}, {}),
        ({"labels": "labels"}, {"class_weights": "balanced"}),
        ({"labels": "numbers"}, {"clip": 0.01}),
        ({}, {"class_weights": "balanced", "schedule": "cosine"}),
        ({}, {"class_weights": [1, 5, 2, 1], "loss": "focal"}),
        ({"labels": "labels"}, {"loss": "focal", "focal_gamma": 1.0}),
    ],
)
@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_losses_and_weights_are_those_of_full_training_for_every_kind_of_label_and_edge(
    given: dict[str, Any], train: dict[str, Any], model: str
) -> None:
    graph, config = graph_of(**given), PipelineConfig(intervals=4, workers="inline")
    (wanted,) = trained(graph, 1, MODELS[model], **train)
    for found in trained(graph, 2, MODELS[model], pipeline=config, **train):
        assert_equal(found, wanted)


@pytest.mark.parametrize("model", ["gcn", "sage-max", "gat", "gatv2"])
def test_losses_and_weights_are_those_of_full_training_without_the_compiled_core(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wanted,) = trained(graph_of(), 1, ROW_BY_ROW[model], epochs=2)
    monkeypatch.setattr(native.core, "kernels", None)
    config = PipelineConfig(intervals=3, workers="inline")
    for found in trained(graph_of(), 2, ROW_BY_ROW[model], pipeline=config, epochs=2):
        assert_equal(found, wanted)


def test_the_bits_do_not_depend_on_the_workers_or_their_timing() -> None:
    def weights(kind: str, workers: int) -> list[dict[str, Any]]:
        config = PipelineConfig(intervals=6, workers=kind, num_workers=workers)
        return [found["weights"] for found in trained(graph_of(), 2, MODELS["gat"], pipeline=config)]

    wanted = weights("inline", 0)
    for found in (weights("threads", 2), weights("threads", 8)):
        for one, other in zip(found, wanted, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize(("model", "staleness"), [("gcn", 1), ("sage-max", 2), ("gatv2", 1)])
def test_a_stale_run_learns_too(model: str, staleness: int) -> None:
    config = PipelineConfig(intervals=4, workers="threads", num_workers=2, staleness=staleness)
    plain = ROW_BY_ROW[model] | {"dropout": 0.0}
    first, *_, last = trained(graph_of(), 1, plain, epochs=40, lr=0.002)[0]["losses"]
    for found in trained(graph_of(), 2, plain, pipeline=config, epochs=40, lr=0.002):
        assert first - found["losses"][-1] > 0.5 * (first - last)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_rows_may_be_sent_rounded(precision: str) -> None:
    config = PipelineConfig(intervals=4, workers="inline")
    comm = CommConfig.model_validate({"precision": precision})
    (wanted,) = trained(graph_of(), 1, MODELS["gcn"])
    for found in trained(graph_of(), 2, MODELS["gcn"], pipeline=config, comm=comm):
        assert found["losses"] == pytest.approx(wanted["losses"], rel=0.05)


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_the_bits_are_those_of_full_training_that_sums_gradients_by_intervals(model: str) -> None:
    given, config = ROW_BY_ROW[model] | {"norm": "none"}, PipelineConfig(intervals=5, workers="inline")
    (part,) = parts_of(graph_of(), 1)

    def rank(group: Comm) -> tuple[dict[str, Any], dict[str, Any]]:
        pipeline = trainer_of(group, part, given, PLAIN, pipeline=config)
        assert isinstance(pipeline, PipelineProcedure)
        cut = cut_intervals(pipeline.context, part.route, group, count=5)
        whole = trainer_of(group, part, given, PLAIN)
        whole.model.train()
        for epoch in (1, 2, 3):
            set_keys(whole.model, seed=3, step=epoch)
            step_by_intervals(whole, pipeline.setup(), cut.rows, epoch)
        pipeline.train_epochs(3)
        pipeline.close()
        return dict(whole.model.state_dict()), dict(pipeline.model.state_dict())

    ((wanted, found),) = run_threads(rank, ranks=1, threads=1)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


def step_by_intervals(trainer: FullProcedure, setup: Setup, intervals: tuple[slice, ...], epoch: int) -> None:
    """Make a step on the whole graph by autograd, with a copy of the weights for each interval's tensor work."""
    copies = [copy.deepcopy(trainer.model) for _ in intervals]
    context, row_id = trainer.context, torch.arange(trainer.context.num_dst)
    given: dict[int, Tensor] = {}
    whole = trainer.model
    assert isinstance(whole, Model)
    last, order = whole.num_aggregates, whole.order([context] * whole.num_aggregates, trainer.x_src)
    m = aggregate_static(context, whole.kinds(setup.kept), trainer.x_src) if setup.kept else None
    for number in range(setup.kept, last + 1):
        outs = []
        for model, rows in zip(copies, intervals, strict=True):
            h = {int(name[1:]): given[int(name[1:])][rows] for name in whole.reads(number) if name != "x"}
            read = StageRows(m=None if m is None else m[rows], x=trainer.x_src[rows], h=h)
            outs.append(model.stage(TorchOps(row_id[rows]), number, read, order))
        given[number], z = (torch.cat(each) for each in zip(*outs, strict=True))
        if number < last:
            m = aggregate(
                whole.kind(number),
                context,
                z,
                weights=tuple(whole.edge_weights(number).values()),
                dropout=whole.edge_dropout(number),
            )
    trainer.task.training_loss(given[last], epoch).backward()
    for parameter, *each in zip(
        trainer.model.parameters(), *(model.parameters() for model in copies), strict=True
    ):
        parameter.grad = each[0].grad
        for one in each[1:]:
            parameter.grad = parameter.grad + one.grad
    trainer.optimizer.step()
