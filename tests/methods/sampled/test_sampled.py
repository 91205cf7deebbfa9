"""Sampled training: the same for any macrobatch and any number of ranks; exact where all neighbours are drawn."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import siafu
from siafu.comm import Comm
from siafu.comm.halo import Halo
from siafu.context import NO_EXCHANGE, AnyBlock, context_of
from siafu.data import community
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.methods.sampled.config import SampledConfig
from siafu.methods.sampled.procedure import SampledProcedure
from siafu.nn import Gnn, ModelConfig
from siafu.partition.cut import Part, cut, whole_part
from siafu.training.config import TrainConfig
from siafu.training.procedure import train_epoch
from siafu.training.task import task_of

NODES = 90
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "sage": {"kind": "sage", "norm": "layer"},
    "sage-max": {"kind": "sage", "reduce": "max"},
    "gin": {"kind": "gin", "residual": True},
    "gat": {"kind": "gat", "heads": 2},
    "gatv2": {"kind": "gatv2", "heads": 2},
    "jump": {"kind": "sage", "jump": "cat"},
    "mlp": {"kind": "mlp"},
}


def graph_of(*, weighted: bool = False) -> Graph:
    """90 nodes with loops, repeated edges and isolated nodes, most of which train."""
    draw = torch.Generator().manual_seed(2)
    edges = torch.randint(NODES - 2, (2, 900), generator=draw)
    edges = torch.cat([edges, edges[:, :20], torch.tensor([[3, 3], [3, 3]])], 1)
    split = torch.randint(4, (NODES,), generator=draw)
    made = Graph.from_edges(
        edges,
        x=torch.randn(NODES, 7, generator=draw),
        y=torch.randint(3, (NODES,), generator=draw),
        train_mask=split <= 1,
        val_mask=split == 2,
        test_mask=split == 3,
        edge_weight=torch.rand(edges.shape[1], generator=draw) if weighted else None,
        num_nodes=NODES,
    )
    assert made.x is not None
    return replace(made, x=made.x.double())


def parts_of(graph: Graph, ranks: int) -> list[Part]:
    if ranks == 1:
        return [whole_part(graph)]
    draw = torch.Generator().manual_seed(ranks)
    part_of_node = torch.randint(ranks, (NODES,), generator=draw).to(torch.int32)
    order = torch.randperm(NODES, generator=draw)
    return [one.part(graph) for one in cut(graph, part_of_node, parts=ranks, order=order)]


def trained(graph: Graph, ranks: int, model: dict[str, Any], **sampled: Any) -> list[dict[str, Any]]:
    """What each rank saw in two epochs."""
    parts = parts_of(graph, ranks)
    how = SampledConfig.model_validate({"batch_size": 16, "fanout": (3, 2), "macrobatch": 2} | sampled)

    def rank(comm: Comm) -> dict[str, Any]:
        part, config = parts[comm.rank], TrainConfig()
        exchange = Halo(comm, part.route, num_own=part.own.num_nodes) if comm.world_size > 1 else NO_EXCHANGE
        made = Gnn(ModelConfig.model_validate({"hidden": 6} | model), in_features=7, out_features=3)
        made.reset(torch.Generator().manual_seed(1))
        assert part.own.x is not None
        trainer = SampledProcedure(
            made.double(),
            part,
            part.context(exchange),
            part.own.x,
            task_of(part.own, config, comm),
            config,
            sampled=how,
            seed=4,
        )
        seen = []

        def remember(_: nn.Module, given: tuple[list[AnyBlock], Tensor]) -> None:
            blocks = [context_of(block).block for block in given[0]]
            seen.append([drawn_edges(block, block.node_id) for block in blocks])

        made.register_forward_pre_hook(remember)
        losses = [train_epoch(trainer, epoch) for epoch in (1, 2)]
        return {"losses": losses, "weights": dict(made.state_dict()), "edges": seen}

    return run_threads(rank, ranks=ranks, threads=1)


def drawn_edges(block: Any, node_id: Tensor) -> set[tuple[int, int]]:
    """By the user's ids."""
    return set(
        zip(node_id[block.indices.long()].tolist(), node_id[block.row_edge.long()].tolist(), strict=True)
    )


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("model", MODELS)
def test_several_ranks_train_what_one_trains(model: str, cache: bool) -> None:
    graph = graph_of()
    (wanted,) = trained(graph, 1, MODELS[model], cache_aggregate=cache)
    for ranks in (2, 4):
        each = trained(graph, ranks, MODELS[model], cache_aggregate=cache)
        for found in each:
            assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-9)
            for name, value in wanted["weights"].items():
                torch.testing.assert_close(found["weights"][name], value, rtol=1e-8, atol=1e-8)
        for place, blocks in enumerate(wanted["edges"]):
            for layer, edges in enumerate(blocks):
                assert set().union(*(found["edges"][place][layer] for found in each)) == edges


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_size_of_a_macrobatch_changes_no_bit(ranks: int, weighted: bool) -> None:
    graph = graph_of(weighted=weighted)
    one, *others = (
        trained(graph, ranks, MODELS["gcn"], macrobatch=size)[0] for size in (1, 3, 8, 32, "auto")
    )
    for other in others:
        assert one["losses"] == other["losses"]
        assert same_bits(one["weights"], other["weights"])


@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "gat"])
def test_drawing_all_neighbours_in_one_minibatch_is_a_step_of_full(model: str, tmp_path: Path) -> None:
    graph = community(300, degree=8, classes=3, features=12)
    assert graph.train_mask is not None
    how: dict[str, Any] = {"model": model, "epochs": 4, "patience": 0, "dropout": 0.0, "threads": 1}
    full = siafu.train(graph, out=tmp_path / "full", **how)
    every = {"fanout": (-1, -1), "batch_size": int(graph.train_mask.sum())}
    for cache in (True, False):
        out = tmp_path / f"sampled-{cache}"
        run = siafu.train(graph, out=out, method="sampled", cache_aggregate=cache, **every, **how)
        assert full.model is not None
        assert run.model is not None
        for name, value in full.model.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_sampled_training_learns_and_resumes_exactly(model: str, tmp_path: Path) -> None:
    graph = community(600, degree=10, classes=3, features=12)
    how: dict[str, Any] = {
        "model": model,
        "method": "sampled",
        "batch_size": 64,
        "fanout": (5, 5),
        "threads": 1,
    }
    whole_run = siafu.train(graph, out=tmp_path / "whole", epochs=8, **how)
    assert whole_run.test_accuracy > 0.8
    assert {"sample_seconds", "fetch_seconds", "compute_seconds"} <= whole_run.metrics.keys()
    from siafu.training.procedure import Callbacks

    left = iter([None, None, "SIGTERM"])
    stopped = siafu.train(
        graph,
        out=tmp_path / "cut",
        epochs=8,
        callbacks=Callbacks(should_stop=lambda: next(left, None)),
        **how,
    )
    assert not stopped.metrics["finished"]
    siafu.resume(tmp_path / "cut", graph=graph)
    one, other = (tmp_path / name / "model.safetensors" for name in ("whole", "cut"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"fanout": (5, 5, 5), "layers": 2},
            "sampled.fanout has 3 numbers, 5,5,5, but the model has 2 layers",
        ),
        ({"fanout": (0, 5)}, "numbers from 1 to 1000000, or -1 for all"),
        ({"macrobatch": 0}, "auto, or a number from 1"),
    ],
)
def test_wrong_sizes_are_told(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    graph = community(300, degree=8, classes=3, features=12)
    with pytest.raises(ValueError, match=re.escape(message)):
        siafu.train(graph, out=tmp_path / "run", method="sampled", **settings)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_minibatch_larger_than_the_training_set_is_all_of_it(ranks: int, tmp_path: Path) -> None:
    graph = community(300, degree=8, classes=3, features=12)
    assert graph.train_mask is not None
    count, weights = int(graph.train_mask.sum()), []
    for size in (count, 10**6):
        how: dict[str, Any] = {"method": "sampled", "batch_size": size, "ranks": ranks, "engine": "local"}
        siafu.train(graph, out=tmp_path / str(size), epochs=3, threads=1, **how)
        weights.append((tmp_path / str(size) / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_batch_norm_of_minibatches_is_refused_on_several_ranks(tmp_path: Path) -> None:
    graph = community(300, degree=8, classes=3, features=12)
    how: dict[str, Any] = {"method": "sampled", "batch_size": 50, "norm": "batch", "epochs": 1}
    assert siafu.train(graph, out=tmp_path / "one", **how).metrics["finished"]
    with pytest.raises(ValueError, match=r"model\.norm is batch, whose moments .* set it to layer"):
        siafu.train(graph, out=tmp_path / "two", ranks=2, engine="local", **how)


def test_a_minibatch_of_isolated_nodes_trains(tmp_path: Path) -> None:
    graph = Graph.from_edges(
        [[0], [1]],
        x=torch.randn(8, 3, generator=torch.Generator().manual_seed(0)),
        y=[0, 1, 0, 1, 0, 1, 0, 1],
        train_mask=[0, 0, 1, 1, 1, 1, 0, 0],
        val_mask=[1, 1, 0, 0, 0, 0, 0, 0],
        test_mask=[0, 0, 0, 0, 0, 0, 1, 1],
    )
    for model in ("gcn", "sage", "gat", "gin"):
        run = siafu.train(graph, out=tmp_path / model, model=model, method="sampled", batch_size=2, epochs=2)
        assert run.metrics["finished"]


class _Counting:
    """A reason to stop at the n-th time of asking."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> str | None:
        self.left -= 1
        return "SIGTERM" if self.left == 0 else None


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_is_stopped_within_an_epoch_goes_on_exactly(ranks: int, tmp_path: Path) -> None:
    graph = community(600, degree=10, classes=3, features=12)
    how: dict[str, Any] = {"batch_size": 32, "fanout": (5, 5), "macrobatch": 2, "threads": 1}
    how |= {"method": "sampled", "epochs": 2, "ranks": ranks, "engine": "local", "gradients": "int8"}
    siafu.train(graph, out=tmp_path / "whole", **how)
    from siafu.training.procedure import Callbacks

    callbacks = Callbacks(should_stop=_Counting(7))
    stopped = siafu.train(graph, out=tmp_path / "cut", callbacks=callbacks, **how)
    assert not stopped.metrics["finished"]
    assert stopped.metrics["epochs"] < 2
    run = siafu.resume(tmp_path / "cut", graph=graph)
    assert run.metrics["finished"]
    one, other = (tmp_path / name / "model.safetensors" for name in ("whole", "cut"))
    assert one.read_bytes() == other.read_bytes()
    events = [(tmp_path / name / "events.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    losses = [[event["loss"] for event in map(json.loads, lines) if "loss" in event] for lines in events]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("setting", [{"prefetch": False}, {"hot_mb": 0}, {"hot_mb": 1, "macrobatch": 1}])
def test_what_is_kept_and_done_ahead_changes_no_bit(setting: dict[str, Any]) -> None:
    graph = graph_of(weighted=True)
    (one, _), (other, _) = (trained(graph, 2, MODELS["gcn"], **how) for how in ({}, setting))
    assert one["losses"] == other["losses"]
    assert same_bits(one["weights"], other["weights"])


def test_shared_draws_are_the_same_in_all_minibatches_of_a_macrobatch() -> None:
    graph = graph_of()
    (apart,) = trained(graph, 1, MODELS["sage"], cache_aggregate=False, macrobatch=3)
    (shared,) = trained(graph, 1, MODELS["sage"], cache_aggregate=False, macrobatch=3, share_draws=True)

    def drawn_twice(seen: list[list[set[tuple[int, int]]]]) -> int:
        """How many nodes drew different in-edges for the first layer in two minibatches of a macrobatch."""
        first, second = (_by_target(blocks[0]) for blocks in seen[:2])
        return sum(first[node] != second[node] for node in first.keys() & second.keys())

    assert drawn_twice(apart["edges"]) > 0
    assert drawn_twice(shared["edges"]) == 0


def _by_target(edges: set[tuple[int, int]]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for source, target in edges:
        found.setdefault(target, set()).add(source)
    return found


@pytest.mark.parametrize(("precision", "off"), [("bf16", 2e-2), ("int8", 5e-2)])
def test_rows_may_travel_in_fewer_bytes(precision: str, off: float, tmp_path: Path) -> None:
    graph = community(600, degree=10, classes=3, features=40)
    how: dict[str, Any] = {"method": "sampled", "batch_size": 64, "fanout": (5, 5), "epochs": 4, "threads": 1}
    how |= {"ranks": 2, "engine": "local", "hot_mb": 0}
    exact, rounded = (
        siafu.train(graph, out=tmp_path / name, precision=name, **how) for name in ("fp32", precision)
    )
    fetched = [run.metrics["bytes_by_label"]["fetch"] for run in (exact, rounded)]
    assert fetched[1] < 0.7 * fetched[0]
    assert rounded.test_accuracy == pytest.approx(exact.test_accuracy, abs=off)


def test_rows_that_are_kept_are_not_fetched_again(tmp_path: Path) -> None:
    graph = community(600, degree=10, classes=3, features=40)
    how: dict[str, Any] = {"method": "sampled", "batch_size": 64, "fanout": (5, 5), "epochs": 6, "threads": 1}
    how |= {"ranks": 2, "engine": "local", "search": "off"}
    kept, again = (siafu.train(graph, out=tmp_path / str(mb), hot_mb=mb, **how) for mb in (64, 0))
    fetched = [run.metrics["bytes_by_label"]["fetch"] for run in (kept, again)]
    assert fetched[0] < fetched[1] / 3
    assert (tmp_path / "64/model.safetensors").read_bytes() == (tmp_path / "0/model.safetensors").read_bytes()


def test_a_budget_too_small_for_one_minibatch_says_what_it_needs(tmp_path: Path) -> None:
    graph = community(3000, degree=20, classes=3, features=400)
    how: dict[str, Any] = {
        "method": "sampled",
        "batch_size": 1000,
        "fanout": (-1, -1),
        "cache_aggregate": False,
    }
    with pytest.raises(
        ValueError, match=r"budget_mb is 1, but one minibatch takes up to \d+ MB; set it to \d+ or"
    ):
        siafu.train(graph, out=tmp_path / "run", layers=2, budget_mb=1, **how, ranks=2, engine="local")


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_shared_projection_is_that_of_the_macrobatchs_beginning(kind: str, ranks: int) -> None:
    graph, model = graph_of(), {"kind": kind, "heads": 2, "input_dropout": 0.0}
    plain, same, stale = (
        trained(graph, ranks, model, macrobatch=size, share_projection=shared)[0]
        for size, shared in ((1, False), (1, True), (4, True))
    )
    assert plain["losses"] == pytest.approx(same["losses"], rel=1e-9)  # one minibatch: nothing is old
    assert plain["losses"] != pytest.approx(stale["losses"], rel=1e-9)
    assert plain["losses"] == pytest.approx(stale["losses"], rel=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "sage"}, "share_projection is a setting of models gat and gatv2, but the model is sage"),
        ({"model": "gat"}, "set model.input_dropout to 0"),
        ({"model": "gat", "input_dropout": 0.0, "residual": True}, "model.residual to false"),
    ],
)
def test_what_cannot_be_shared_is_told(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    graph = community(300, degree=8, classes=3, features=12)
    with pytest.raises(ValueError, match=re.escape(message)):
        siafu.train(
            graph, out=tmp_path / "run", method="sampled", batch_size=50, share_projection=True, **settings
        )
