"""The attention layers: gradients by finite differences, and PyG's layers of the same name."""

import warnings

import pytest
import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block, Graph
from siafu.native import Dropout
from siafu.nn.aggregates import Attention, AttentionV2, aggregate
from siafu.nn.gat import Gat
from siafu.nn.gatv2 import GatV2

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric.nn import GATConv, GATv2Conv

EDGES = torch.tensor([[0, 1, 0, 3, 0, 3, 3, 1, 0, 4, 2, 5], [0, 0, 0, 1, 1, 1, 3, 4, 4, 4, 4, 1]])
DROPOUT = Dropout.of(0.4, key=11)


def rectangular() -> Block:
    """Three destinations, five sources; destination 1 has a loop, 2 has no edge."""
    return Block(torch.tensor([0, 3, 5, 5]), torch.tensor([1, 3, 4, 1, 4], dtype=torch.int32), 5)


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_of_attend_are_those_of_finite_differences(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native.core, "kernels", None)
    block = rectangular()
    _ = block.transposed
    z_src = rows(5, 6 + 4, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: aggregate(Attention(2), block, z, dropout=DROPOUT), z_src)


@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_of_attend_v2_are_those_of_finite_differences(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native.core, "kernels", None)
    block = rectangular()
    z_src = rows(5, 12, dtype=torch.float64).requires_grad_()
    vector = rows(2, 3, seed=1, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z, v: aggregate(AttentionV2(2), block, z, weights=(v,), dropout=DROPOUT), (z_src, vector)
    )


def pyg_gat(layer: Gat) -> GATConv:
    width = layer.weight.shape[1] // layer.heads
    peer = GATConv(layer.in_features, width, heads=layer.heads, concat=layer.concat)
    with torch.no_grad():
        peer.lin.weight.copy_(layer.weight.T)
        peer.att_src.copy_(layer.score_src[None])
        peer.att_dst.copy_(layer.score_dst[None])
        peer.bias.copy_(layer.bias)
    return peer


def pyg_gatv2(layer: GatV2) -> GATv2Conv:
    width = layer.weight_src.shape[1] // layer.heads
    peer = GATv2Conv(layer.in_features, width, heads=layer.heads, concat=layer.concat)
    with torch.no_grad():
        peer.lin_l.weight.copy_(layer.weight_src.T)
        peer.lin_r.weight.copy_(layer.weight_dst.T)
        peer.lin_l.bias.copy_(layer.bias_src)
        peer.lin_r.bias.copy_(layer.bias_dst)
        peer.att.copy_(layer.vector[None])
        peer.bias.copy_(layer.bias)
    return peer


def run(layer: torch.nn.Module, *inputs: Tensor | Block, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient in x of its weighted sum; parameters get theirs."""
    x = x.clone().requires_grad_()
    out = layer(x, *inputs) if isinstance(layer, GATConv | GATv2Conv) else layer(*inputs, x)
    (out * rows(*out.shape, seed=9)).sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


def randomise(layer: torch.nn.Module) -> None:
    with torch.no_grad():
        for place, parameter in enumerate(layer.parameters()):
            parameter.copy_(rows(*parameter.shape, seed=place) * 0.5)


def close(one: Tensor | None, other: Tensor | None) -> None:
    assert one is not None
    assert other is not None
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "concat", "out_features"), [(1, True, 5), (4, True, 32), (3, False, 7)])
def test_gat_agrees_with_pyg(heads: int, concat: bool, out_features: int) -> None:
    layer = Gat(6, out_features, heads=heads, concat=concat)
    randomise(layer)
    peer, x = pyg_gat(layer), rows(6, 6, seed=3)
    found = run(layer, Graph.from_edges(EDGES, num_nodes=6).block, x=x)
    wanted = run(peer, EDGES, x=x)
    close(found[0], wanted[0])
    close(found[1], wanted[1])
    close(layer.weight.grad, peer.lin.weight.grad.T)
    close(layer.score_src.grad, peer.att_src.grad[0])
    close(layer.score_dst.grad, peer.att_dst.grad[0])
    close(layer.bias.grad, peer.bias.grad)


@pytest.mark.parametrize(("heads", "concat", "out_features"), [(1, True, 5), (4, True, 32), (3, False, 7)])
def test_gatv2_agrees_with_pyg(heads: int, concat: bool, out_features: int) -> None:
    layer = GatV2(6, out_features, heads=heads, concat=concat)
    randomise(layer)
    peer, x = pyg_gatv2(layer), rows(6, 6, seed=3)
    found = run(layer, Graph.from_edges(EDGES, num_nodes=6).block, x=x)
    wanted = run(peer, EDGES, x=x)
    close(found[0], wanted[0])
    close(found[1], wanted[1])
    close(layer.weight_src.grad, peer.lin_l.weight.grad.T)
    close(layer.weight_dst.grad, peer.lin_r.weight.grad.T)
    close(layer.bias_src.grad, peer.lin_l.bias.grad)
    close(layer.bias_dst.grad, peer.lin_r.bias.grad)
    close(layer.vector.grad, peer.att.grad[0])
    close(layer.bias.grad, peer.bias.grad)


@pytest.mark.parametrize("kind", [Gat, GatV2])
def test_a_part_of_the_graph_gives_the_rows_of_the_whole(kind: type[Gat] | type[GatV2]) -> None:
    layer, x = kind(4, 6, heads=2), rows(6, 4)
    whole = Graph.from_edges(EDGES, num_nodes=6).block
    part = Block(whole.indptr[:3], whole.indices[: whole.indptr[2]], 6)
    torch.testing.assert_close(layer(part, x), layer(whole, x)[:2])


@pytest.mark.parametrize("kind", [Gat, GatV2])
def test_attention_dropout_acts_in_training_alone(kind: type[Gat] | type[GatV2]) -> None:
    layer, plain = kind(4, 6, heads=2, attention_dropout=0.5), kind(4, 6, heads=2)
    block, x = Graph.from_edges(EDGES, num_nodes=6).block, rows(6, 4)
    assert not torch.equal(layer(block, x), plain(block, x))
    first = layer(block, x)
    assert torch.equal(layer(block, x), first)  # the key has not moved
    layer.attention_drop.key = 1
    assert not torch.equal(layer(block, x), first)
    layer.eval()
    assert torch.equal(layer(block, x), plain(block, x))


@pytest.mark.parametrize("kind", [Gat, GatV2])
def test_forward_adds_the_bias_and_reset_draws_from_the_generator(
    kind: type[Gat] | type[GatV2],
) -> None:
    layer, other = kind(4, 6, heads=2), kind(4, 6, heads=2)
    block, x = Graph.from_edges(EDGES, num_nodes=6).block, rows(6, 4)
    torch.nn.init.constant_(layer.bias, 0.5)
    assert torch.equal(layer(block, x), other(block, x) + 0.5)
    layer.reset(torch.Generator().manual_seed(7))
    assert not torch.equal(layer(block, x), other(block, x))
    other.reset(torch.Generator().manual_seed(7))
    assert torch.equal(layer(block, x), other(block, x))


@pytest.mark.parametrize("kind", [Gat, GatV2])
def test_heads_that_do_not_divide_the_width_are_refused(kind: type[Gat] | type[GatV2]) -> None:
    with pytest.raises(ValueError, match="out_features is 10, which 4 heads do not divide"):
        kind(4, 10, heads=4)
    with pytest.raises(ValueError, match="heads is 0"):
        kind(4, 10, heads=0)
    assert kind(4, 10, heads=4, concat=False).bias.shape == (10,)
