"""Temporal layers and models against their formulas, in one segment and in several, with nodes that come and go."""

from collections.abc import Callable

import pytest
import torch
from dense_reference import IN, NUM_NODES, NUM_STEPS, cut, plain, presence, rows, steps
from torch import Tensor, nn

from siafu.nn import ModelConfig
from siafu.nn.temporal import Span, TemporalLayer, TemporalModel, build_temporal, single_rank, span_alone
from siafu.nn.temporal.evolve import EvolveGcnH, EvolveGcnO
from siafu.nn.temporal.mingru import MinGru
from siafu.nn.temporal.recurrent import CdGcn, GcnGru
from siafu.nn.temporal.tmgcn import TmGcn

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS: dict[str, Callable[[int, int], TemporalLayer]] = {
    "cd-gcn": CdGcn,
    "tm-gcn": lambda i, o: TmGcn(i, o, band=3),
    "evolvegcn-o": EvolveGcnO,
    "evolvegcn-h": EvolveGcnH,
    "gcn-gru": GcnGru,
    "mingru": MinGru,
}
EVERY = pytest.mark.parametrize("kind", LAYERS)


def layer_of(kind: str, in_features: int = IN, out_features: int = 4) -> TemporalLayer:
    layer = LAYERS[kind](in_features, out_features).double()
    randomise(layer)
    return layer


def model_of(kind: str) -> TemporalModel:
    """Two layers, wider then narrower."""
    return TemporalModel([layer_of(kind, IN, 5), layer_of(kind, 5, 2)])


def randomise(module: nn.Module) -> None:
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            parameter.copy_(rows(*parameter.shape, seed=place) * 0.7)


def whole(*, masked: bool = False, static: bool = False) -> Span:
    x = rows(NUM_NODES, IN) if static else rows(NUM_STEPS, NUM_NODES, IN)
    return span_alone(steps(), x, present=presence() if masked else None)


def gradients(model: nn.Module, out: Tensor) -> list[Tensor]:
    loss = (out * rows(*out.shape, seed=9)).sum()
    return [
        torch.zeros(0) if g is None else g
        for g in torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    ]


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@EVERY
@pytest.mark.parametrize("widths", [(IN, IN), (IN, 5), (IN, 2)], ids=["same", "wider", "narrower"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "some"])
def test_a_layer_computes_its_formulas(kind: str, widths: tuple[int, int], masked: bool) -> None:
    layer, span = layer_of(kind, *widths), whole(masked=masked)
    assert isinstance(span.x, Tensor)
    x = span.x.requires_grad_()
    span = span_alone(span.steps, x, present=span.present)
    out, _ = layer(span, layer.begin(NUM_NODES), single_rank)
    expected = plain(layer, list(span.steps), x, span.present)
    close(out.x, expected)
    given = [x, *layer.parameters()]
    weight = rows(*expected.shape, seed=8)
    for one, other in zip(
        torch.autograd.grad((out.x * weight).sum(), given),
        torch.autograd.grad((expected * weight).sum(), given),
        strict=True,
    ):
        close(one, other)


@EVERY
def test_in_single_precision_it_agrees_to_five_digits(kind: str) -> None:
    layer, span = layer_of(kind), whole()
    assert isinstance(span.x, Tensor)
    expected = plain(layer, list(span.steps), span.x)
    layer.float()
    out, _ = layer(span_alone(steps(), span.x.float()), layer.begin(NUM_NODES), single_rank)
    torch.testing.assert_close(out.x.double(), expected, rtol=1e-5, atol=1e-5)


@EVERY
def test_a_second_backward_pass_gives_the_same_gradients(kind: str) -> None:
    layer, x = layer_of(kind).float(), rows(NUM_STEPS, NUM_NODES, IN).float().requires_grad_()
    out, _ = layer(span_alone(steps(), x), layer.begin(NUM_NODES), single_rank)
    given, loss = [x, *layer.parameters()], out.x.square().sum()
    first = [each.clone() for each in torch.autograd.grad(loss, given, retain_graph=True)]
    for one, other in zip(first, torch.autograd.grad(loss, given), strict=True):
        assert torch.equal(one, other)


@EVERY
@pytest.mark.parametrize("masked", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("static", [False, True], ids=["inputs-by-step", "static-inputs"])
@pytest.mark.parametrize("ends", [[3, 7], [1, 2, 5, 6, 7]], ids=["two-segments", "five-segments"])
def test_several_segments_give_the_outputs_and_gradients_of_one(
    kind: str, masked: bool, static: bool, ends: list[int]
) -> None:
    model, span = model_of(kind), whole(masked=masked, static=static)
    expected, last = model(span, model.begin(NUM_NODES), single_rank)
    state, outputs, begin = model.begin(NUM_NODES), [], 0
    for end in ends:
        out, state = model(cut(span, begin, end), state, single_rank)
        outputs.append(out)
        begin = end
    out = torch.cat(outputs)
    close(out, expected)
    for one, other in zip(state, last, strict=True):
        close(one, other)
    for one, other in zip(gradients(model, out), gradients(model, expected), strict=True):
        close(one, other)


@EVERY
@pytest.mark.parametrize("static", [False, True], ids=["inputs-by-step", "static-inputs"])
def test_cached_aggregated_inputs_give_the_same(kind: str, static: bool) -> None:
    model, span = model_of(kind), whole(static=static)
    expected, _ = model(span, model.begin(NUM_NODES), single_rank)
    state, kept = model.begin(NUM_NODES), []
    for begin, end in [(0, 3), (3, 7)]:
        m, state = model.aggregate_inputs(cut(span, begin, end), state)
        kept.append(m)
    out, _ = model(span._replace(m=torch.cat(kept)), model.begin(NUM_NODES), single_rank)
    close(out, expected)
    for one, other in zip(gradients(model, out), gradients(model, expected), strict=True):
        close(one, other)


@EVERY
def test_outputs_of_absent_nodes_are_zero(kind: str) -> None:
    layer, span = layer_of(kind), whole(masked=True)
    out, _ = layer(span, layer.begin(NUM_NODES), single_rank)
    assert isinstance(out.x, Tensor)
    assert span.present is not None
    assert (out.x[~span.present] == 0).all()
    assert (out.x[span.present] != 0).any(1).float().mean() > 0.5


@pytest.mark.parametrize("kind", ["cd-gcn", "gcn-gru", "mingru"])
def test_an_absent_node_keeps_its_state(kind: str) -> None:
    layer, span = layer_of(kind), whole()
    state = [rows(*each.shape, seed=3) for each in layer.begin(NUM_NODES)]
    nobody = torch.zeros(NUM_STEPS, NUM_NODES, dtype=torch.bool)
    _, after = layer(span._replace(present=nobody, present_nodes=nobody), state, single_rank)
    for one, other in zip(after, state, strict=True):
        assert torch.equal(one, other)


@EVERY
def test_inputs_may_be_a_list_by_step(kind: str) -> None:
    model, span = model_of(kind), whole()
    expected, _ = model(span, model.begin(NUM_NODES), single_rank)
    out, _ = model(span._replace(x=list(span.x)), model.begin(NUM_NODES), single_rank)
    close(out, expected)


@EVERY
def test_a_config_builds_a_model_whose_parameters_depend_on_the_seed_alone(kind: str) -> None:
    config = ModelConfig(kind=kind, layers=3, hidden=6, band=2, top_k=4)
    model = build_temporal(config, in_features=IN)
    assert [(each.in_features, each.out_features) for each in model.layers] == [(IN, 6), (6, 6), (6, 6)]
    model.reset(torch.Generator().manual_seed(1))
    first = [each.clone() for each in model.parameters()]
    model.reset(torch.Generator().manual_seed(1))
    assert all(torch.equal(one, other) for one, other in zip(first, model.parameters(), strict=True))
    out, _ = model(span_alone(steps(), rows(NUM_NODES, IN).float()), model.begin(NUM_NODES), single_rank)
    assert out.shape == (NUM_STEPS, NUM_NODES, 6)


def test_dropout_is_refused_because_temporal_models_have_none() -> None:
    assert ModelConfig(kind="cd-gcn").dropout == 0
    with pytest.raises(ValueError, match=r"model.dropout is 0.5, but cd-gcn has no dropout"):
        build_temporal(ModelConfig(kind="cd-gcn", dropout=0.5), in_features=IN)


def test_a_model_without_a_temporal_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.kind is gcn, which has no part along time"):
        build_temporal(ModelConfig(dropout=0), in_features=IN)
