"""Hop features, smoothing and self-training over ranks against dense matrices on the whole graph."""

import pytest
import torch
from lazy_parts import Given, dense_s, gathered, on_ranks
from ranked import graph_of
from torch import Tensor

from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.data import community
from siafu.methods.lazy.hop_features import compute_hop_features
from siafu.methods.lazy.self_training import confident_targets
from siafu.methods.lazy.smoothing import search_smoothing, smoothing_rounds


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 4])
def test_hop_features_equal_those_of_the_whole_graph(ranks: int, hops: int, weighted: bool) -> None:
    graph = graph_of(weighted=weighted)
    assert graph.x is not None

    def work(given: Given) -> tuple[Tensor, list[Tensor]]:
        wanted = given.task.rows["train"].flip(0)  # in any order
        rows = compute_hop_features(
            given.comm, given.context, given.route, given.x, wanted=wanted, hops=hops, precision="fp32"
        )
        return given.node_id[wanted], rows

    for node_id, found in on_ranks(graph, ranks, work):
        assert len(found) == hops
        whole = graph.x
        for rows in found:
            whole = dense_s(graph) @ whole
            torch.testing.assert_close(rows, whole[node_id], rtol=1e-6, atol=1e-8)


def test_hop_features_are_rounded_on_their_own_rank_too() -> None:
    graph = graph_of()
    assert graph.x is not None

    def work(given: Given) -> tuple[Tensor, Tensor]:
        every = torch.arange(given.context.num_dst)
        return given.node_id, compute_hop_features(
            given.comm, given.context, given.route, given.x, wanted=every, hops=2, precision="int4"
        )[1]

    s = dense_s(graph)
    wanted = s @ quantize_dequantize(s @ graph.x, "int4")
    for ranks in (1, 3):
        torch.testing.assert_close(gathered(graph, on_ranks(graph, ranks, work)), wanted)


def test_only_requested_rows_are_sent() -> None:
    graph = community(400, degree=6, classes=3, features=50, seed=0)

    def sent(given: Given, wanted: Tensor) -> int:
        compute_hop_features(
            given.comm, given.context, given.route, given.x, wanted=wanted, hops=1, precision="fp32"
        )
        return given.comm.meter.sent["halo features"]

    few = on_ranks(graph, 3, lambda given: sent(given, torch.arange(2)))
    every = on_ranks(graph, 3, lambda given: sent(given, torch.arange(given.context.num_dst)))
    assert sum(few) < 0.2 * sum(every)


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_smoothing_is_the_same_on_any_number_of_ranks(precision: Precision) -> None:
    graph = graph_of()
    p = torch.rand(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1)

    def work(given: Given) -> tuple[Tensor, Tensor]:
        passed = smoothing_rounds(given.context, p[given.node_id], share=0.1, precision=precision)
        return given.node_id, [next(passed) for _ in range(3)][-1]

    wanted = p
    for _ in range(3):
        wanted = 0.9 * dense_s(graph) @ quantize_dequantize(wanted, precision) + 0.1 * p
    for ranks in (1, 2, 5):
        torch.testing.assert_close(gathered(graph, on_ranks(graph, ranks, work)), wanted)


def test_search_finds_the_best_rounds_and_leaves_a_temperature_without_improvement() -> None:
    graph = community(300, degree=8, classes=3, features=12, seed=2)
    assert graph.x is not None
    assert graph.y is not None
    noise = torch.rand(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = torch.nn.functional.one_hot(graph.y, 3) * 0.3 + noise

    def work(given: Given) -> tuple[float, int, float, int]:
        found = search_smoothing(
            given.context,
            z[given.node_id],
            given.task,
            temperatures=(8.0, 0.0),
            rounds=6,
            patience=2,
            share=0.1,
            precision="int8",
        )
        assert given.task.score(found.q, "val") == pytest.approx(found.score)
        return found.temperature, found.rounds, found.score, given.comm.meter.sent.get("scores", 0)

    alone = on_ranks(graph, 1, work)[0]
    assert alone[0] == 8.0
    assert alone[1] >= 1
    plain = float((z.argmax(1) == graph.y)[graph.val_mask].float().mean())
    assert alone[2] > plain
    assert {each[:3] for each in on_ranks(graph, 3, work)} == {alone[:3]}


@pytest.mark.parametrize("ranks", [1, 3])
def test_self_training_selects_the_most_confident_nodes_of_all_ranks_but_no_validation_nodes(
    ranks: int,
) -> None:
    graph = community(500, degree=4, classes=3, features=4, seed=0)
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    assert graph.y is not None
    q = torch.rand(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = (5 * q).softmax(1)

    def work(given: Given) -> tuple[Tensor, Tensor]:
        rows, target = confident_targets(
            3 * q[given.node_id], given.task, share=0.5, among=torch.ones(given.x.shape[0]).bool()
        )
        return given.node_id[rows], target

    found = on_ranks(graph, ranks, work)
    ids, targets = torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])
    chosen = torch.zeros(500, dtype=torch.bool)
    chosen[ids] = True
    assert ids.numel() == int(chosen.sum())
    assert not bool((chosen & graph.val_mask).any())
    assert bool(chosen[graph.train_mask].all())
    free = ~graph.train_mask & ~graph.val_mask
    sure = q.amax(1)
    assert 0.45 * int(free.sum()) <= int((chosen & free).sum()) <= 0.5 * int(free.sum())
    assert float(sure[chosen & free].min()) >= float(sure[~chosen & free].max()) - 1 / 256
    known = graph.train_mask[ids]
    assert torch.equal(targets[known].argmax(1), graph.y[ids[known]])
    torch.testing.assert_close(targets[~known], q[ids[~known]])
