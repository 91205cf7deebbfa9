"""Lazy training among clients: equal to one rank if all clients are available; behaviour with absent clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranked import MODELS, NODES, graph_of
from test_lazy import QUIET, SHORT, loop_of
from torch import Tensor

from siafu.comm import single_rank_comm
from siafu.comm.config import CommConfig, Precision
from siafu.comm.rounds import QuorumMissed
from siafu.comm.simulated_rounds import framed_bytes
from siafu.graph import Graph
from siafu.methods.lazy.averaging import flat_parameters, set_flat_parameters
from siafu.methods.lazy.clients import ClientsProcedure, assign_clients
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.lazy.local_steps import flat_gradient
from siafu.methods.lazy.procedure import LazyProcedure
from siafu.methods.lazy.stacked import dense_form
from siafu.methods.lazy.stage_specs import build_staged
from siafu.nn.aggregates import MEAN
from siafu.nn.config import ModelConfig
from siafu.partition.cut import whole_part
from siafu.training.config import TrainConfig
from siafu.training.procedure import Callbacks, train_epoch
from siafu.training.task import task_of

FEW = torch.arange(NODES) % 7


def trainer_of(
    graph: Graph,
    model: dict[str, Any],
    owner: Tensor | None,
    *,
    lazy: dict[str, Any] | None = None,
    wire: CommConfig | None = None,
    **train: Any,
) -> LazyProcedure:
    """A trainer in float64, among the clients of ``owner`` or on one rank."""
    config, settings = TrainConfig.model_validate(SHORT | train), LazyConfig.model_validate(lazy or {})
    task, part = task_of(graph, config, single_rank_comm()), whole_part(graph)
    assert graph.x is not None
    made = build_staged(
        ModelConfig.model_validate({"hidden": 8, "dropout": 0.4, "norm": "layer"} | model),
        settings,
        in_features=graph.x.shape[1],
        out_features=task.num_outputs,
    )
    made.reset(torch.Generator().manual_seed(1))
    given = (made.double(), part, part.context(), graph.x, task, config)
    others: dict[str, Any] = {"lazy": settings, "seed": 3, "wire": wire or CommConfig()}
    return (
        LazyProcedure(*given, **others) if owner is None else ClientsProcedure(*given, **others, owner=owner)
    )


def trained(graph: Graph, model: dict[str, Any], owner: Tensor | None, **settings: Any) -> LazyProcedure:
    trainer = trainer_of(graph, model, owner, **settings)
    assert loop_of(trainer).fit(QUIET) == "done"
    return trainer


def clients_of(graph: Graph, model: str, owner: Tensor, **settings: Any) -> ClientsProcedure:
    found = trained(graph, MODELS[model], owner, **settings)
    assert isinstance(found, ClientsProcedure)
    return found


def assert_same_weights(found: LazyProcedure, wanted: LazyProcedure, off: float = 1e-9) -> None:
    for name, value in wanted.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], value, rtol=off, atol=off, msg=name)


@pytest.mark.parametrize("recipe", ["published", "logits"])
@pytest.mark.parametrize("model", ["gcn", "sage-max", "gat", "gin"])
@pytest.mark.parametrize("owner", [torch.arange(NODES), FEW], ids=["node", "seven"])
def test_with_all_clients_and_one_step_training_equals_one_rank(
    model: str, recipe: str, owner: Tensor
) -> None:
    graph, lazy = graph_of(), {"recipe": recipe, "bits": 8}
    found = clients_of(graph, model, owner, lazy=lazy)
    wanted = trained(graph, MODELS[model], None, lazy=lazy)
    assert_same_weights(found, wanted)
    torch.testing.assert_close(found.outputs(), wanted.outputs())


@pytest.mark.parametrize("recipe", ["published", "logits"])
@pytest.mark.parametrize("model", ["gcn", "gcn-wide", "sage", "sage-max", "gin", "mlp"])
def test_gradients_of_separate_clients_add_up_to_the_joint_gradient(model: str, recipe: str) -> None:
    graph, lazy = graph_of(), {"recipe": recipe}
    together = clients_of(graph, model, FEW, lazy=lazy)
    apart = trainer_of(graph, MODELS[model], FEW, lazy=lazy)
    assert isinstance(apart, ClientsProcedure)
    apart._joint_gradient = apart._local_updates  # type: ignore[method-assign]
    loop_of(apart).fit(QUIET)
    assert_same_weights(apart, together)


@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("recipe", ["published", "logits"])
@pytest.mark.parametrize("model", ["gcn", "sage", "sage-max", "mlp"])
def test_batched_clients_step_like_sequential_clients(
    model: str, recipe: str, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, lazy = graph_of(), {"recipe": recipe, "local_epochs": 3}
    wire, settings = CommConfig(gradients="fp32"), MODELS[model] | {"norm": norm}
    at_once = trained(graph, settings, FEW, lazy=lazy, wire=wire)
    forms = []

    def no_form(*given: Any) -> None:
        forms.append(dense_form(*given))

    monkeypatch.setattr("siafu.methods.lazy.clients.dense_form", no_form)
    in_turn = trained(graph, settings, FEW, lazy=lazy, wire=wire)
    assert forms
    assert None not in forms
    assert_same_weights(at_once, in_turn)


def test_updates_in_fewer_bits_are_rounded_and_smaller() -> None:
    graph = graph_of()
    wide = {"kind": "gcn", "hidden": 200}
    exact = trained(graph, wide, FEW)
    narrow = trained(graph, wide, FEW, wire=CommConfig(gradients="int8"))
    assert isinstance(exact, ClientsProcedure)
    assert isinstance(narrow, ClientsProcedure)
    assert not torch.equal(exact.outputs(), narrow.outputs())
    assert_same_weights(narrow, exact, off=0.1)
    assert int(narrow.rounds.counts["up"].sum()) < 0.6 * int(exact.rounds.counts["up"].sum())
    assert int(narrow.rounds.counts["down"].sum()) < 0.6 * int(exact.rounds.counts["down"].sum())


@pytest.mark.parametrize("gradients", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("validated", [True, False])
def test_the_model_has_the_weights_that_clients_received(gradients: Precision, validated: bool) -> None:
    graph = graph_of() if validated else replace(graph_of(), val_mask=None)
    found = clients_of(graph, "gcn", FEW, wire=CommConfig(gradients=gradients))
    for stage in range(len(found.stages)):
        weights = flat_parameters(found._parameters_of_stage(stage))[None]
        torch.testing.assert_close(found._weights.quantize_rows(weights), weights)
    assert found._weights.precision == ("int8" if gradients == "int4" else gradients)


def test_bytes_of_a_run_equal_a_count_by_hand() -> None:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])  # 0 - 1 - 2, and 3 alone
    graph = Graph.from_edges(
        edges,
        x=torch.tensor([[0.1, 0.7], [0.3, 0.2], [0.9, 0.4], [0.5, 0.6]], dtype=torch.float64),
        y=torch.tensor([0, 1, 0, 1]),
        train_mask=torch.tensor([True, False, True, False]),
        val_mask=torch.tensor([False, True, False, False]),
        test_mask=torch.tensor([False, False, False, True]),
        num_nodes=4,
    )
    graph = replace(graph, x=None if graph.x is None else graph.x.double())
    rounds = 2
    settings: dict[str, Any] = {"lazy": {"recipe": "logits"}, "epochs": rounds}
    found = clients_of(graph, "gcn", torch.arange(4), **settings, lr=0.1)
    sizes = [
        (2 * 8 + 8 + 2 * 8) + (8 * 2 + 2),
        *2 * [(4 * 8 + 8 + 2 * 8) + (8 * 2 + 2)],
    ]  # layer, norm; layer
    up = sum(rounds * framed_bytes(4 * size) for size in sizes)
    assert found.rounds.counts["up"][[0, 2]].tolist() == [up, up]
    scores = 3 * rounds * framed_bytes(16)
    assert found.rounds.counts["up"][[1, 3]].tolist() == [scores, 0]
    best = [stage["best_epoch"] for stage in found.results]
    down = [framed_bytes(4 * size) for size in sizes]
    assert found.rounds.counts["down"][3] == sum(down), "who neither trains nor validates hears a stage once"
    ends = [rounds * (stage + 1) for stage in range(3)]
    heard = [
        rounds + (b != e - 1) for b, e in zip(best, ends, strict=True)
    ]  # each round before, and the best
    assert found.rounds.counts["down"][0] == sum(n * size for n, size in zip(heard, down, strict=True))
    row = 2 + 2 * 8  # two numbers of 8 bytes, in a form of two
    links = [2 * framed_bytes(row)] * 4
    assert found.rounds.by_link.tolist() == links
    assert found.rounds.counts["sent"].tolist() == [links[0], 2 * links[0], links[0], 0]
    told = found.metrics(0.0)
    total = torch.stack(list(found.rounds.counts.values())).sum(0)
    assert told["bytes_per_client"] == float(total.double().mean())
    assert told["most_bytes_per_training_client"] == max(int(total[0]), int(total[2]))
    assert sum(found.comm.meter.sent.values()) == int(total.sum() - found.rounds.counts["received"].sum())


def test_participants_do_not_depend_on_the_number_of_threads() -> None:
    graph, lazy, before = graph_of(), {"participation": 0.3}, torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(clients_of(graph, "gcn", torch.arange(NODES), lazy=lazy))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0].rounds.counts["up"], found[1].rounds.counts["up"])
    assert_same_weights(found[0], found[1])
    everybody = clients_of(graph, "gcn", torch.arange(NODES))
    some, all_ = (each.comm.meter.sent["gradients 1"] for each in (found[0], everybody))
    assert 0 < some < 0.5 * all_
    with pytest.raises(AssertionError):
        assert_same_weights(found[0], everybody)


@pytest.mark.parametrize("missing", ["mask", "last"])
@pytest.mark.parametrize("recipe", ["published", "logits"])
@pytest.mark.parametrize("model", ["gcn", "sage-max", "gat", "gin"])
def test_absent_clients_catch_up_on_return(model: str, recipe: str, missing: str) -> None:
    graph = graph_of()
    lazy = {"recipe": recipe, "away": 0.4, "missing": missing, "bits": 8}
    found = clients_of(graph, model, torch.arange(NODES), lazy=lazy)
    sent = found.comm.meter.sent
    assert found.outputs().isfinite().all()
    assert "halo caught up" in sent
    assert "weights caught up" in sent
    assert torch.equal(found.outputs(), found.model.eval()(graph.block, graph.x)), (
        "the saved model says the same"
    )
    assert found.task.count == found._full_task.count
    for there in found._availability:
        assert 0 < int(there.sum()) < NODES


def test_rows_of_absent_clients_are_dropped_and_the_mean_is_over_the_others() -> None:
    graph = graph_of()
    lazy = {"recipe": "logits", "away": 0.4, "gate": False}
    trainer = trainer_of(graph, MODELS["gcn"], torch.arange(NODES), lazy=lazy)
    assert isinstance(trainer, ClientsProcedure)
    inputs = trainer._inputs_of(1)
    there, rows = trainer._available(1), trainer._rows[1]
    (pooled,) = [kept for name, kept in inputs.context.cache.items() if name == ("aggregate", MEAN)]
    for node in there.nonzero()[:, 0].tolist():
        sources = graph.indices[graph.indptr[node] : graph.indptr[node + 1]].long()
        sources = sources[there[sources] | (sources == node)]
        wanted = rows[sources].mean(0) if sources.numel() else torch.zeros_like(rows[0])
        torch.testing.assert_close(pooled[node], wanted)


def test_the_last_received_row_replaces_a_missing_one() -> None:
    graph = graph_of()
    lazy = {"recipe": "logits", "away": 0.4, "missing": "last", "gate": False}
    trainer = trainer_of(graph, MODELS["gcn"], torch.arange(NODES), lazy=lazy)
    assert isinstance(trainer, ClientsProcedure)
    inputs = trainer._inputs_of(2)
    was, now = trainer._available(1), trainer._available(2)
    (pooled,) = [kept for name, kept in inputs.context.cache.items() if name == ("aggregate", MEAN)]
    stood_in = 0
    for node in (was & now).nonzero()[:, 0].tolist():
        used = []
        for source in graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist():
            if now[source] or source == node:
                used.append(trainer._rows[2][source])
            elif was[source]:
                used.append(trainer._rows[1][source])
                stood_in += 1
        wanted = torch.stack(used).mean(0) if used else torch.zeros_like(trainer._rows[1][0])
        torch.testing.assert_close(pooled[node], wanted)
    assert stood_in


def test_a_returning_client_computes_the_row_that_it_missed() -> None:
    graph = graph_of()
    lazy = {"recipe": "published", "away": 0.3, "gate": False}
    trainer = trainer_of(graph, {"kind": "sage", "norm": "layer"}, torch.arange(NODES), lazy=lazy)
    assert isinstance(trainer, ClientsProcedure)
    trainer._inputs_of(1)
    back = ~trainer._available(0) & trainer._available(1)
    assert back.any()
    x, block = trainer._rows[0], graph.block
    full = trainer.model.eval().passed(0, block.with_static(x), x)
    for node in back.nonzero()[:, 0].tolist():
        sources = graph.indices[graph.indptr[node] : graph.indptr[node + 1]].long()
        if bool(trainer._available(1)[sources].all()):  # then it missed nothing in the end
            torch.testing.assert_close(trainer._rows[1][node], full[node])


@pytest.mark.parametrize("lazy", [{}, {"local_epochs": 3}])
def test_isolated_nodes_and_clients_without_a_class_are_supported(lazy: dict[str, Any]) -> None:
    graph = graph_of()
    assert graph.y is not None
    owner = torch.where(
        graph.y == 2, 0, 1 + torch.arange(NODES) % 3
    )  # each class 2 at client 0, which has no other
    found = clients_of(graph, "sage", owner, lazy=lazy)
    assert found.outputs().isfinite().all()
    assert not found.context.block.indptr.diff()[-2:].any(), "two nodes are alone"
    assert sum(found.task.count.values()) == int((graph.y >= 0).sum())


def test_the_coordinator_applies_adam_to_the_mean_of_client_updates() -> None:
    graph, model = graph_of(), {"kind": "gcn", "dropout": 0.0, "layers": 1}
    settings: dict[str, Any] = {"lazy": {"local_epochs": 3, "local_lr": 0.2}, "weight_decay": 0.01}
    trainer, reference = (trainer_of(graph, model, FEW, **settings) for _ in range(2))
    train_epoch(trainer, 1)
    inputs, task, learned = reference._current_inputs(), trainer.task, reference._stage_parameters()
    before, total = flat_parameters(learned), torch.zeros_like(flat_parameters(learned))
    for client in range(7):
        rows = task.rows["train"][FEW[task.rows["train"]] == client]
        set_flat_parameters(learned, before)
        for _ in range(3 if rows.numel() else 0):
            out = reference.model.output(0, inputs.context, inputs.x_src)[rows]
            grad = flat_gradient(task.loss_of(out, rows) / rows.numel(), learned)
            total += grad * rows.numel() / task.count["train"]
            set_flat_parameters(learned, flat_parameters(learned) - 0.2 * grad)
    set_flat_parameters(learned, before)
    for parameter, grad in zip(learned, total.split([p.numel() for p in learned]), strict=True):
        parameter.grad = grad.view_as(parameter)
    torch.optim.Adam(learned, lr=reference.optimizer.config.lr, weight_decay=0.01).step()
    assert_same_weights(trainer, reference)


@pytest.mark.parametrize(
    "lazy", [{"participation": 0.5}, {"away": 0.4, "recipe": "logits", "missing": "last"}]
)
@pytest.mark.parametrize("stopped", [2, 4, 5])
def test_a_run_stopped_anywhere_and_resumed_ends_with_the_same_bytes(
    tmp_path: Path, lazy: dict[str, Any], stopped: int
) -> None:
    graph, owner, file = graph_of(), torch.arange(NODES), tmp_path / "latest.safetensors"
    wire = CommConfig(gradients="int8")
    left = iter([None] * (stopped - 1) + ["SIGTERM"])
    monitor = replace(QUIET, checkpoint=file, callbacks=Callbacks(should_stop=lambda: next(left, None)))
    trainer = trainer_of(graph, MODELS["gcn"], owner, lazy=lazy, wire=wire)
    assert loop_of(trainer).fit(monitor) == "SIGTERM"
    trainer = trainer_of(graph, MODELS["gcn"], owner, lazy=lazy, wire=wire)
    loop = loop_of(trainer)
    loop.resume(file)
    assert loop.fit(replace(monitor, callbacks=Callbacks())) == "done"
    wanted = clients_of(graph, "gcn", owner, lazy=lazy, wire=wire)
    for name, value in wanted.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], value), name
    assert isinstance(trainer, ClientsProcedure)
    sent = {label: count for label, count in trainer.sent.update().items() if count}
    assert sent == wanted.sent.update()
    assert trainer.metrics(0.0) == wanted.metrics(0.0)
    assert torch.equal(trainer.outputs(), wanted.outputs())


def test_clients_with_attention_step_separately_and_one_step_gives_the_joint_gradient() -> None:
    trainer = trainer_of(graph_of(), MODELS["gat"], FEW)
    assert isinstance(trainer, ClientsProcedure)
    trainer._current_inputs()
    trainer.model.train()
    rows = torch.arange(trainer.task.rows["train"].numel())
    wanted, loss = trainer._joint_gradient(1, rows)
    found, mean = trainer._local_updates(1, rows)
    torch.testing.assert_close(found, wanted)
    assert mean == pytest.approx(loss)
    again = clients_of(graph_of(), "gat", FEW, lazy={"local_epochs": 2}, wire=CommConfig(gradients="int8"))
    assert again.metrics(0.0)["rounds"] > 1


def test_missed_quorum_and_invalid_client_counts_are_refused() -> None:
    graph = graph_of()
    with pytest.raises(QuorumMissed, match=r"expected 60; lower lazy\.quorum"):
        trained(graph, MODELS["gcn"], torch.arange(NODES), lazy={"away": 0.5, "quorum": 1.0})
    with pytest.raises(ValueError, match="simulates clients in one process, but ranks is 2"):
        assign_clients(graph, "node", by="hash", ranks=2)
    with pytest.raises(ValueError, match="61 parts of 60 nodes"):
        assign_clients(graph, 61, by="hash", ranks=1)
    assert int(assign_clients(graph, 5, by="hash", ranks=1).max()) == 4
