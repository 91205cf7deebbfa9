"""On several ranks `full` computes what one rank computes: losses, gradients, weights, scores."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranked import MODELS, PLAIN, graph_of, parts_of, trainer_of
from torch import nn

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.training.loop import Loop
from siafu.training.procedure import train_epoch
from siafu.training.task import SPLITS


def trained(
    graph: Graph, ranks: int, model: dict[str, Any], *, comm: CommConfig = PLAIN, **train: Any
) -> list[dict[str, Any]]:
    """What each rank saw in three epochs."""
    parts = parts_of(graph, ranks)

    def rank(group: Comm) -> dict[str, Any]:
        trainer = trainer_of(group, parts[group.rank], model, comm, **train)
        losses = [train_epoch(trainer, 1)]
        grads = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
        losses += [train_epoch(trainer, epoch) for epoch in (2, 3)]
        out = trainer.outputs()
        scores = {split: trainer.task.scores(out, split) for split in SPLITS}
        return {
            "losses": losses,
            "grads": grads,
            "weights": dict(trainer.model.state_dict()),
            "scores": scores,
            "evaluation": trainer.task.evaluate(out),
            "sent": group.meter.sent,
        }

    return run_threads(rank, ranks=ranks, threads=1)


def assert_equal(found: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-9) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(torch.tensor(found["losses"]), torch.tensor(wanted["losses"]), **close)
    for what in ("grads", "weights"):
        assert found[what].keys() == wanted[what].keys()
        for name, value in wanted[what].items():
            grad = wanted["grads"].get(name)
            if what == "weights" and grad is not None and float(grad.abs().max()) < 1e-12:
                continue  # a bias before batch norm: its gradient is rounding alone, which Adam makes steps of
            if name.endswith("running_mean"):  # and it moves the mean
                torch.testing.assert_close(found[what][name], value, rtol=1e-5, atol=1e-5)
                continue
            torch.testing.assert_close(
                found[what][name], value, **close, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_losses_gradients_and_weights_are_those_of_one_rank(model: str, ranks: int) -> None:
    graph = graph_of()
    (wanted,) = trained(graph, 1, MODELS[model])
    for found in trained(graph, ranks, MODELS[model]):
        assert_equal(found, wanted)
        assert found["evaluation"] == (
            pytest.approx(wanted["evaluation"][0]),
            pytest.approx(wanted["evaluation"][1]),
        )


@pytest.mark.parametrize(
    ("given", "train"),
    [
        ({"weighted": True}, {}),
        ({"labels": "labels"}, {"class_weights": "balanced"}),
        ({"labels": "numbers"}, {}),
        ({"features": False}, {"clip": 0.01}),
        ({}, {"class_weights": "balanced", "metric": "roc_auc"}),
        ({}, {"metric": "macro_f1"}),
        ({}, {"class_weights": [1, 5, 2, 1], "loss": "focal", "metric": "average_precision"}),
        ({"labels": "labels"}, {"loss": "focal", "metric": "brier"}),
    ],
)
@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_so_they_are_for_every_kind_of_label_and_edge(
    given: dict[str, Any], train: dict[str, Any], model: str
) -> None:
    graph = graph_of(**given)
    (wanted,) = trained(graph, 1, MODELS[model], **train)
    for found in trained(graph, 3, MODELS[model], **train):
        assert_equal(found, wanted)
        for split in SPLITS:
            told = {name: score for name, score in found["scores"][split].items() if score is not None}
            assert told == pytest.approx({name: wanted["scores"][split][name] for name in told})
            assert train.get("metric", "accuracy") in {*told, "accuracy"}


def test_all_ranks_hold_the_same_bits() -> None:
    first, *others = trained(graph_of(), 3, MODELS["gat"])
    for other in others:
        for name, value in first["weights"].items():
            assert torch.equal(other["weights"][name], value), name


@pytest.mark.parametrize("narrow", [True, False])
def test_the_halo_is_sent_once_each_way_at_the_width_that_is_asked_for(narrow: bool) -> None:
    graph = graph_of()
    found = trained(graph, 2, MODELS["gcn"], comm=CommConfig(narrow=narrow))
    halo_rows = sum(part.halo_id.numel() for part in parts_of(graph, 2))
    width = 4 if narrow else 8  # classes, or hidden
    once = halo_rows * (9 + 1)  # the first aggregate of the inputs, and GCN's scale
    wanted = 8 * (once + 3 * 2 * halo_rows * width)
    sent = sum(rank["sent"]["halo"] for rank in found)
    assert wanted <= sent <= wanted + 2 * 100 * (2 + 3 * 2), "payload, and a header a message"
    (alone,) = trained(graph, 1, MODELS["gcn"], comm=CommConfig(narrow=narrow))
    assert_equal(found[0], alone)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("int8", 0.03)])
@pytest.mark.parametrize("model", ["gcn", "sage-max", "gat"])
def test_narrow_rows_on_the_wire_change_little(precision: str, tolerance: float, model: str) -> None:
    graph = graph_of()
    (wanted,) = trained(graph, 1, MODELS[model])
    found = trained(graph, 2, MODELS[model], comm=CommConfig(precision=precision))
    assert found[0]["losses"] == pytest.approx(wanted["losses"], rel=tolerance)
    exact = trained(graph, 2, MODELS[model])
    assert found[0]["sent"]["halo"] < 0.6 * exact[0]["sent"]["halo"]


def test_torchs_batch_norm_in_a_users_module_is_refused_on_several_ranks() -> None:
    from siafu.methods.full import _check_module

    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    _check_module(module, torch.ones(1, 2), "g", ranks=1)
    with pytest.raises(
        ValueError, match="has a BatchNorm1d, which knows the rows of one rank alone; use siafu"
    ):
        _check_module(module, torch.ones(1, 2), "g", ranks=2)


def test_every_rank_names_the_checkpoint_that_is_damaged(tmp_path: Path) -> None:
    parts, path = parts_of(graph_of(), 2), tmp_path / "latest.safetensors"
    path.write_bytes(b"damaged")

    def rank(comm: Comm) -> str:
        trainer = trainer_of(comm, parts[comm.rank], MODELS["gcn"], PLAIN)
        loop = Loop(trainer, trainer.optimizer.config)
        with pytest.raises(ValueError, match="not a tensor file of siafu, or damaged") as refused:
            loop.resume(path if comm.rank == 0 else None)
        return str(refused.value)

    assert all(str(path) in told for told in run_threads(rank, ranks=2, threads=1))
