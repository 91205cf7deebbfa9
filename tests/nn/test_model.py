"""Whole models: every combination trains, draws its weights from a seed, and refuses what cannot be built."""

from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from siafu.graph import Graph
from siafu.nn import Gnn, ModelConfig, build_model
from siafu.nn.config import TEMPORAL, Kind
from siafu.nn.dropout import set_keys
from siafu.nn.kinds import MODELS
from siafu.nn.layers import LAYERS

KINDS = ["gcn", "sage", "gat", "gatv2", "gin", "mlp"]
NORMS = ["none", "layer", "batch"]
JUMPS = ["none", "cat", "max"]
# 0 has a loop, 6 no edge, 5 only out-edges.
EDGES = torch.tensor([[0, 1, 0, 3, 0, 3, 1, 0, 4, 2, 5], [0, 0, 1, 1, 1, 3, 4, 4, 4, 4, 1]])
NUM_NODES, WIDTH, HIDDEN, CLASSES = 7, 5, 8, 3


pytestmark = pytest.mark.usefixtures("one_thread")


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


GRAPH = Graph.from_edges(EDGES, x=rows(NUM_NODES, WIDTH))
X = rows(NUM_NODES, WIDTH)


def model_of(*, seed: int = 0, **settings: object) -> Gnn:
    config = ModelConfig.model_validate({"hidden": HIDDEN, "heads": 2, **settings})
    model = Gnn(config, in_features=WIDTH, out_features=CLASSES)
    model.reset(torch.Generator().manual_seed(seed))
    return model


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_combination_gives_every_parameter_a_gradient(kind: str, layers: int, static: bool) -> None:
    block = GRAPH.block.with_static(X) if static else GRAPH.block
    for norm, residual, jump in product(NORMS, [True, False], JUMPS):
        model = model_of(
            kind=kind, layers=layers, norm=norm, residual=residual, jump=jump, dropout=0.25, output_heads=2
        )
        set_keys(model, seed=1, step=1)
        out = model(block, X)
        assert out.shape == (NUM_NODES, CLASSES)
        nn.functional.cross_entropy(out, torch.arange(NUM_NODES) % CLASSES).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, (name, norm, residual, jump)
            assert parameter.grad.isfinite().all(), (name, norm, residual, jump)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_moves_the_output(kind: str) -> None:
    for residual, jump in product([True, False], JUMPS):
        model = model_of(kind=kind, layers=3, residual=residual, jump=jump, dropout=0.0).eval()
        before = model(GRAPH.block, X)
        for name, parameter in model.named_parameters():
            if name.endswith("score_dst"):  # what all edges of a destination share, softmax forgets
                continue
            kept = parameter.detach().clone()
            with torch.no_grad():
                parameter.add_(rows(*parameter.shape, seed=2))
            assert not torch.equal(model(GRAPH.block, X), before), (name, residual, jump)
            with torch.no_grad():
                parameter.copy_(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_learns_labels_that_its_inputs_tell(kind: str) -> None:
    model, y = model_of(kind=kind, dropout=0.0), torch.arange(NUM_NODES) % CLASSES
    x = torch.eye(NUM_NODES, WIDTH) + nn.functional.one_hot(y, WIDTH)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(GRAPH.block, x), y)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_without_dropout_training_and_evaluation_agree(kind: str, static: bool) -> None:
    block = GRAPH.block.with_static(X) if static else GRAPH.block
    model = model_of(kind=kind, layers=3, norm="layer", residual=True, dropout=0.0)
    torch.testing.assert_close(model.train()(block, X), model.eval()(GRAPH.block, X))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_acts_in_training_alone(kind: str) -> None:
    model = model_of(kind=kind, dropout=0.5)
    first = model(GRAPH.block, X)
    assert torch.equal(model(GRAPH.block, X), first)  # the keys have not moved
    set_keys(model, seed=0, step=1)
    assert not torch.equal(model(GRAPH.block, X), first)
    evaluated = model.eval()(GRAPH.block, X)
    set_keys(model, seed=0, step=2)
    assert torch.equal(model(GRAPH.block, X), evaluated)


def test_input_dropout_may_differ_from_that_between_layers() -> None:
    model = model_of(kind="mlp", input_dropout=0.0, dropout=0.5, layers=1)
    assert torch.equal(model(GRAPH.block, X), model.eval()(GRAPH.block, X))
    model = model_of(kind="mlp", dropout=0.5, layers=1)
    assert not torch.equal(model(GRAPH.block, X), model.eval()(GRAPH.block, X))


def test_a_two_layer_gcn_is_what_its_formula_says() -> None:
    model = model_of(dropout=0.0)
    dense = torch.zeros(NUM_NODES, NUM_NODES)
    dense.index_put_((EDGES[1], EDGES[0]), torch.ones(EDGES.shape[1]), accumulate=True)
    dense.diagonal().clamp_(min=1)
    scale = dense.sum(1).rsqrt()
    matrix = scale[:, None] * dense * scale
    first, second = model.layers
    hidden = torch.relu(matrix @ X @ first.weight + first.bias)
    torch.testing.assert_close(model.embed(GRAPH.block, X), hidden)
    torch.testing.assert_close(model(GRAPH.block, X), matrix @ hidden @ second.weight + second.bias)


@pytest.mark.parametrize("kind", KINDS)
def test_embed_gives_the_rows_that_the_last_layer_reads(kind: str) -> None:
    for layers, jump, width in [
        (1, "none", WIDTH),
        (3, "none", HIDDEN),
        (1, "cat", HIDDEN),
        (3, "cat", 3 * HIDDEN),
        (3, "max", HIDDEN),
    ]:
        model = model_of(kind=kind, layers=layers, jump=jump).eval()
        h = model.embed(GRAPH.block, X)
        assert h.shape == (NUM_NODES, width)
        last = model.head if model.head is not None else model.layers[-1]
        torch.testing.assert_close(last(GRAPH.block, h), model(GRAPH.block, X))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_draws_the_same_weights_also_after_training(kind: str, norm: str) -> None:
    model = model_of(kind=kind, layers=3, norm=norm, residual=True, jump="cat", seed=4)
    first = weights(model)
    assert same(first, weights(model_of(kind=kind, layers=3, norm=norm, residual=True, jump="cat", seed=4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(GRAPH.block, X).square().sum().backward()
    optimizer.step()
    assert not same(first, weights(model))
    model.reset(torch.Generator().manual_seed(5))
    assert not same(first, weights(model))
    model.reset(torch.Generator().manual_seed(4))
    assert same(first, weights(model))


def test_torchs_own_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    model = model_of(norm="batch", residual=True, jump="cat", layers=3, seed=4)
    model(GRAPH.block, X).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_features_stored_as_bfloat16_train(kind: str, static: bool) -> None:
    x = X.to(torch.bfloat16)
    block = GRAPH.block.with_static(x) if static else GRAPH.block
    for layers in (1, 2):
        model = model_of(kind=kind, layers=layers, residual=True)
        assert model.embed(block, x).dtype == torch.float32
        model(block, x).sum().backward()
        model.eval()
        torch.testing.assert_close(model(block, x), model(GRAPH.block, x.float()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_heads_that_do_not_divide_the_hidden_width_are_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=r"out_features is 10, which 4 heads do not divide.*model\.hidden"):
        model_of(kind=kind, hidden=10, heads=4)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"dropout": 1.0}, r"dropout[\s\S]*less than 1"),
        ({"dropout": -0.1}, r"dropout[\s\S]*greater than or equal to 0"),
        ({"input_dropout": 1.0}, r"input_dropout[\s\S]*less than 1"),
        ({"layers": 0}, r"layers[\s\S]*greater than or equal to 1"),
        ({"hidden": 0}, r"hidden[\s\S]*greater than or equal to 1"),
        ({"heads": 0}, r"heads[\s\S]*greater than or equal to 1"),
        ({"kind": "gnc"}, r"kind[\s\S]*'gcn'"),
        ({"norm": "group"}, r"norm[\s\S]*'batch'"),
        ({"hiden": 3}, r"hiden[\s\S]*not permitted"),
    ],
)
def test_settings_that_no_model_can_have_are_refused(settings: dict[str, object], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        ModelConfig.model_validate(settings)


def test_a_model_of_ones_own_is_not_built_from_settings() -> None:
    with pytest.raises(ValueError, match=r"model\.kind is custom: give your own module"):
        model_of(kind="custom")


@pytest.mark.parametrize(
    ("settings", "rate"), [({}, 0.5), ({"kind": "gat"}, 0.6), ({"kind": "gat", "dropout": 0.1}, 0.1)]
)
def test_attention_has_a_dropout_of_its_own_where_none_is_given(
    settings: dict[str, Any], rate: float
) -> None:
    assert ModelConfig.model_validate(settings).dropout == rate


@pytest.mark.parametrize("kind", ["appnp", "sgc", "gcn2"])
@pytest.mark.parametrize("option", [{"norm": "layer"}, {"residual": True}, {"jump": "max"}])
def test_options_that_a_model_does_not_have_are_refused(kind: str, option: dict[str, object]) -> None:
    config = ModelConfig.model_validate({"kind": kind, **option})
    with pytest.raises(
        ValueError, match=rf"model\.{next(iter(option))} is .*, but {kind} has no such option"
    ):
        build_model(config, in_features=WIDTH, out_features=CLASSES)


def test_every_kind_in_the_settings_can_be_built() -> None:
    kinds = {*get_args(Kind)} - {*TEMPORAL, "auto", "custom"}
    kinds = {kind for kind in kinds if isinstance(kind, str)}
    assert kinds == {*LAYERS, *MODELS}
