"""Heads whose weights depend on a node's degree: their equation, and a graph that other heads cannot learn."""

import pytest
import torch
from lazy_parts import Given, dense_s, gathered, on_ranks
from ranked import graph_of
from torch import Tensor

from siafu.graph import Graph
from siafu.methods.lazy.degree_heads import DegreeScaledRows, concat_hops, split_by_hop
from siafu.methods.lazy.frugal import FrugalConfig, train_frugal
from siafu.methods.lazy.ridge import LinearHead
from siafu.nn.propagated import Propagated, shares_of_knots

NODES = 300


def turned_by_degree() -> Graph:
    """Two classes, told by the sign of what neighbours have; for nodes of many neighbours it means the other class."""
    draw = torch.Generator().manual_seed(0)
    x = torch.nn.functional.one_hot(torch.randint(2, (NODES,), generator=draw)).float()
    degree = torch.where(torch.rand(NODES, generator=draw) < 0.5, 3, 41)
    dst = torch.arange(NODES).repeat_interleave(degree)
    src = torch.randint(NODES, (dst.numel(),), generator=draw)
    sums = torch.zeros(NODES).index_add_(0, dst, 2 * x[src, 0] - 1)
    split = torch.arange(NODES) % 3
    masks = {f"{name}_mask": split == place for place, name in enumerate(("train", "val", "test"))}
    return Graph.from_edges(torch.stack([src, dst]), x=x, y=((sums > 0) ^ (degree > 10)).long(), **masks)


def test_a_degree_is_interpolated_between_two_knots_and_the_last_knot_has_all_beyond() -> None:
    edges = torch.tensor([[1] * 3 + [2] * 7 + [3] * 63, [0] * 3 + [1] * 7 + [2] * 63])
    block = Graph.from_edges(edges, num_nodes=4).block
    wanted = torch.tensor([[0, 1, 0], [0, 0.5, 0.5], [0, 0, 1], [1, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(shares_of_knots(block, 3), wanted)


def test_the_model_with_knots_equals_its_equation() -> None:
    graph, draw = graph_of(), torch.Generator().manual_seed(1)
    weight = torch.randn(2, 9, 8, generator=draw, dtype=torch.float64)
    bias = torch.randn(8, generator=draw, dtype=torch.float64)
    assert graph.x is not None
    s, x = dense_s(graph), graph.x / graph.x.norm(dim=1, keepdim=True).clamp(min=1e-30)
    wide = (s @ x @ weight[0] + s @ s @ x @ weight[1] + bias).view(-1, 2, 4)
    wanted = torch.einsum("nb,nbc->nc", shares_of_knots(graph.block, 2), wide)
    model = Propagated({1: weight[0], 2: weight[1]}, bias, knots=2)
    torch.testing.assert_close(model(graph.block, graph.x), wanted, rtol=1e-6, atol=1e-6)
    again = Propagated.of_state(model.state_dict())
    assert torch.equal(again(graph.block, graph.x), model(graph.block, graph.x))


def test_a_head_on_degree_scaled_hop_features_is_that_model() -> None:
    graph, draw = graph_of(), torch.Generator().manual_seed(2)
    assert graph.x is not None
    s, x = dense_s(graph), graph.x.double() / graph.x.norm(dim=1, keepdim=True).clamp(min=1e-30)
    rows, scales, shares = [s @ x, s @ s @ x], [2.0, 3.0], shares_of_knots(graph.block, 3)
    weight = torch.randn(3 * (2 * 9 + 1), 4, generator=draw, dtype=torch.float64)
    head = LinearHead(weight, torch.randn(4, generator=draw, dtype=torch.float64), 1.0, 1, 0.0)
    every = torch.arange(graph.num_nodes)
    wanted = DegreeScaledRows(concat_hops(rows, scales), shares, every).matmul(weight) + head.bias
    weights, bias = split_by_hop(head, scales, knots=3)
    model = Propagated(weights, bias, knots=3)
    torch.testing.assert_close(model.scores(graph.block, x), wanted)


@pytest.mark.parametrize("ranks", [1, 3])
def test_only_degree_heads_learn_labels_whose_sign_depends_on_degree(ranks: int) -> None:
    graph = turned_by_degree()

    def work(given: Given) -> tuple[Tensor, Tensor, dict[str, float], int]:
        found = train_frugal(
            given.comm, given.context, given.route, given.x, given.task, FrugalConfig(sums="fp32")
        )
        assert torch.equal(found.out, found.model(found.context, given.x))
        return given.node_id, found.out, {each.name: each.score for each in found.tried}, found.model.knots

    found = on_ranks(graph, ranks, work)
    scores = found[0][2]
    assert scores.pop("D: heads on hops by degree") > max(scores.values()) + 0.2
    out = gathered(graph, [each[:2] for each in found])
    right = out.argmax(1) == graph.y
    assert float(right[torch.as_tensor(graph.test_mask)].float().mean()) > 0.85
    assert {each[3] for each in found} == {4}
