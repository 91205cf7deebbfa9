"""GCNII: PyG's layer of the same name between two dense layers."""

import warnings

import pytest
import torch
from torch import Tensor

from siafu.comm import single_rank_comm
from siafu.graph import Graph
from siafu.nn import ModelConfig, build_model
from siafu.nn.gcn2 import Gcn2
from siafu.training.config import TrainConfig
from siafu.training.optimizer import DistributedOptimizer

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric.nn import GCN2Conv

# 0 and 3 have loops, 1 a double edge, 6 no edge at all, 5 only out-edges.
EDGES = torch.tensor([[0, 1, 0, 3, 0, 3, 1, 0, 4, 2, 5], [0, 0, 1, 1, 1, 3, 4, 4, 4, 4, 1]])
GRAPH = Graph.from_edges(EDGES, num_nodes=7)
X = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
LAYERS, ALPHA, THETA = 4, 0.2, 0.6


def model_of(**settings: object) -> Gcn2:
    given = {"kind": "gcn2", "hidden": 8, "layers": LAYERS, "teleport": ALPHA, "identity": THETA}
    model = build_model(ModelConfig.model_validate(given | settings), in_features=5, out_features=4)
    model.reset(torch.Generator().manual_seed(1))
    assert isinstance(model, Gcn2)
    return model.eval()


def peer(model: Gcn2, x: Tensor) -> Tensor:
    h = first = (x @ model.encoder.weight + model.encoder.bias).relu()
    for number, weight in enumerate(model.weights, 1):
        layer = GCN2Conv(8, ALPHA, THETA, number)
        layer.weight1 = weight
        h = layer(h, first, EDGES).relu()
    return h


def test_layers_agree_with_pyg() -> None:
    model = model_of()
    hidden = peer(model, X)
    torch.testing.assert_close(model.embed(GRAPH.block, X), hidden)
    torch.testing.assert_close(model(GRAPH.block, X), hidden @ model.decoder.weight + model.decoder.bias)


def test_every_weight_gets_the_gradient_that_pyg_gives_it() -> None:
    model, found, wanted = model_of(), {}, {}
    for grads, out in (
        (found, lambda: model(GRAPH.block, X)),
        (wanted, lambda: peer(model, X) @ model.decoder.weight + model.decoder.bias),
    ):
        model.zero_grad()
        torch.nn.functional.cross_entropy(out(), torch.arange(7) % 4).backward()
        grads |= {name: value.grad for name, value in model.named_parameters()}
    assert len(found) == LAYERS + 4
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dense", [None, 0.25])
def test_the_encoder_and_the_decoder_may_have_a_weight_decay_of_their_own(dense: float | None) -> None:
    model = model_of()
    config = TrainConfig(lr=0.1, weight_decay=1.0, dense_weight_decay=dense)
    groups = DistributedOptimizer(model, config, single_rank_comm()).adam.groups
    decay = {id(each): group.weight_decay for group in groups for each in group.parameters}
    for name, parameter in model.named_parameters():
        wanted = 1.0 if dense is None or name.startswith("weights") else dense
        assert decay[id(parameter)] == wanted
