"""The frugal recipe as a whole: its candidates, its traffic and its model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from lazy_parts import Given, gathered, on_ranks
from torch import Tensor

from siafu.data import community
from siafu.graph import Graph
from siafu.methods.lazy.frugal import FrugalConfig, FrugalResult, train_frugal
from siafu.nn.propagated import Propagated
from siafu.training.config import TrainConfig

EXACT = FrugalConfig(sums="fp32")


def noisy(*, seed: int = 0, nodes: int = 400) -> Graph:
    """Nodes whose neighbours say more of their class than their features do."""
    graph = community(nodes, degree=8, classes=3, features=16, seed=seed)
    assert graph.x is not None
    noise = torch.randn(nodes, 16, generator=torch.Generator().manual_seed(seed))
    return replace(graph, x=graph.x + 2.5 * noise)


def strangers() -> Graph:
    """The same features and labels, but most edges join nodes of different classes."""
    graph = community(400, degree=8, classes=3, features=16, seed=0)
    assert graph.y is not None
    edges = torch.randint(400, (2, 6000), generator=torch.Generator().manual_seed(1))
    alike = graph.y[edges[0]] == graph.y[edges[1]]
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    return Graph.from_edges(edges[:, ~alike], x=graph.x, y=graph.y, **masks, undirected=True)


def frugal(given: Given, config: FrugalConfig = EXACT) -> FrugalResult:
    return train_frugal(given.comm, given.context, given.route, given.x, given.task, config)


def accuracy(graph: Graph, out: Tensor) -> float:
    assert graph.y is not None
    assert graph.test_mask is not None
    return float((out.argmax(1) == graph.y)[graph.test_mask].float().mean())


@pytest.fixture(scope="module")
def alone() -> FrugalResult:
    return on_ranks(noisy(), 1, frugal)[0]


def test_neighbours_improve_the_score_on_a_homophilous_graph(alone: FrugalResult) -> None:
    plain, *others = alone.tried
    assert plain.name == "head on inputs"
    assert max(each.score for each in others) > plain.score + 0.1
    assert accuracy(noisy(), alone.out) > plain.score + 0.05
    assert alone.sent == {}  # nobody is there to send to


@pytest.mark.parametrize("graph", [noisy(), strangers()], ids=["noisy", "strangers"])
def test_the_chosen_candidate_is_the_best_or_degree_heads_within_a_standard_error(graph: Graph) -> None:
    def work(given: Given) -> tuple[FrugalResult, float | None]:
        found = frugal(given)
        return found, given.task.score(found.out, "val")

    found, score = on_ranks(graph, 1, work)[0]
    scores = {each.name: each.score for each in found.tried}
    kept, best = found.tried[found.chosen], max(scores.values())
    assert score == pytest.approx(kept.score)
    assert (found.model.rounds > 0) == kept.name.endswith("smoothed")
    assert (found.model.knots > 1) == kept.name.startswith("D")
    near = best - (best * (1 - best) / int(torch.as_tensor(graph.val_mask).sum())) ** 0.5
    assert kept.score >= (near if kept.name.startswith("D") else best)
    assert accuracy(graph, found.out) > scores["head on inputs"] - 0.05


def test_refitting_follows_helpful_smoothing_and_degree_heads_follow_harmful_smoothing() -> None:
    def names(graph: Graph) -> set[str]:
        return {each.name for each in on_ranks(graph, 1, frugal)[0].tried}

    anew, degrees = {"head fitted anew", "C: the same, smoothed"}, "D: heads on hops by degree"
    alike = names(noisy())
    assert anew <= alike
    assert degrees not in alike
    unlike = names(replace(strangers(), y=torch.arange(400) % 3))  # of which nothing is to be learned
    assert degrees in unlike
    assert not anew & unlike


@pytest.mark.parametrize("ranks", [2, 4])
def test_several_ranks_find_the_result_of_one_rank(alone: FrugalResult, ranks: int) -> None:
    found = on_ranks(noisy(), ranks, lambda given: (given.node_id, frugal(given)))
    out = gathered(noisy(), [(node_id, each.out) for node_id, each in found])
    torch.testing.assert_close(out.softmax(1), alone.out.softmax(1), rtol=0, atol=0.02)
    assert float((out.argmax(1) == alone.out.argmax(1)).float().mean()) > 0.99
    for _, each in found:
        assert [(one.name, one.score) for one in each.tried] == [(one.name, one.score) for one in alone.tried]
        for mine, first in zip(each.model.parameters(), found[0][1].model.parameters(), strict=True):
            assert torch.equal(mine, first)


def test_the_model_computes_on_one_rank_the_outputs_found_on_four() -> None:
    graph = noisy()
    assert graph.x is not None

    def work(given: Given) -> tuple[Tensor, Tensor, Tensor, Propagated]:
        found = frugal(given, FrugalConfig())
        again = found.model(found.context, given.x)
        plain = found.model(given.context, given.x)  # whose halo does not pack
        assert torch.equal(found.out, again)
        assert torch.equal(found.out, plain)
        return given.node_id, found.out, again, found.model

    found = on_ranks(graph, 4, work)
    out = gathered(graph, [(node_id, rows) for node_id, rows, _, _ in found])
    loaded = Propagated.of_state(found[0][3].state_dict())
    torch.testing.assert_close(loaded(graph.block, graph.x), out, rtol=1e-4, atol=1e-4)


def test_sent_bytes_are_reported_by_label_and_by_candidate() -> None:
    def work(given: Given) -> tuple[dict[str, int], int, int]:
        before = given.comm.meter.total()
        found = frugal(given, FrugalConfig())
        tried = sum(each.sent_bytes for each in found.tried)
        return found.sent, tried, given.comm.meter.total() - before

    for sent, tried, total in on_ranks(noisy(), 2, work):
        assert sum(sent.values()) == total
        untold = sent["halo degrees"] + 1500  # and the bound of who is sure enough
        assert 0 <= total - tried < untold
        assert {"gradients ridge", "halo degrees", "halo features", "halo scores", "halo smoothing"} <= set(
            sent
        )


def test_fewer_bits_send_less_and_score_as_well(alone: FrugalResult) -> None:
    graph, wide = noisy(), FrugalConfig(sums="fp32", scores="fp32", probabilities="fp32")

    def work(given: Given, config: FrugalConfig) -> tuple[Tensor, Tensor, int]:
        found = frugal(given, config)
        halo = sum(count for label, count in found.sent.items() if label.startswith("halo s"))
        return given.node_id, found.out, halo

    few, many = (
        on_ranks(graph, 3, lambda given, of=config: work(given, of)) for config in (FrugalConfig(), wide)
    )
    assert 2.5 * sum(each[2] for each in few) < sum(each[2] for each in many)
    scores = [accuracy(graph, gathered(graph, [each[:2] for each in found])) for found in (few, many)]
    assert abs(scores[0] - scores[1]) < 0.05


def test_a_rank_without_training_nodes_and_a_class_of_a_single_rank_are_supported() -> None:
    graph = noisy()
    assert graph.train_mask is not None
    assert graph.y is not None
    owner = torch.where(graph.train_mask, graph.y == 2, 2 * torch.ones(400, dtype=torch.int64)).long()
    found = on_ranks(graph, 3, lambda given: (given.node_id, frugal(given).out), owner=owner)
    assert accuracy(graph, gathered(graph, found)) > 0.6


def test_classes_can_be_balanced() -> None:
    graph = noisy()
    found = on_ranks(
        graph,
        2,
        lambda given: (given.node_id, frugal(given).out),
        train=TrainConfig(class_weights="balanced"),
    )
    assert accuracy(graph, gathered(graph, found)) > 0.6


def test_candidates_can_be_chosen_by_other_metrics() -> None:
    graph = noisy(nodes=200)
    found = on_ranks(
        graph, 2, lambda given: (given.node_id, frugal(given).out), train=TrainConfig(metric="macro_f1")
    )
    assert accuracy(graph, gathered(graph, found)) > 0.5


def test_classes_are_weighed_by_hand() -> None:
    graph = noisy(nodes=200)

    def predicted(**train: Any) -> Tensor:
        found = on_ranks(
            graph,
            1,
            lambda given: (given.node_id, frugal(given).out),
            train=TrainConfig.model_validate(train),
        )
        return gathered(graph, found).argmax(1)

    plain, weighed = predicted(), predicted(class_weights={"0": 50})
    assert int((weighed == 0).sum()) > int((plain == 0).sum())


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"loss": "focal"}, "squared errors in closed form, but train.loss is focal"),
        ({"metric": "brier"}, "no probabilities, but train.metric is brier"),
    ],
)
def test_a_loss_and_metrics_that_it_cannot_use_are_refused(train: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_ranks(noisy(nodes=100), 1, frugal, train=TrainConfig.model_validate(train))


def test_other_label_kinds_and_missing_validation_nodes_are_refused() -> None:
    graph = noisy(nodes=100)
    with pytest.raises(ValueError, match="but there are none; give val_mask"):
        on_ranks(replace(graph, val_mask=None), 1, frugal)
    numbers = replace(graph, y=torch.randn(100, 2))
    with pytest.raises(ValueError, match="labels are of kind regression; set it to published"):
        on_ranks(numbers, 1, frugal)
