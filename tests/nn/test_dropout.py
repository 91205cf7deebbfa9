"""Dropout: how much falls out, what the mask depends on and what it doesn't, and its gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from siafu import native
from siafu.graph import Block, Graph
from siafu.native import reference
from siafu.nn import Dropout, Gat, Gnn, ModelConfig
from siafu.nn.dropout import epilogue, mix, set_keys

pytestmark = pytest.mark.usefixtures("one_thread")


def rows(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def mask(*, rate: float = 0.5, seed: int = 0, step: int = 0, shape: tuple[int, int] = (100, 64)) -> Tensor:
    """Which of the elements stay."""
    drop = Dropout(rate)
    set_keys(drop, seed=seed, step=step)
    return drop(torch.ones(shape)) != 0


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.6, 0.95])
def test_elements_fall_out_at_the_rate_and_the_others_make_up_for_it(rate: float) -> None:
    drop = Dropout(rate)
    set_keys(drop, seed=3, step=1)
    out = drop(torch.ones(1000, 400))
    deviation = (rate * (1 - rate) / out.numel()) ** 0.5
    assert float((out == 0).double().mean()) == pytest.approx(rate, abs=4 * deviation)
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 1 / (1 - rate)]))
    for along in (0, 1):  # no row and no column falls out more than another
        share = (out == 0).double().mean(along)
        spread = (rate * (1 - rate) / out.shape[along]) ** 0.5
        assert float((share - rate).abs().max()) < 5 * spread


def test_neighbouring_elements_fall_out_independently() -> None:
    kept = mask(shape=(1000, 256)).double()
    for one, other in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept[:, 32:], kept[:, :-32])):
        assert float((one * other).mean()) == pytest.approx(0.25, abs=0.005)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_nothing_falls_out_without_a_rate_or_outside_of_training(rate: float) -> None:
    drop, x = Dropout(rate), rows(5, 7)
    assert torch.equal(drop(x), x) == (rate == 0)
    drop.eval()
    assert drop.now() == native.Dropout()
    assert torch.equal(drop(x), x)


@pytest.mark.parametrize("rate", [1.0, -0.1, 1.5, float("nan")])
def test_a_rate_outside_of_zero_to_one_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=f"dropout is {rate}; expected a rate from 0"):
        Dropout(rate)


def test_a_rate_just_below_one_drops_almost_everything() -> None:
    how = native.Dropout.of(1 - 1e-16, key=1)
    assert how == (1, 2**32 - 1, 2.0**32)
    assert torch.equal(
        native.epilogue(torch.ones(9, 9), bias=None, activation="none", dropout=how), torch.zeros(9, 9)
    )


def test_the_mask_changes_with_seed_step_and_place() -> None:
    first, second = Dropout(0.5), Dropout(0.5)
    set_keys(nn.ModuleList([first, second]), seed=0, step=0)
    masks = [mask(), mask(seed=1), mask(step=1), mask(seed=1, step=1), second(torch.ones(100, 64)) != 0]
    assert torch.equal(mask(), first(torch.ones(100, 64)) != 0)
    for place, one in enumerate(masks):
        for other in masks[:place]:
            assert float((one == other).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_the_mask_is_a_function_of_the_row_id_and_column_alone() -> None:
    drop, x, order = (
        Dropout(0.5),
        rows(50, 33),
        torch.randperm(50, generator=torch.Generator().manual_seed(1)),
    )
    wanted = drop(x)
    assert torch.equal(drop(x[order], order), wanted[order])
    assert torch.equal(drop(x, torch.arange(50)), wanted)
    assert torch.equal(drop(x[:20]), wanted[:20])  # other rows don't matter
    assert torch.equal(drop(x[:, :9]), wanted[:, :9])  # nor do other columns
    assert torch.equal(drop(x[10:20], torch.arange(10, 20)), wanted[10:20])


def test_a_reordered_graph_drops_the_same_elements() -> None:
    graph = Graph.from_edges([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]], x=rows(5, 6))
    moved = graph.reordered(torch.tensor([3, 0, 4, 1, 2]))
    model = Gnn(ModelConfig(hidden=8, layers=3), in_features=6, out_features=4)
    set_keys(model, seed=5, step=9)
    assert graph.x is not None
    assert moved.x is not None
    assert moved.node_id is not None
    out = model(graph.block, graph.x)
    torch.testing.assert_close(model(moved.block, moved.x), out[moved.node_id], rtol=1e-5, atol=1e-5)
    anonymous = model(Block(moved.indptr, moved.indices, 5), moved.x)
    assert not torch.allclose(anonymous, out[moved.node_id])


@settings(max_examples=30, deadline=None)
@given(
    key=st.integers(0, 2**64 - 1),
    rate=st.floats(0, 1, exclude_max=True),
    row_id=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    width=st.integers(1, 40),
)
def test_the_compiled_mask_is_that_of_plain_torch(
    key: int, rate: float, row_id: list[int], width: int
) -> None:
    how, ids = native.Dropout.of(rate, key), torch.tensor(row_id)
    x = torch.ones(len(row_id), width)
    found = native.epilogue(x, bias=None, activation="none", dropout=how, row_id=ids)
    assert torch.equal(found != 0, reference.dropout_mask(how, ids, width))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("activation", ["none", "relu", "elu"])
def test_gradients_are_those_of_the_plain_formula(
    activation: str, in_place: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native.core, "kernels", None)
    how, row_id = native.Dropout.of(0.4, key=77), torch.tensor([5, 0, 9, 2])
    kept = reference.dropout_mask(how, row_id, 7)
    act = {"none": lambda h: h, "relu": torch.relu, "elu": nn.functional.elu}[activation]
    values, grad = (rows(4, 7), rows(7, seed=1)), rows(4, 7, seed=2)
    leaves, plain = [[value.clone().requires_grad_() for value in values] for _ in range(2)]
    x = leaves[0] * 1  # what may be overwritten is no leaf
    out = epilogue(x, leaves[1], activation=activation, dropout=how, row_id=row_id, in_place=in_place)
    wanted = act(plain[0] + plain[1]) * kept * how.scale
    assert (out.data_ptr() == x.data_ptr()) == in_place
    torch.testing.assert_close(out, wanted)
    for one, other in zip(
        torch.autograd.grad(out, leaves, grad), torch.autograd.grad(wanted, plain, grad), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_gradients_are_those_of_finite_differences() -> None:
    how, x, bias = (
        native.Dropout.of(0.4, key=1),
        rows(3, 5, dtype=torch.float64),
        rows(5, dtype=torch.float64),
    )
    for activation in ("none", "relu", "elu"):
        assert torch.autograd.gradcheck(
            lambda x, bias, activation=activation: epilogue(x, bias, activation=activation, dropout=how),
            (x.requires_grad_(), bias.requires_grad_()),
        )


def test_the_mask_of_the_backward_pass_is_that_of_the_forward_pass() -> None:
    drop, x = Dropout(0.5), rows(20, 30).requires_grad_()
    set_keys(drop, seed=1, step=1)
    out = drop(x)
    set_keys(drop, seed=1, step=2)  # a later key changes nothing of what was computed
    out.sum().backward()
    assert torch.equal(x.grad, torch.where(out != 0, 2.0, 0.0))


def test_keys_differ_for_every_place_and_repeat_for_the_same_seed_and_step() -> None:
    model = Gnn(ModelConfig(kind="gat", hidden=8, heads=2, layers=3), in_features=4, out_features=3)
    drops = [module for module in model.modules() if isinstance(module, Dropout)]
    assert len(drops) == 3 + 3  # of rows, of attention
    assert sum(isinstance(layer, Gat) for layer in model.layers) == 3
    seen: set[int] = set()
    for seed in (0, 1, -1, 2**63):
        for step in (0, 1, 100):
            set_keys(model, seed=seed, step=step)
            keys = [drop.key for drop in drops]
            assert all(0 <= key < 2**64 for key in keys)
            seen.update(keys)
    assert len(seen) == 4 * 3 * 6
    set_keys(model, seed=2**63, step=100)
    assert [drop.key for drop in drops] == keys


def test_mix_is_splitmix64() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # the first two numbers of the generator seeded with 0
    assert mix(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
