"""Gradient checkpointing over segments of time gives the loss and gradients of one pass."""

import weakref
from typing import Any

import pytest
import torch
from dense_reference import NUM_NODES, NUM_STEPS, cut, rows
from test_temporal_layers_model import EVERY, close, model_of, whole
from torch import Tensor

from siafu.nn.temporal import Span, checkpointed_backward, span_alone
from siafu.nn.temporal.temporal_comm import SegmentPass, SingleRankComm

pytestmark = pytest.mark.usefixtures("one_thread")


class RecordingComm(SingleRankComm):
    """Records the segments that begin."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, SegmentPass]] = []

    def begin_segment(self, segment: int, mode: SegmentPass) -> None:
        self.begun.append((segment, mode))


@EVERY
@pytest.mark.parametrize("ends", [[7], [2, 7], [1, 3, 4, 7]], ids=["one", "two", "four"])
def test_checkpointed_gradients_are_those_of_one_pass(kind: str, ends: list[int]) -> None:
    model, span = model_of(kind), whole(masked=True)
    weight, begins = rows(NUM_STEPS, NUM_NODES, model.out_features, seed=7), [0, *ends[:-1]]

    out, _ = model(span, model.begin(NUM_NODES))
    expected = (out * weight).sum()
    expected.backward()
    grads = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()

    def make_span(segment: int) -> Span:
        return cut(span, begins[segment], ends[segment])

    def step_loss(segment: int, place: int, h: Tensor) -> Tensor:
        return (h * weight[begins[segment] + place]).sum()

    state = model.begin(NUM_NODES)
    loss = checkpointed_backward(model, make_span, step_loss, num_segments=len(ends), state=state)
    close(loss, expected.detach())
    for parameter, other in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is not None
        assert other is not None
        close(parameter.grad, other)


@EVERY
def test_in_single_precision_too_where_gradients_overwrite_buffers(kind: str) -> None:
    model, span, begins = model_of(kind), whole(masked=True), [0, 2, 3, NUM_STEPS]
    out, _ = model(span, model.begin(NUM_NODES))
    expected = torch.autograd.grad(out.square().sum(), list(model.parameters()))

    model.float()
    assert isinstance(span.x, Tensor)
    span = span_alone(span.steps, span.x.float(), present=span.present)
    state = model.begin(NUM_NODES)
    checkpointed_backward(
        model,
        lambda segment: cut(span, begins[segment], begins[segment + 1]),
        lambda segment, place, h: h.square().sum(),
        num_segments=3,
        state=state,
    )
    for parameter, other in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), other, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(state, model.begin(NUM_NODES), strict=True))


def test_the_comm_is_told_which_segment_begins_and_how_it_is_run() -> None:
    model, span, comm = model_of("cd-gcn"), whole(), RecordingComm()
    checkpointed_backward(
        model,
        lambda segment: cut(span, 2 * segment, 2 * segment + 2),
        lambda segment, place, h: h.sum(),
        num_segments=3,
        state=model.begin(NUM_NODES),
        comm=comm,
    )
    first: list[tuple[int, SegmentPass]] = [(0, "forward"), (1, "forward")]
    assert comm.begun == [*first, (2, "once"), (1, "recompute"), (0, "recompute")]


@EVERY
def test_segments_with_known_states_run_once_and_gradients_are_the_same(kind: str) -> None:
    model, span, comm = model_of(kind), whole(), RecordingComm()
    asked: Any = {"num_segments": 3, "state": model.begin(NUM_NODES)}

    def passed(**options: Any) -> list[Tensor]:
        model.zero_grad()
        loss = checkpointed_backward(
            model,
            lambda segment: cut(span, 2 * segment, 2 * segment + 2),
            lambda segment, place, h: h.square().sum(),
            **asked,
            **options,
        )
        return [loss, *(each.grad.clone() for each in model.parameters() if each.grad is not None)]

    expected, known, state = passed(), [], asked["state"]
    with torch.no_grad():
        for segment in range(2):
            state = model(cut(span, 2 * segment, 2 * segment + 2), state)[1]
            known.append(state)
    asked["state"] = model.begin(NUM_NODES)
    for one, other in zip(passed(known_states=known, comm=comm), expected, strict=True):
        assert torch.equal(one, other)
    assert comm.begun == [(2, "once"), (1, "once"), (0, "once")]
    comm.begun.clear()
    for one, other in zip(passed(known_states=known[:1], comm=comm), expected, strict=True):
        assert torch.equal(one, other)
    assert comm.begun == [(1, "forward"), (2, "once"), (1, "recompute"), (0, "once")]


@pytest.mark.parametrize("kind", ["cd-gcn", "evolvegcn-o"])
def test_a_step_without_a_loss_adds_nothing_to_the_gradients(kind: str) -> None:
    model, span = model_of(kind), whole()
    out, _ = model(span, model.begin(NUM_NODES))
    expected = torch.autograd.grad(out[2].square().sum() + out[4].sum(), list(model.parameters()))

    def step_loss(segment: int, place: int, h: Tensor) -> Tensor | None:
        return {2: h.square().sum(), 4: h.sum()}.get(place)

    checkpointed_backward(model, lambda _: span, step_loss, num_segments=1, state=model.begin(NUM_NODES))
    for parameter, other in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        close(parameter.grad, other)


def test_backward_stops_at_an_initial_state_without_gradient() -> None:
    model, span = model_of("gcn-gru"), whole()
    state = [torch.ones_like(each) for each in model.begin(NUM_NODES)]
    loss = checkpointed_backward(
        model, lambda segment: span, lambda segment, place, h: h.sum(), num_segments=1, state=state
    )
    assert not loss.requires_grad
    assert all(each.grad is None for each in state)


def test_outputs_and_final_state_are_freed_before_the_backward_pass() -> None:
    """They are no longer read then, and would add to the peak."""
    model, span = model_of("cd-gcn"), whole()
    alive: list[weakref.ref[Tensor]] = []
    found: list[int] = []

    class Watched(SingleRankComm):
        def apply_node_major(self, y: Tensor, function: Any, **masks: Any) -> Tensor:
            y.register_hook(lambda _: found.append(sum(each() is not None for each in alive)))
            return super().apply_node_major(y, function, **masks)

    class Seen(type(model)):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            out, after = super().forward(*given)
            alive.extend(map(weakref.ref, [out, *after]))
            return out, after

    model.__class__ = Seen
    checkpointed_backward(
        model,
        lambda segment: cut(span, 3 * segment, 3 * segment + 3),
        lambda segment, place, h: h.square().sum(),
        num_segments=1,
        state=model.begin(NUM_NODES),
        comm=Watched(),
    )
    assert found
    assert max(found) == 0
