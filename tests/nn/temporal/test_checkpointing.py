"""Time passed block by block, backwards: the loss and gradients of one pass."""

import weakref
from typing import Any

import pytest
import torch
from test_models import EVERY, close, model_of, whole
from timeline import NUM_NODES, NUM_STEPS, cut, rows
from torch import Tensor

from siafu.nn.temporal import Span, checkpointed_backward, span_alone
from siafu.nn.temporal.temporal_comm import Alone, Pass

pytestmark = pytest.mark.usefixtures("one_thread")


class Told(Alone):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, Pass]] = []

    def begin(self, block: int, how: Pass) -> None:
        self.begun.append((block, how))


@EVERY
@pytest.mark.parametrize("ends", [[7], [2, 7], [1, 3, 4, 7]], ids=["one", "two", "four"])
def test_gradients_block_by_block_are_those_of_one_pass(kind: str, ends: list[int]) -> None:
    model, span = model_of(kind), whole(masked=True)
    weight, begins = rows(NUM_STEPS, NUM_NODES, model.out_features, seed=7), [0, *ends[:-1]]

    out, _ = model(span, model.begin(NUM_NODES))
    expected = (out * weight).sum()
    expected.backward()
    grads = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()

    def span_of(block: int) -> Span:
        return cut(span, begins[block], ends[block])

    def loss_of(block: int, place: int, h: Tensor) -> Tensor:
        return (h * weight[begins[block] + place]).sum()

    state = model.begin(NUM_NODES)
    loss = checkpointed_backward(model, span_of, loss_of, num_segments=len(ends), state=state)
    close(loss, expected.detach())
    for parameter, other in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is not None
        assert other is not None
        close(parameter.grad, other)


@EVERY
def test_in_single_precision_too_where_gradients_are_written_over_what_is_not_read_again(kind: str) -> None:
    model, span, begins = model_of(kind), whole(masked=True), [0, 2, 3, NUM_STEPS]
    out, _ = model(span, model.begin(NUM_NODES))
    expected = torch.autograd.grad(out.square().sum(), list(model.parameters()))

    model.float()
    assert isinstance(span.x, Tensor)
    span = span_alone(span.steps, span.x.float(), present=span.present)
    state = model.begin(NUM_NODES)
    checkpointed_backward(
        model,
        lambda block: cut(span, begins[block], begins[block + 1]),
        lambda block, place, h: h.square().sum(),
        num_segments=3,
        state=state,
    )
    for parameter, other in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), other, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(state, model.begin(NUM_NODES), strict=True))


def test_the_turn_is_told_which_block_begins_and_how_it_is_passed() -> None:
    model, span, turn = model_of("cd-gcn"), whole(), Told()
    checkpointed_backward(
        model,
        lambda block: cut(span, 2 * block, 2 * block + 2),
        lambda block, place, h: h.sum(),
        num_segments=3,
        state=model.begin(NUM_NODES),
        turn=turn,
    )
    first: list[tuple[int, Pass]] = [(0, "first"), (1, "first")]
    assert turn.begun == [*first, (2, "only"), (1, "again"), (0, "again")]


@EVERY
def test_with_known_states_no_block_is_passed_twice_and_gradients_are_the_same(kind: str) -> None:
    model, span, turn = model_of(kind), whole(), Told()
    asked: Any = {"num_segments": 3, "state": model.begin(NUM_NODES)}

    def passed(**known: Any) -> list[Tensor]:
        model.zero_grad()
        loss = checkpointed_backward(
            model,
            lambda b: cut(span, 2 * b, 2 * b + 2),
            lambda b, place, h: h.square().sum(),
            **asked,
            **known,
        )
        return [loss, *(each.grad.clone() for each in model.parameters() if each.grad is not None)]

    expected, known, state = passed(), [], asked["state"]
    with torch.no_grad():
        for block in range(2):
            state = model(cut(span, 2 * block, 2 * block + 2), state)[1]
            known.append(state)
    asked["state"] = model.begin(NUM_NODES)
    for one, other in zip(passed(known=known, turn=turn), expected, strict=True):
        assert torch.equal(one, other)
    assert turn.begun == [(2, "only"), (1, "only"), (0, "only")]
    turn.begun.clear()
    for one, other in zip(passed(known=known[:1], turn=turn), expected, strict=True):
        assert torch.equal(one, other)
    assert turn.begun == [(1, "first"), (2, "only"), (1, "again"), (0, "only")]


@pytest.mark.parametrize("kind", ["cd-gcn", "evolvegcn-o"])
def test_a_step_without_a_loss_has_no_part_in_the_gradients(kind: str) -> None:
    model, span = model_of(kind), whole()
    out, _ = model(span, model.begin(NUM_NODES))
    expected = torch.autograd.grad(out[2].square().sum() + out[4].sum(), list(model.parameters()))

    def loss_of(block: int, place: int, h: Tensor) -> Tensor | None:
        return {2: h.square().sum(), 4: h.sum()}.get(place)

    checkpointed_backward(model, lambda _: span, loss_of, num_segments=1, state=model.begin(NUM_NODES))
    for parameter, other in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        close(parameter.grad, other)


def test_a_state_that_was_handed_in_without_a_gradient_ends_the_way_back() -> None:
    model, span = model_of("gcn-gru"), whole()
    state = [torch.ones_like(each) for each in model.begin(NUM_NODES)]
    loss = checkpointed_backward(
        model, lambda block: span, lambda block, place, h: h.sum(), num_segments=1, state=state
    )
    assert not loss.requires_grad
    assert all(each.grad is None for each in state)


def test_what_a_block_made_is_gone_before_it_goes_back() -> None:
    """Outputs and the state after a block are read by nobody then, and are a part of the peak."""
    model, span = model_of("cd-gcn"), whole()
    alive: list[weakref.ref[Tensor]] = []
    found: list[int] = []

    class Watched(Alone):
        def through_nodes(self, y: Tensor, along: Any, **busy: Any) -> Tensor:
            y.register_hook(lambda _: found.append(sum(each() is not None for each in alive)))
            return super().through_nodes(y, along, **busy)

    class Seen(type(model)):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            out, after = super().forward(*given)
            alive.extend(map(weakref.ref, [out, *after]))
            return out, after

    model.__class__ = Seen
    checkpointed_backward(
        model,
        lambda block: cut(span, 3 * block, 3 * block + 3),
        lambda block, place, h: h.square().sum(),
        num_segments=1,
        state=model.begin(NUM_NODES),
        turn=Watched(),
    )
    assert found
    assert max(found) == 0
