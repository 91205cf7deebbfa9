"""Link prediction on a static graph: the split of edges, losses and ranks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from siafu.data import community
from siafu.graph import Graph
from siafu.nn.link import LinkHead
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.link.split import PairSplit, split_edges
from siafu.training.link.task import LinkTask, build_link_task

SHARES = (0.7, 0.1, 0.2)


@pytest.fixture(scope="module")
def small() -> Graph:
    return community(60, degree=5, classes=2, features=4)


def pairs_of(found: Tensor) -> set[tuple[int, int]]:
    return set(zip(*found.tolist(), strict=True))


def edges_of(graph: Graph) -> set[tuple[int, int]]:
    """By the user's own row numbers."""
    ends = torch.stack([graph.indices.long(), graph.block.row_edge.long()])
    return pairs_of(ends if graph.node_id is None else graph.node_id[ends])


def task_on(graph: Graph, split: PairSplit | None = None, **link: object) -> LinkTask:
    split = split_edges(graph, shares=SHARES, fold=0) if split is None else split
    head = LinkHead(4, 6)
    head.reset(torch.Generator().manual_seed(0))
    return build_link_task(
        graph, split, head, config=TrainConfig(), link=LinkConfig.model_validate(link), seed=3, fold=0
    )


def test_every_edge_is_in_one_split_and_messages_pass_over_training_edges_alone(small: Graph) -> None:
    split = split_edges(small, shares=SHARES, fold=0)
    sides = {name: pairs_of(pairs) for name, pairs in split.pairs.items()}
    assert sides["train"] | sides["val"] | sides["test"] == edges_of(small)
    assert sum(map(len, sides.values())) == small.num_edges
    assert edges_of(split.graph) == sides["train"]
    assert all({(v, u) for u, v in pairs} == pairs for pairs in sides.values())
    half = small.num_edges // 2
    assert [len(sides[name]) // 2 for name in ("val", "test")] == [round(0.1 * half), round(0.2 * half)]
    assert pairs_of(split_edges(small, shares=SHARES, fold=1).pairs["test"]) != sides["test"]


def test_a_split_depends_on_no_order_of_rows(small: Graph) -> None:
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2))
    one, other = (split_edges(graph, shares=SHARES, fold=0) for graph in (small, small.reordered(order)))
    assert all(torch.equal(one.pairs[name], other.pairs[name]) for name in one.pairs)
    assert edges_of(one.graph) == edges_of(other.graph)
    first, second = task_on(small, one), task_on(small.reordered(order), other)
    h = torch.randn(60, 4, generator=torch.Generator().manual_seed(5))
    assert first.training_loss(h, 2).item() == pytest.approx(
        second.training_loss(h[order], 2).item(), rel=1e-6
    )
    assert first.scores(h, "test") == pytest.approx(second.scores(h[order], "test"))


def test_a_given_split_is_kept_with_loops_and_weights() -> None:
    edges = torch.tensor([[0, 1, 2, 3, 3, 0, 0], [1, 2, 3, 0, 3, 1, 2]])
    graph = Graph.from_edges(
        edges, edge_weight=torch.arange(7.0), edge_split=[0, 1, 2, 0, 1, 2, 2], name="given"
    )
    split = split_edges(graph, shares=SHARES, fold=0)
    assert pairs_of(split.pairs["train"]) == {(0, 1), (3, 0)}  # (0, 1) is also given to test, and stays here
    assert (pairs_of(split.pairs["val"]), pairs_of(split.pairs["test"])) == ({(1, 2)}, {(2, 3), (0, 2)})
    assert edges_of(split.graph) == {(0, 1), (3, 0), (3, 3)}
    assert split.graph.edge_weight is not None
    assert sorted(split.graph.edge_weight.tolist()) == [0, 3, 4, 5]
    turned = graph.reordered(torch.tensor([2, 0, 3, 1]))
    assert pairs_of(split_edges(turned, shares=SHARES, fold=0).pairs["test"]) == {(2, 3), (0, 2)}


def test_a_split_without_training_edges_is_refused() -> None:
    graph = Graph.from_edges([[0, 1], [1, 0]], edge_split=[1, 2], name="two")
    with pytest.raises(ValueError, match="two: no edge between two nodes to learn from"):
        split_edges(replace(graph, edge_split=torch.tensor([1, 2], dtype=torch.uint8)), shares=SHARES, fold=0)
    with pytest.raises(ValueError, match=r"edge_split\[1\] is 3; expected 0 train, 1 validation or 2 test"):
        Graph.from_edges([[0, 1], [1, 0]], edge_split=[1, 3])


def test_scores_are_those_of_a_brute_force(small: Graph) -> None:
    task = task_on(small)
    h = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    all_pairs = torch.cartesian_prod(torch.arange(60), torch.arange(60)).T
    score = task.head(h, *all_pairs).view(60, 60).detach().numpy()
    known = edges_of(small) | {(u, u) for u in range(60)}
    ranks: dict[int, list[float]] = {}
    hits = []
    for u, v in sorted(pairs_of(task.pairs["test"])):
        others = [score[u, w] for w in range(60) if (u, w) not in known]
        rank = 1 + sum(other > score[u, v] for other in others)
        ranks.setdefault(u, []).append(1 / rank)
        hits.append(rank <= 10)
    found = task.scores(h, "test")
    assert found["mrr"] == pytest.approx(np.mean([np.mean(each) for each in ranks.values()]))
    assert found["hits_10"] == pytest.approx(np.mean(hits))
    negative = pairs_of(task._scored_negatives["test"])
    assert not negative & known
    against = [score[u, v] for u, v in task._scored_negatives["test"].T.tolist()]
    true = [score[u, v] for u, v in task.pairs["test"].T.tolist()]
    assert found["roc_auc"] == pytest.approx(np.mean([[p > n for n in against] for p in true]))
    every = np.array(true + against)
    precision = [sum(t >= s for t in true) / (every >= s).sum() for s in true]
    assert found["map"] == pytest.approx(np.mean(precision), rel=1e-6)


def test_the_protocol_names_whether_ranks_are_among_sampled_negatives(small: Graph) -> None:
    h = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    some, all_ = (task_on(small, evaluation=how).scores(h, "test") for how in (400, "all"))
    assert some["roc_auc"] == all_["roc_auc"]
    assert some["mrr"] is not None
    assert all_["mrr"] is not None
    assert some["mrr"] < all_["mrr"]  # among more, though of the same targets, ranks are lower
    assert LinkConfig(evaluation=400).protocol == "400 sampled negatives"
    assert LinkConfig().protocol == "all pairs"


@pytest.mark.parametrize("sampling", ["uniform", "smart"])
def test_negatives_of_an_epoch_are_no_edges_and_belong_to_their_edges(small: Graph, sampling: str) -> None:
    task = task_on(small, negatives=3, sampling=sampling)
    count = task.count["train"]
    drawn = task.training_negatives(torch.arange(count), 4)
    assert drawn.shape == (2, 3 * count)
    assert not pairs_of(drawn) & (pairs_of(task.pairs["train"]) | {(u, u) for u in range(60)})
    some = torch.tensor([5, 2])
    wanted = drawn.view(2, count, 3)[:, some].reshape(2, -1)
    assert torch.equal(task.training_negatives(some, 4), wanted)
    assert not torch.equal(task.training_negatives(some, 5), wanted)


def test_settings_that_do_not_fit_are_refused(small: Graph) -> None:
    split = split_edges(small, shares=SHARES, fold=0)
    with pytest.raises(ValueError, match=r"train\.metric is accuracy, which does not fit task link"):
        build_link_task(
            small,
            split,
            LinkHead(4, 6),
            config=TrainConfig(metric="accuracy"),
            link=LinkConfig(),
            seed=0,
            fold=0,
        )
    for bad in ({"evaluation": 0}, {"split": (0.5, 0.5, 0.5)}, {"decay": ()}, {"negatives": 0}):
        with pytest.raises(ValueError, match="Input should be"):
            LinkConfig.model_validate(bad)


@pytest.mark.parametrize("metric", ["map", "mrr", "hits_10"])
def test_an_epoch_ranks_edges_only_where_a_rank_is_the_metric(
    small: Graph, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    task = replace(task_on(small), metric=metric)
    h = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    before = {split: task.scores(h, split)[metric] for split in ("train", "val", "test")}
    unasked = "_ranks" if metric == "map" else "_compared"
    monkeypatch.setattr(LinkTask, unasked, lambda *_: pytest.fail("computed scores that nobody asked for"))
    assert task.evaluate(h)[0] == before
