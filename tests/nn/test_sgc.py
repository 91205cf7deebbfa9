"""SGC: PyG's layer of the same name, and hops that are computed once."""

import warnings

import pytest
import torch

from siafu import native
from siafu.graph import Graph
from siafu.nn import ModelConfig, build_model
from siafu.nn.model import Model

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric.nn import SGConv

# 0 and 3 have loops, 1 a double edge, 6 no edge at all, 5 only out-edges.
EDGES = torch.tensor([[0, 1, 0, 3, 0, 3, 1, 0, 4, 2, 5], [0, 0, 1, 1, 1, 3, 4, 4, 4, 4, 1]])
GRAPH = Graph.from_edges(EDGES, num_nodes=7)
X = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))


def model_of(hops: int = 3, **settings: object) -> Model:
    config = ModelConfig.model_validate({"kind": "sgc", "layers": hops, **settings})
    model = build_model(config, in_features=5, out_features=4)
    model.reset(torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_sgc_agrees_with_pyg(hops: int, static: bool) -> None:
    model, peer = model_of(hops), SGConv(5, 4, K=hops)
    weights = dict(model.named_parameters())
    peer.lin.weight.data, peer.lin.bias.data = (
        weights["head.weight"].detach().t(),
        weights["head.bias"].detach(),
    )
    block = GRAPH.block.with_static(X) if static else GRAPH.block
    torch.testing.assert_close(model(block, X), peer(X, EDGES))


def test_the_hops_of_static_inputs_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, spmm = [], native.spmm

    def counted(*args: object, **kwargs: object) -> torch.Tensor:
        calls.append(1)
        return spmm(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(native, "spmm", counted)
    model, block = model_of(3), GRAPH.block.with_static(X)
    for _ in range(4):
        model(block, X).sum().backward()
    assert len(calls) == 3


def test_embeddings_are_the_inputs_after_all_hops() -> None:
    model = model_of(2).eval()
    wanted = SGConv(5, 5, K=2)
    wanted.lin = torch.nn.Identity()
    for block in (GRAPH.block, GRAPH.block.with_static(X)):
        torch.testing.assert_close(model.embed(block, X), wanted(X, EDGES))
