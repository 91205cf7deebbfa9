"""The layers without attention: gradients by finite differences, and PyG's layers of the same name."""

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from siafu import native
from siafu.graph import Block, Graph
from siafu.nn import Dense, Gcn, Gin, Layer, Sage
from siafu.nn.aggregates import gcn_in, max_in, mean_in, sum_in

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric.nn import GCNConv, GINConv, SAGEConv

# Edges go one way; 0 and 3 have loops, 1 a double edge, 6 no edge at all, 5 only out-edges.
EDGES = torch.tensor([[0, 1, 0, 3, 0, 3, 1, 0, 4, 2, 5], [0, 0, 1, 1, 1, 3, 4, 4, 4, 4, 1]])
PLAIN = EDGES[:, EDGES[0] != EDGES[1]]
NUM_NODES = 7
WIDTHS = [(5, 5), (3, 9), (9, 3)]  # the same, wider, narrower: which side is aggregated depends on it

LAYERS: dict[str, Callable[[int, int], Layer]] = {
    "gcn": Gcn,
    "sage": Sage,
    "sage-max": lambda i, o: Sage(i, o, reduce="max"),
    "gin": Gin,
    "gin-wide": lambda i, o: Gin(i, o, hidden=7),
    "dense": Dense,
}
AGGREGATES = {"sum": sum_in, "mean": mean_in, "gcn": gcn_in, "max": max_in}


pytestmark = pytest.mark.usefixtures("one_thread")


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def whole(edges: Tensor = EDGES, weight: Tensor | None = None) -> Block:
    return Graph.from_edges(edges, num_nodes=NUM_NODES, edge_weight=weight).block


def part() -> Block:
    """Three destinations, five sources; destination 1 has a loop, 2 has no edge."""
    return Block(torch.tensor([0, 3, 5, 5]), torch.tensor([1, 3, 4, 1, 4], dtype=torch.int32), 5)


def randomise(layer: nn.Module) -> None:
    with torch.no_grad():
        for place, parameter in enumerate(layer.parameters()):
            parameter.copy_(rows(*parameter.shape, seed=place) * 0.5)


def close(one: Tensor | None, other: Tensor | None) -> None:
    assert one is not None
    assert other is not None
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def run(call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient in x of its weighted sum; parameters get theirs."""
    x = x.clone().requires_grad_()
    out = call(x)
    (out * rows(*out.shape, seed=9)).sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


def agree(layer: Layer, block: Block, peer: Callable[[Tensor], Tensor]) -> None:
    """Outputs and input gradients are those of the peer; parameters of both then have their gradients."""
    x = rows(NUM_NODES, layer.in_features, seed=3)
    found, wanted = run(lambda rows: layer(block, rows), x), run(peer, x)
    close(found[0], wanted[0])
    close(found[1], wanted[1])


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("edges", [EDGES, PLAIN, EDGES[:, :0]], ids=["loops", "no loops", "no edges"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_agrees_with_pyg(widths: tuple[int, int], edges: Tensor, weighted: bool) -> None:
    weight = rows(edges.shape[1], seed=5).abs() + 0.1 if weighted else None
    layer, peer = Gcn(*widths), GCNConv(*widths)
    randomise(layer)
    with torch.no_grad():
        peer.lin.weight.copy_(layer.weight.T)
        peer.bias.copy_(layer.bias)
    agree(layer, whole(edges, weight), lambda x: peer(x, edges, weight))
    close(layer.weight.grad, peer.lin.weight.grad.T)
    close(layer.bias.grad, peer.bias.grad)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_of_several_loops_gcn_reads_the_last_as_pyg_does(weighted: bool, static: bool) -> None:
    edges = torch.cat([EDGES, torch.tensor([[0, 0, 6, 6, 2], [0, 0, 6, 6, 6]])], 1)
    weight = rows(edges.shape[1], seed=5).abs() + 0.1 if weighted else None
    layer, peer = Gcn(4, 6), GCNConv(4, 6)
    with torch.no_grad():
        peer.lin.weight.copy_(layer.weight.T)
    if not static:
        return agree(layer, whole(edges, weight), lambda x: peer(x, edges, weight))
    x = rows(NUM_NODES, 4)
    block = whole(edges, weight).with_static(x)
    return close(layer(block, x), peer(x, edges, weight))


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("edges", [EDGES, PLAIN, EDGES[:, :0]], ids=["loops", "no loops", "no edges"])
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_sage_agrees_with_pyg(widths: tuple[int, int], edges: Tensor, reduce: str) -> None:
    layer, peer = Sage(*widths, reduce=reduce), SAGEConv(*widths, aggr=reduce)  # type: ignore[arg-type]
    randomise(layer)
    with torch.no_grad():
        peer.lin_l.weight.copy_(layer.weight_neigh.T)
        peer.lin_l.bias.copy_(layer.bias)
        peer.lin_r.weight.copy_(layer.weight_self.T)
    agree(layer, whole(edges), lambda x: peer(x, edges))
    close(layer.weight_neigh.grad, peer.lin_l.weight.grad.T)
    close(layer.weight_self.grad, peer.lin_r.weight.grad.T)
    close(layer.bias.grad, peer.lin_l.bias.grad)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("edges", [EDGES, PLAIN, EDGES[:, :0]], ids=["loops", "no loops", "no edges"])
@pytest.mark.parametrize("hidden", [None, 2, 13])
def test_gin_agrees_with_pyg(widths: tuple[int, int], edges: Tensor, hidden: int | None) -> None:
    layer = Gin(*widths, hidden=hidden)
    randomise(layer)
    inner, outer = nn.Linear(widths[0], hidden or widths[1]), nn.Linear(hidden or widths[1], widths[1])
    peer = GINConv(nn.Sequential(inner, nn.ReLU(), outer), train_eps=True)
    with torch.no_grad():
        peer.eps.copy_(layer.eps)
        inner.weight.copy_(layer.weight_in.T)
        inner.bias.copy_(layer.bias_in)
        outer.weight.copy_(layer.weight_out.T)
        outer.bias.copy_(layer.bias)
    agree(layer, whole(edges), lambda x: peer(x, edges))
    assert layer.eps.grad is not None
    close(layer.eps.grad.reshape(peer.eps.shape), peer.eps.grad)
    assert inner.weight.grad is not None
    assert outer.weight.grad is not None
    close(layer.weight_in.grad, inner.weight.grad.T)
    close(layer.bias_in.grad, inner.bias.grad)
    close(layer.weight_out.grad, outer.weight.grad.T)
    close(layer.bias.grad, outer.bias.grad)


@settings(max_examples=25, deadline=None)
@given(edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40))
def test_any_graph_agrees_with_pyg(edges: list[tuple[int, int]]) -> None:
    pairs = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    gcn, peer = Gcn(4, 3), GCNConv(4, 3)
    with torch.no_grad():
        peer.lin.weight.copy_(gcn.weight.T)
    agree(gcn, whole(pairs), lambda x: peer(x, pairs))
    sage, peer = Sage(4, 3), SAGEConv(4, 3)
    with torch.no_grad():
        peer.lin_l.weight.copy_(sage.weight_neigh.T)
        peer.lin_r.weight.copy_(sage.weight_self.T)
        peer.lin_l.bias.zero_()
    agree(sage, whole(pairs), lambda x: peer(x, pairs))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", AGGREGATES)
def test_gradients_of_aggregates_are_those_of_finite_differences(
    name: str, weighted: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native.core, "kernels", None)
    block = whole(EDGES, rows(EDGES.shape[1], seed=5).abs() if weighted else None)
    x_src = rows(NUM_NODES, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: AGGREGATES[name](block, x), x_src)


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
def test_gradients_reach_the_sources_of_a_rectangular_block(name: str) -> None:
    x_src = rows(5, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: AGGREGATES[name](part(), x), x_src)


def test_aggregates_of_a_written_out_graph() -> None:
    block = Graph.from_edges(
        [[1, 2, 0, 2], [0, 0, 1, 2]], num_nodes=4, edge_weight=[1.0, 3.0, 2.0, 4.0]
    ).block
    x = torch.tensor([[1.0, -1.0], [2.0, -2.0], [4.0, -4.0], [8.0, -8.0]])
    assert sum_in(block, x).tolist() == [[14, -14], [2, -2], [16, -16], [0, 0]]
    assert mean_in(block, x).tolist() == [[3.5, -3.5], [1, -1], [4, -4], [0, 0]]
    assert max_in(block, x).tolist() == [[4, -2], [1, -1], [4, -4], [0, 0]]
    degree = torch.tensor([5.0, 3.0, 4.0, 1.0])  # of A + I; 2 has its own loop
    matrix = torch.tensor([[1.0, 1, 3, 0], [2, 1, 0, 0], [0, 0, 4, 0], [0, 0, 0, 1]])
    scale = degree.rsqrt()
    close(gcn_in(block, x), scale[:, None] * (matrix @ (scale[:, None] * x)))


@pytest.mark.parametrize("name", LAYERS)
def test_a_wide_and_a_narrow_input_give_the_same_layer(name: str) -> None:
    """Whether rows are projected or aggregated first is decided by the widths, and changes nothing."""
    layer = LAYERS[name](6, 6)
    randomise(layer)
    x, block = rows(NUM_NODES, 6), whole()
    outputs = []
    for pretended in (1, 100):  # below and above the width of what project gives
        layer.in_features = pretended
        layer.zero_grad()
        outputs.append([*run(lambda x: layer(block, x), x), *(p.grad for p in layer.parameters())])
    for one, other in zip(*outputs, strict=True):
        close(one, other)


@pytest.mark.parametrize(("in_features", "out_features", "aggregated"), [(3, 9, 3), (9, 3, 3), (5, 5, 5)])
@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_the_narrower_side_is_aggregated(
    name: str, in_features: int, out_features: int, aggregated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    spmm = native.spmm

    def counted(csr: native.Csr, x_src: Tensor, **scales: Tensor | None) -> Tensor:
        widths.append(x_src.shape[1])
        return spmm(csr, x_src, **scales)

    monkeypatch.setattr(native, "spmm", counted)
    run(lambda x: LAYERS[name](in_features, out_features)(whole(), x), rows(NUM_NODES, in_features))
    assert widths == [aggregated, aggregated]  # forward and backward


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", LAYERS)
def test_the_kept_aggregate_of_static_inputs_is_exact(
    name: str, widths: tuple[int, int], weighted: bool
) -> None:
    layer, x = LAYERS[name](*widths), rows(NUM_NODES, widths[0])
    randomise(layer)
    block = whole(EDGES, rows(EDGES.shape[1], seed=5).abs() if weighted else None)
    static = block.with_static(x)
    grads = []
    for one in (block, static, static):
        layer.zero_grad()
        out = layer(one, x)
        close(out, layer(block, x.clone()))
        (out * rows(*out.shape, seed=9)).sum().backward()
        grads.append([parameter.grad for parameter in layer.parameters()])
    for wanted, first, second in zip(*grads, strict=True):
        close(first, wanted)
        close(second, wanted)


@pytest.mark.parametrize("name", ["gcn", "sage", "sage-max", "gin"])
def test_static_inputs_are_aggregated_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for kernel in ("spmm", "segment_max", "segment_max_backward"):
        real = getattr(native, kernel)

        def counted(
            *args: object, real: Callable[..., object] = real, name: str = kernel, **kwargs: object
        ) -> object:
            calls.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(native, kernel, counted)
    x = rows(NUM_NODES, 9)
    block, layer = whole().with_static(x), LAYERS[name](9, 3)
    for _ in range(3):
        layer(block, x).sum().backward()
    assert len(calls) == 1
    layer(block, x.clone()).sum().backward()  # equal rows, but nobody said that they are static
    assert len(calls) > 1


def test_one_block_keeps_each_kind_of_aggregate() -> None:
    x = rows(NUM_NODES, 4)
    static = whole().with_static(x)
    for aggregate in [*AGGREGATES.values()] * 2:
        close(aggregate(static, x), aggregate(whole(), x))


def test_other_static_inputs_get_their_own_aggregate() -> None:
    x, layer = rows(NUM_NODES, 4), Gcn(4, 3)
    first = whole().with_static(x)
    kept = layer(first, x)
    second = first.with_static(2 * x)
    assert second.static_src is not None
    close(layer(second, second.static_src), 2 * kept)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", ["sage", "sage-max", "gin", "dense"])
def test_a_part_of_the_graph_gives_the_rows_of_the_whole(name: str, widths: tuple[int, int]) -> None:
    layer, x, block = LAYERS[name](*widths), rows(NUM_NODES, widths[0]), whole()
    randomise(layer)
    cut = Block(block.indptr[:3], block.indices[: block.indptr[2]], NUM_NODES)
    assert layer(cut, x).shape == (2, widths[1])
    close(layer(cut, x), layer(block, x)[:2])
    close(layer(cut.with_static(x), x), layer(block, x)[:2])


def test_gcn_refuses_a_block_whose_sources_have_no_degree() -> None:
    with pytest.raises(ValueError, match=r"3 destinations for 5 sources"):
        Gcn(4, 3)(part(), rows(5, 4))


@pytest.mark.parametrize("name", ["gcn", "sage", "sage-max", "gin"])
def test_a_wrong_number_of_rows_is_refused(name: str) -> None:
    for widths in WIDTHS:
        with pytest.raises(ValueError, match=r"x is \(6, \d\); expected 7 rows"):
            LAYERS[name](*widths)(whole(), rows(6, widths[0]))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("name", LAYERS)
def test_rows_stored_as_bfloat16_are_calculated_with_in_float32(
    name: str, widths: tuple[int, int], static: bool
) -> None:
    layer, x = LAYERS[name](*widths), rows(NUM_NODES, widths[0]).to(torch.bfloat16)
    block = whole().with_static(x) if static else whole()
    out = layer(block, x)
    assert out.dtype == torch.float32
    close(out, layer(whole(), x.float()))


@pytest.mark.parametrize("name", LAYERS)
def test_forward_adds_the_bias_and_reset_draws_from_the_generator(name: str) -> None:
    layer, other, block, x = LAYERS[name](4, 6), LAYERS[name](4, 6), whole(), rows(NUM_NODES, 4)
    assert torch.equal(layer(block, x), other(block, x))
    nn.init.constant_(layer.bias, 0.5)
    assert torch.equal(layer(block, x), other(block, x) + 0.5)
    layer.reset(torch.Generator().manual_seed(7))
    assert not torch.equal(layer(block, x), other(block, x))
    other.reset(torch.Generator().manual_seed(7))
    assert torch.equal(layer(block, x), other(block, x))
    assert torch.equal(layer.bias, torch.zeros(6))
