"""APPNP: PyG's propagation, and gradients."""

import warnings

import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.nn import ModelConfig, build_model
from siafu.nn.appnp import Appnp

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric.nn import APPNP

# 0 and 3 have loops, 1 a double edge, 6 no edge at all, 5 only out-edges.
EDGES = torch.tensor([[0, 1, 0, 3, 0, 3, 1, 0, 4, 2, 5], [0, 0, 1, 1, 1, 3, 4, 4, 4, 4, 1]])
GRAPH = Graph.from_edges(EDGES, num_nodes=7)
X = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))


def model_of(**settings: object) -> Appnp:
    config = ModelConfig.model_validate(
        {"kind": "appnp", "hidden": 8, "hops": 3, "teleport": 0.2, **settings}
    )
    model = build_model(config, in_features=5, out_features=4)
    model.reset(torch.Generator().manual_seed(1))
    assert isinstance(model, Appnp)
    return model.eval()


def mlp(model: Appnp, x: Tensor) -> Tensor:
    first, second = model.dense
    return (x @ first.weight + first.bias).relu() @ second.weight + second.bias  # type: ignore[operator]


def test_predictions_are_propagated_as_pyg_does() -> None:
    model = model_of()
    peer = APPNP(K=3, alpha=0.2)
    torch.testing.assert_close(model(GRAPH.block, X), peer(mlp(model, X), EDGES))
    torch.testing.assert_close(model(GRAPH.block.with_static(X), X), peer(mlp(model, X), EDGES))


def test_every_weight_gets_the_gradient_that_pyg_gives_it() -> None:
    model, target = model_of(), torch.arange(7) % 4
    found, wanted = {}, {}
    for grads, out in (
        (found, lambda: model(GRAPH.block, X)),
        (wanted, lambda: APPNP(K=3, alpha=0.2)(mlp(model, X), EDGES)),
    ):
        model.zero_grad()
        torch.nn.functional.cross_entropy(out(), target).backward()
        grads |= {name: value.grad for name, value in model.named_parameters()}
    assert all(grad is not None for grad in found.values())
    torch.testing.assert_close(found, wanted)


def test_embeddings_are_the_rows_that_the_last_dense_layer_reads() -> None:
    model = model_of()
    first = model.dense[0]
    wanted = (X @ first.weight + first.bias).relu()  # type: ignore[operator]
    torch.testing.assert_close(model.embed(GRAPH.block, X), wanted)
