"""Lazy training: stages are trained in turn, equally on any number of ranks, with one exchange of rows before each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranked import MODELS, NODES, graph_of, parts_of
from torch import Tensor, nn
from torch.nn import functional

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.comm.halo import Halo
from siafu.context import NO_EXCHANGE
from siafu.event_log import NullEventLog
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.lazy.procedure import LazyProcedure
from siafu.methods.lazy.stage_specs import build_staged
from siafu.methods.lazy.traffic import message_bytes
from siafu.nn.aggregates import gcn_in
from siafu.nn.config import ModelConfig
from siafu.nn.layers import LAYERS
from siafu.nn.staged import Layered
from siafu.partition.cut import Part, cut
from siafu.training.config import TrainConfig
from siafu.training.loop import Loop
from siafu.training.procedure import Callbacks, Monitor, train_epoch
from siafu.training.task import task_of

KINDS = [name for name, model in MODELS.items() if model.get("norm") != "batch" and model["kind"] in LAYERS]
QUIET = Monitor(NullEventLog())
SHORT = {"epochs": 3, "patience": 0}


def trainer_of(
    comm: Comm,
    part: Part,
    model: dict[str, Any],
    *,
    lazy: dict[str, Any] | None = None,
    wire: CommConfig | None = None,
    **train: Any,
) -> LazyProcedure:
    """A trainer in float64, whose rounding shows no difference between ranks."""
    config = TrainConfig.model_validate(SHORT | train)
    task, settings = task_of(part.own, config, comm), LazyConfig.model_validate(lazy or {})
    if task.y.is_floating_point():
        task = replace(task, y=task.y.double())
    assert part.own.x is not None
    made = build_staged(
        ModelConfig.model_validate({"hidden": 8, "dropout": 0.4, "norm": "layer"} | model),
        settings,
        in_features=part.own.x.shape[1],
        out_features=task.num_outputs,
    )
    made.reset(torch.Generator().manual_seed(1))
    exchange = Halo(comm, part.route, num_own=part.own.num_nodes) if comm.world_size > 1 else NO_EXCHANGE
    return LazyProcedure(
        made.double(),
        part,
        part.context(exchange),
        part.own.x,
        task,
        config,
        lazy=settings,
        seed=3,
        wire=wire or CommConfig(),
    )


def loop_of(trainer: LazyProcedure) -> Loop:
    """The loop of a trainer, with the same settings."""
    return Loop(trainer, trainer.optimizer.config)


def trained(graph: Graph, parts: list[Part], model: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    """What each rank has in the end."""

    def rank(comm: Comm) -> dict[str, Any]:
        trainer = trainer_of(comm, parts[comm.rank], model, **settings)
        assert loop_of(trainer).fit(QUIET) == "done"
        return {
            "weights": dict(trainer.model.state_dict()),
            "outputs": trainer.outputs(),
            "ids": parts[comm.rank].own.node_id,
            "stages": trainer.results,
            "sent": comm.meter.sent,
            "model": trainer.model,
        }

    return run_threads(rank, ranks=len(parts), threads=1)


def by_node(found: list[dict[str, Any]]) -> Tensor:
    """The outputs of all ranks in the user's order."""
    out = torch.empty(NODES, found[0]["outputs"].shape[1], dtype=torch.float64)
    for rank in found:
        out[slice(None) if rank["ids"] is None else rank["ids"]] = rank["outputs"]
    return out


def assert_same(found: list[dict[str, Any]], wanted: dict[str, Any], tolerance: float = 1e-9) -> None:
    for rank in found:
        assert rank["weights"].keys() == wanted["weights"].keys()
        for name, value in wanted["weights"].items():
            free = name.endswith("bias_dst")  # its gradient may be rounding alone, which Adam makes steps of
            off = 1e-5 if free else tolerance
            torch.testing.assert_close(rank["weights"][name], value, rtol=off, atol=off, msg=name)
    torch.testing.assert_close(by_node(found), by_node([wanted]), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("model", "recipe"),
    [*((kind, "published") for kind in KINDS), *((kind, "logits") for kind in ("gcn", "sage", "gat", "gin"))],
)
def test_weights_and_outputs_equal_those_of_one_rank(model: str, recipe: str) -> None:
    graph, lazy = graph_of(), {"recipe": recipe}
    (wanted,) = trained(graph, parts_of(graph, 1), MODELS[model], lazy=lazy)
    assert_same(trained(graph, parts_of(graph, 3), MODELS[model], lazy=lazy), wanted)


@pytest.mark.parametrize(("model", "bits"), [("gcn", 16), ("sage-max", 8), ("gat", 4)])
def test_results_equal_those_of_one_rank_with_rounded_rows(model: str, bits: int) -> None:
    graph, lazy = graph_of(), {"bits": bits, "gate": False}
    (wanted,) = trained(graph, parts_of(graph, 1), MODELS[model], lazy=lazy)
    assert_same(trained(graph, parts_of(graph, 2), MODELS[model], lazy=lazy), wanted)
    (exact,) = trained(graph, parts_of(graph, 1), MODELS[model], lazy={"gate": False})
    assert not torch.equal(exact["outputs"], wanted["outputs"]), "something was rounded"


@pytest.mark.parametrize(
    ("given", "train"),
    [({"weighted": True}, {}), ({"labels": "labels"}, {}), ({"labels": "numbers"}, {"clip": 0.1})],
)
def test_results_equal_those_of_one_rank_for_all_labels_and_edges(
    given: dict[str, Any], train: dict[str, Any]
) -> None:
    graph = graph_of(**given)
    (wanted,) = trained(graph, parts_of(graph, 1), MODELS["gcn"], **train)
    assert_same(trained(graph, parts_of(graph, 2), MODELS["gcn"], **train), wanted)


@pytest.mark.parametrize("recipe", ["published", "logits"])
@pytest.mark.parametrize(("model", "bits"), [("gcn", 8), ("sage-max", 32), ("gat", 8), ("gin", 32)])
def test_the_whole_model_computes_the_scored_outputs_bit_for_bit(model: str, recipe: str, bits: int) -> None:
    graph = graph_of()
    assert graph.x is not None
    lazy = {"recipe": recipe, "bits": bits}
    (found,) = trained(graph, parts_of(graph, 1), MODELS[model], lazy=lazy)
    with torch.no_grad():
        assert torch.equal(found["model"].eval()(graph.block, graph.x), found["outputs"])


def test_a_stage_is_plain_training_of_its_layer_on_a_fixed_aggregate() -> None:
    graph, rounds = graph_of(), 4
    assert graph.x is not None
    settings = {"kind": "gcn", "dropout": 0.0, "layers": 2}
    found = trained(graph, parts_of(graph, 2), settings, epochs=rounds, weight_decay=5e-4, lr=0.01)

    first = Layered(
        ModelConfig.model_validate({"hidden": 8, "norm": "layer"} | settings),
        in_features=9,
        out_features=4,
        precision="fp32",
    )
    first.reset(torch.Generator().manual_seed(1))
    start = {name: value.double() for name, value in first.state_dict().items()}
    rows = graph.train_mask & (graph.y >= 0)
    val = graph.val_mask & (graph.y >= 0)

    def learn(out: Callable[[], Tensor], learned: list[Tensor]) -> list[Tensor]:
        optimizer = torch.optim.Adam(learned, lr=0.01, weight_decay=5e-4)
        best: tuple[float, float] = (-1.0, 0.0)
        kept: list[Tensor] = []
        for _ in range(rounds):
            optimizer.zero_grad()
            functional.cross_entropy(out()[rows], graph.y[rows]).backward()
            optimizer.step()
            with torch.no_grad():
                score = float((out()[val].argmax(1) == graph.y[val]).double().mean())
                now = (score, -float(functional.cross_entropy(out()[val], graph.y[val])))
            if now > best:
                best, kept = now, [value.detach().clone() for value in learned]
        return kept

    def parameters(*names: str) -> list[Tensor]:
        return [start[name].clone().requires_grad_() for name in names]

    x = graph.x
    one = parameters("inner.layers.0.weight", "inner.layers.0.bias", "inner.norms.0.weight")
    one += parameters("inner.norms.0.bias", "heads.0.weight", "heads.0.bias")

    def hidden(weights: list[Tensor]) -> Tensor:
        weight, bias, scale, shift, *_ = weights
        return functional.layer_norm(gcn_in(graph.block, x) @ weight + bias, (8,), scale, shift).relu()

    one = learn(lambda: hidden(one) @ one[4] + one[5], one)
    aggregate = gcn_in(graph.block, hidden(one))
    two = parameters("inner.layers.1.weight", "inner.layers.1.bias")
    two = learn(lambda: aggregate @ two[0] + two[1], two)
    weights = found[0]["weights"]
    torch.testing.assert_close(weights["inner.layers.0.weight"], one[0])
    torch.testing.assert_close(weights["inner.norms.0.bias"], one[3])
    torch.testing.assert_close(weights["inner.layers.1.weight"], two[0])


def test_rows_are_sent_once_per_layer_and_not_in_rounds() -> None:
    graph, model = graph_of(), MODELS["gcn"]
    halo_rows = sum(part.halo_id.numel() for part in parts_of(graph, 2))
    found = trained(graph, parts_of(graph, 2), model, epochs=5)
    once = trained(graph, parts_of(graph, 2), model, epochs=1)
    assert {label for label in found[0]["sent"] if label.startswith(("halo", "evaluate"))} == {
        "halo degrees",
        "halo 1",
        "halo 2",
    }
    headers = 2 * 2 * 100  # two messages a rank
    for label, width in {"halo degrees": 1, "halo 1": 9, "halo 2": 8}.items():
        sent = sum(rank["sent"][label] for rank in found)
        assert sent <= 8 * halo_rows * width + headers, "each row once, in float64 at most"
        assert sent > halo_rows * width / 2
    assert found[0]["sent"]["halo 1"] == once[0]["sent"]["halo 1"]
    assert sum(message_bytes(rank["sent"]) for rank in found) <= 8 * halo_rows * (9 + 8 + 1) + 3 * headers


def test_a_stage_sends_the_gradients_of_its_own_weights_alone() -> None:
    graph = graph_of()
    found = trained(graph, parts_of(graph, 2), {"kind": "gcn", "layers": 3}, epochs=2)
    model: nn.Module = found[0]["model"]
    for stage, names in enumerate([("0.", "s.0"), ("1.", "s.1"), ("2.",)], 1):
        learned = sum(
            p.numel()
            for name, p in model.named_parameters()
            if any(name.startswith((f"inner.layers.{n}", f"inner.norms.{n}", f"head{n}.")) for n in names)
        )
        sent = sum(rank["sent"][f"gradients {stage}"] for rank in found)
        assert 2 * 2 * 8 * learned <= sent <= 2 * 2 * (8 * (learned + 10) + 200)


def test_the_gate_chooses_the_last_stage_within_a_standard_error_of_earlier_ones() -> None:
    graph, seen = graph_of(), set()
    for shift in range(4):  # labels are random, so some later stage is worse
        shuffled = replace(graph, y=graph.y.roll(shift))
        count = int((shuffled.val_mask & (shuffled.y >= 0)).sum())
        (found,) = trained(shuffled, parts_of(shuffled, 1), {"kind": "gcn", "layers": 4})
        scores = [stage["val_score"] for stage in found["stages"]]
        best = [max(scores[: place + 1]) for place in range(4)]
        good = [
            place
            for place in range(4)
            if best[place] - scores[place] <= (best[place] * (1 - best[place]) / count) ** 0.5
        ]
        assert int(found["weights"]["chosen"]) == good[-1]
        seen.add(good[-1])
    assert seen - {3}, "one was passed over"
    (last,) = trained(graph, parts_of(graph, 1), {"kind": "gcn", "layers": 4}, lazy={"gate": False})
    assert int(last["weights"]["chosen"]) == 3


def test_early_stopping_acts_on_each_stage_separately() -> None:
    (found,) = trained(graph_of(), parts_of(graph_of(), 1), MODELS["sage"], epochs=300, patience=4, lr=0.05)
    assert all(4 < stage["rounds"] < 300 for stage in found["stages"])


def test_with_local_steps_ranks_end_with_equal_weights_and_send_them_less_often() -> None:
    graph = graph_of()
    often = trained(graph, parts_of(graph, 3), MODELS["gcn"], epochs=4)
    seldom = trained(graph, parts_of(graph, 3), MODELS["gcn"], epochs=2, lazy={"local_epochs": 4})
    first, *others = seldom
    for other in others:
        for name, value in first["weights"].items():
            assert torch.equal(other["weights"][name], value), name
    assert first["sent"]["weights 1"] < 0.6 * often[0]["sent"]["gradients 1"]
    assert "gradients 1" not in first["sent"]


def test_averaged_weights_are_the_mean_of_ranks_weighted_by_training_nodes() -> None:
    parts = parts_of(graph_of(), 2)
    model = {"kind": "sage", "dropout": 0.0, "layers": 1}

    def moved(comm: Comm) -> tuple[Tensor, Tensor, float]:
        trainer = trainer_of(comm, parts[comm.rank], model, lazy={"local_epochs": 3})
        name = "inner.layers.0.weight_self"
        train_epoch(trainer, 1)
        mine = trainer.task.weight_of(trainer.task.rows["train"])
        averaged = trainer.model.state_dict()[name].clone()
        alone = trainer_of(comm, parts[comm.rank], model, lazy={"local_epochs": 3})
        alone._current_inputs()
        for _ in range(3):
            alone.model.train()
            alone.optimizer.zero_grad()
            (alone._loss_sum() / mine).backward()
            alone.optimizer.step()
        return averaged, alone.model.state_dict()[name], mine

    (found, one, first), (_, two, second) = run_threads(moved, ranks=2, threads=1)
    torch.testing.assert_close(found, (first * one + second * two) / (first + second))


@pytest.mark.parametrize(("model", "lazy"), [("gcn", {}), ("gat", {}), ("gat", {"local_epochs": 2})])
def test_parts_without_training_nodes_or_without_a_class_are_supported(
    model: str, lazy: dict[str, Any]
) -> None:
    graph = graph_of()
    assert graph.train_mask is not None
    assert graph.y is not None
    part = torch.where(graph.train_mask, 1, 0).to(torch.int32)
    part[graph.train_mask & (graph.y == 2)] = 2  # its class is in no other part
    parts = [one.part(graph) for one in cut(graph, part, parts=3)]
    found = trained(graph, parts, MODELS[model], lazy=lazy)
    assert not parts[0].own.train_mask.any()
    (wanted,) = trained(graph, parts_of(graph, 1), MODELS[model], lazy=lazy)
    if not lazy:
        assert_same(found, wanted)
    assert by_node(found).isfinite().all()


@pytest.mark.parametrize("lazy", [{"bits": 8}, {"local_epochs": 2}, {"recipe": "logits"}])
@pytest.mark.parametrize("stopped", [3, 5])
def test_a_run_stopped_anywhere_and_resumed_ends_with_the_same_bytes(
    tmp_path: Path, lazy: dict[str, Any], stopped: int
) -> None:
    graph = graph_of()
    parts = parts_of(graph, 2)
    wire = CommConfig(gradients="int8")

    def rank(comm: Comm) -> dict[str, Tensor]:
        file = tmp_path / "latest.safetensors" if comm.rank == 0 else None
        left = iter([None] * (stopped - 1) + ["SIGTERM"])
        monitor = replace(QUIET, checkpoint=file, callbacks=Callbacks(should_stop=lambda: next(left, None)))
        trainer = trainer_of(comm, parts[comm.rank], MODELS["gcn"], lazy=lazy, wire=wire)
        assert loop_of(trainer).fit(monitor) == "SIGTERM"
        trainer = trainer_of(comm, parts[comm.rank], MODELS["gcn"], lazy=lazy, wire=wire)
        loop = loop_of(trainer)
        loop.resume(file)
        assert loop.state.epoch == stopped
        assert loop.fit(replace(monitor, callbacks=Callbacks())) == "done"
        return {**trainer.model.state_dict(), "outputs": trainer.outputs()}

    wanted = trained(graph, parts, MODELS["gcn"], lazy=lazy, wire=wire)
    for found, undisturbed in zip(run_threads(rank, ranks=2, threads=1), wanted, strict=True):
        for name, value in undisturbed["weights"].items():
            assert torch.equal(found[name], value), name
        assert torch.equal(found["outputs"], undisturbed["outputs"])


def test_batch_norm_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.norm is batch, whose moments .* set it to layer"):
        build_staged(ModelConfig(norm="batch"), LazyConfig(), in_features=3, out_features=2)
