"""Ranking scores and recency of pairs, against brute force over a matrix of all pairs."""

import numpy as np
import pytest
import torch

from siafu.native import Csr
from siafu.nn.link import LinkHead
from siafu.training.link.recency import Recency
from siafu.training.link.scores import check_all_pairs, mean_scores, rank_all, rank_by_memory

NODES, WIDTH = 17, 5


def brute_force(score: np.ndarray, true: np.ndarray) -> tuple[float, float, float]:
    """Average precision, MRR and AUC of a matrix of scores, by their definitions."""
    flat, label = score.ravel(), true.ravel()
    at_least = [(label[flat >= s].sum() / (flat >= s).sum()) for s in flat[label]]
    rows = []
    for row, mark in zip(score, true, strict=True):
        if mark.any():
            each = []
            for s in row[mark]:
                first, last = (row > s).sum() + 1, (row >= s).sum()
                each.append(np.mean([1 / rank for rank in range(first, last + 1)]))
            rows.append(np.mean(each))
    wins = [np.mean((s > flat[~label]) + 0.5 * (s == flat[~label])) for s in flat[label]]
    return float(np.mean(at_least)), float(np.mean(rows)), float(np.mean(wins))


def some_events(num: int = 60, steps: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(4)
    src, dst = torch.randint(0, NODES, (2, num), generator=draw)
    return src, dst, torch.randint(0, steps, (num,), generator=draw).sort().values


def remembered(step: int) -> np.ndarray:
    """The memory of pairs as a matrix, by its definition."""
    matrix = np.zeros((NODES, NODES))
    for u, v, when in zip(*(events.tolist() for events in some_events()), strict=True):
        if when <= step:
            matrix[u, v] += np.exp(-0.2 * (step - when))
            matrix[v, u] += np.exp(-0.2 * (step - when))
    return matrix


def memory() -> Recency:
    return Recency.from_events(*some_events(), num_nodes=NODES, num_steps=6, undirected=True)


@pytest.mark.parametrize("step", [0, 3, 5])
def test_recency_is_the_decayed_sum_of_past_edges(step: int) -> None:
    all_pairs = torch.cartesian_prod(torch.arange(NODES), torch.arange(NODES))
    found = memory().at(step, all_pairs[:, 0], all_pairs[:, 1])[:, 0].view(NODES, NODES)
    np.testing.assert_allclose(found, remembered(step), rtol=1e-6)
    csr, seen = memory().all_at(step)
    dense = torch.zeros(NODES, NODES)
    dense[torch.arange(NODES).repeat_interleave(csr.indptr.diff()), csr.indices.long()] = seen[:, 0]
    assert torch.equal(dense, found)


def test_recency_with_several_decays_and_without_events() -> None:
    src, dst, step = some_events()
    both = Recency.from_events(src, dst, step, num_nodes=NODES, num_steps=6, decays=(0.0, 1.0))
    assert both.at(5, src, dst).shape == (60, 2)
    counted = ((src == src[7]) & (dst == dst[7])).sum()
    assert both.at(5, src[7:8], dst[7:8])[0, 0] == counted
    empty = Recency.from_events(src[:0], dst[:0], step[:0], num_nodes=NODES, num_steps=6)
    assert not empty.at(5, src, dst).any()
    assert empty.all_at(5)[0].indices.numel() == 0


def positives() -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    draw = torch.Generator().manual_seed(9)
    src, dst = torch.randint(0, NODES, (2, 25), generator=draw)
    src, dst = torch.cat([src, src[:3]]), torch.cat([dst, dst[:3]])  # some occur twice
    true = np.zeros((NODES, NODES), dtype=bool)
    true[src, dst] = True
    return src, dst, true


def test_the_memory_alone_ranks_as_a_brute_force_over_all_pairs() -> None:
    src, dst, true = positives()
    found = rank_by_memory(src, dst, recency=memory().all_at(4)).scores()
    wanted = brute_force(remembered(4).astype(np.float32), true)
    assert (found.average_precision, found.reciprocal_rank, found.area) == pytest.approx(wanted)
    assert (found.positives, found.pairs) == (true.sum(), NODES**2)


@pytest.mark.parametrize("kind", ["mlp", "dot"])
@pytest.mark.parametrize("with_memory", [False, True])
def test_a_head_ranks_as_a_brute_force_over_all_pairs(kind: str, with_memory: bool) -> None:
    head = LinkHead(WIDTH, 6, kind=kind, memory_columns=int(with_memory))  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(1)
    head.reset(draw)
    h = torch.randn(NODES, WIDTH, generator=draw)
    recency = memory().all_at(4) if with_memory else None
    src, dst, true = positives()
    all_pairs = torch.cartesian_prod(torch.arange(NODES), torch.arange(NODES))
    seen = memory().at(4, all_pairs[:, 0], all_pairs[:, 1]) if with_memory else None
    score = head(h, all_pairs[:, 0], all_pairs[:, 1], seen).view(NODES, NODES).detach().numpy()
    counted = rank_all(head, h, src, dst, recency=recency)
    found = counted.scores()
    assert (found.average_precision, found.reciprocal_rank, found.area) == pytest.approx(
        brute_force(score, true)
    )
    shares = [rank_all(head, h, src, dst, recency=recency, rows=rows) for rows in (slice(6), slice(6, NODES))]
    assert counted.with_counts(shares[0].counts + shares[1].counts).scores() == found


def test_a_step_without_edges_is_left_out_of_the_means() -> None:
    src, dst, _ = positives()
    step = rank_by_memory(src, dst, recency=memory().all_at(4)).scores()
    none = rank_by_memory(src[:0], dst[:0], recency=memory().all_at(4)).scores()
    assert none.positives == 0
    assert mean_scores([step, none])["map"] == step.average_precision
    assert mean_scores([none]) == {
        "map": None,
        "mrr": None,
        "roc_auc": None,
        "hits_1": None,
        "hits_3": None,
        "hits_10": None,
        "hits_50": None,
    }


def test_classes_of_pairs_have_a_number_each_and_gradients_reach_all_parameters() -> None:
    head = LinkHead(WIDTH, 6, memory_columns=1, classes=3)
    head.reset(torch.Generator().manual_seed(0))
    src, dst, _ = positives()
    out = head(torch.randn(NODES, WIDTH, generator=torch.Generator()), src, dst, memory().at(5, src, dst))
    assert out.shape == (28, 3)
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in head.parameters())
    with pytest.raises(ValueError, match="set it to mlp"):
        LinkHead(WIDTH, 6, kind="dot", classes=3)


def test_too_many_pairs_are_refused_with_their_number_and_advice() -> None:
    check_all_pairs(5881, steps=28)
    with pytest.raises(ValueError, match=r"1e\+12 a step, 2e\+14 in 200 steps.*link.evaluation=1000"):
        check_all_pairs(10**6, steps=200)


def test_scores_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        rank_by_memory(
            torch.tensor([0]),
            torch.tensor([0]),
            recency=(
                Csr(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32)),
                torch.tensor([[torch.inf]]),
            ),
        )
