"""On several ranks `full` computes what one rank computes: losses, gradients, weights, scores."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.comm.halo import Halo
from siafu.engine.local import run_threads
from siafu.graph import Graph
from siafu.nn.embedded import build_model
from siafu.nn.model import ModelConfig
from siafu.partition.cut import Part, cut, whole
from siafu.training.config import TrainConfig
from siafu.training.full import FullTrainer
from siafu.training.task import SPLITS, task_of

NODES, EDGES = 60, 400
PLAIN = CommConfig()
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn-wide": {"kind": "gcn", "hidden": 20, "layers": 3, "residual": True},
    "sage": {"kind": "sage", "norm": "layer"},
    "sage-max": {"kind": "sage", "reduce": "max", "layers": 3},
    "gat": {"kind": "gat", "heads": 2, "layers": 3},
    "gatv2": {"kind": "gatv2", "heads": 2},
    "gin": {"kind": "gin", "jump": "cat"},
    "batch-norm": {"kind": "gcn", "norm": "batch", "layers": 3},
    "jump-max": {"kind": "sage", "jump": "max", "norm": "batch"},
    "mlp": {"kind": "mlp"},
}


def graph_of(*, weighted: bool = False, labels: str = "class", features: bool = True) -> Graph:
    """60 nodes with loops, repeated edges, isolated nodes and a few nodes that train nothing."""
    draw = torch.Generator().manual_seed(5)
    edges = torch.randint(NODES - 2, (2, EDGES), generator=draw)
    edges = torch.cat([edges, edges[:, :20], torch.tensor([[3, 3, 4], [3, 3, 4]])], 1)
    split = torch.randint(3, (NODES,), generator=draw)
    y: dict[str, Tensor] = {
        "class": torch.randint(-1, 4, (NODES,), generator=draw),
        "labels": torch.randint(2, (NODES, 3), generator=draw, dtype=torch.uint8),
        "numbers": torch.randn(NODES, 2, generator=draw),
    }
    x = torch.randn(NODES, 9, generator=draw).relu().mul(4).round() / 4  # many ties
    weight = torch.rand(edges.shape[1], generator=draw) if weighted else None
    made = Graph.from_edges(
        edges,
        x=x if features else None,
        y=y[labels],
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        edge_weight=weight,
        num_nodes=NODES,
    )
    return replace(made, x=None if made.x is None else made.x.double())


def parts_of(graph: Graph, ranks: int) -> list[Part]:
    if ranks == 1:
        return [whole(graph)]
    draw = torch.Generator().manual_seed(ranks)
    part_of_node = torch.randint(ranks, (NODES,), generator=draw).to(torch.int32)
    order = torch.randperm(NODES, generator=draw)
    return [one.part(graph) for one in cut(graph, part_of_node, parts=ranks, order=order)]


def trainer_of(
    comm: Comm, part: Part, model: dict[str, Any], comm_config: CommConfig, **train: Any
) -> FullTrainer:
    config = TrainConfig.model_validate(train)
    task = task_of(part.own, config, comm)
    task = replace(
        task,
        y=task.y.double() if task.y.is_floating_point() else task.y,
        class_weight=None if task.class_weight is None else task.class_weight.double(),
    )
    x = part.own.x if part.own.x is not None else torch.empty(part.own.num_nodes, 0, dtype=torch.float64)
    made = build_model(
        ModelConfig.model_validate({"hidden": 8, "dropout": 0.4} | model),
        in_features=x.shape[1],
        out_features=task.num_outputs,
        num_nodes=part.num_nodes,
    )
    made.reset(torch.Generator().manual_seed(1))
    halo = None
    if comm.world_size > 1:
        halo = Halo(comm, part.route, num_own=part.own.num_nodes, precision=comm_config.precision)
    block = part.block(halo, narrow=comm_config.narrow)
    return FullTrainer(made.double(), block, x, task, config, seed=3)


def trained(
    graph: Graph, ranks: int, model: dict[str, Any], *, comm: CommConfig = PLAIN, **train: Any
) -> list[dict[str, Any]]:
    """What each rank saw in three epochs."""
    parts = parts_of(graph, ranks)

    def rank(group: Comm) -> dict[str, Any]:
        trainer = trainer_of(group, parts[group.rank], model, comm, **train)
        losses = [trainer.step(1)]
        grads = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
        losses += [trainer.step(epoch) for epoch in (2, 3)]
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
    from siafu.member import _check_custom

    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    _check_custom(module, torch.ones(1, 2), "g", several=False)
    with pytest.raises(
        ValueError, match="has a BatchNorm1d, which knows the rows of one rank alone; use siafu"
    ):
        _check_custom(module, torch.ones(1, 2), "g", several=True)
