"""Layers whose temporal part is a recurrence per node: CD-GCN, GCN-GRU."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from siafu import native
from siafu.native import LstmInputs, Term
from siafu.native.recurrent_reference import where_present
from siafu.nn.layer import first_generator, glorot
from siafu.nn.temporal.convolution import convolved, with_idle
from siafu.nn.temporal.layer import Numbers, Span, State, TemporalLayer, own_number, zero_state
from siafu.nn.temporal.step import snapshots_in
from siafu.nn.temporal.temporal_comm import Busy, Turn, alone


class Way(NamedTuple):
    """How a recurrence is passed, on which depends what may be left out or written over.

    Attributes:
        ends, spent: whether the state after it is read, and whether that before it is nobody else's; see :class:`Span`.
        together: whether gradients are read where they are, and not sent.
    """

    ends: bool
    spent: bool
    together: bool


class Recurrent(TemporalLayer):
    """A graph convolution in each step, then a recurrence per node, whose weights all nodes share.

    An absent node keeps its state and gives zeros.
    """

    num_gates: ClassVar[int]
    held: ClassVar[int]  # numbers held on the way back for each output: Y, gates, gradients
    makes_unread: ClassVar[bool] = True  # the state after a block, where nobody reads it
    reads_inputs: ClassVar[bool]  # the recurrence reads X_t beside Y_t
    rereads = False

    def __init__(self, in_features: int, out_features: int, *, activation: str = "relu") -> None:
        super().__init__()
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        width = self.num_gates * out_features
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.weight_y = nn.Parameter(torch.empty(out_features, width))
        self.weight_x = nn.Parameter(torch.empty(in_features, width)) if self.reads_inputs else None
        self.weight_h = nn.Parameter(torch.empty(out_features, width))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters; each gate's weights are drawn as a matrix of their own."""
        glorot(self.weight, generator)
        for weight in (self.weight_y, self.weight_x, self.weight_h):
            for gate in () if weight is None else weight.data.split(self.out_features, 1):
                glorot(gate, generator)
        nn.init.zeros_(self.bias)

    def begin(self, num_nodes: int, turn: Turn = alone) -> State:
        """Zeros."""
        rows = own_number(num_nodes, turn)
        return [zero_state(rows, self.out_features, self.weight.dtype) for _ in self.carried]

    def aggregated(self, span: Span, state: State, turn: Turn = alone) -> tuple[Tensor, State]:
        """``A_t X_t``."""
        return snapshots_in(span.steps, span.x), state

    def forward(self, span: Span, state: State, turn: Turn = alone) -> tuple[Span, State]:
        """The convolution by steps, the recurrence by nodes."""
        states, present = _by_piece(state, turn), span.present_nodes
        h_nodes, after = [], []
        way = Way(span.ends, span.spent, turn.together)

        def along(piece: int, y_nodes: Tensor) -> Tensor:
            nodes = turn.pieces[piece]
            there = None if present is None else present[:, nodes].contiguous()
            inputs = self._inputs(y_nodes, span, piece, nodes)
            h, later = self.recur(inputs, there, states[piece], way)
            h_nodes.append(h)
            after.append(later)
            return h

        busy, back = self._busy(span), None if span.last else span.busy
        x = turn.through_nodes(convolved(span, self.weight, self.activation), along, there=busy, back=back)
        return span._replace(x=x, x_nodes=h_nodes, m=None), _joined(after)

    @staticmethod
    def _busy(span: Span) -> Busy | None:
        """Which rows are turned to nodes: all where the inputs, of which others are made, are not there."""
        return None if span.x_nodes is None else span.busy

    @property
    def numbers(self) -> Numbers:
        """Inputs or their sum; what is held for outputs; the state."""
        state = len(self.carried) * self.out_features
        return Numbers(
            self.in_features + self.held * self.out_features, state, state if self.makes_unread else 0
        )

    def recur(
        self, inputs: Sequence[tuple[Tensor, Tensor]], present: Tensor | None, state: State, way: Way
    ) -> tuple[Tensor, State]:
        """The recurrence over rows, each with its weights: (T, R, I), or (R, I) for all steps -> (T, R, H)."""
        raise NotImplementedError

    def _inputs(self, y_nodes: Tensor, span: Span, piece: int, nodes: slice) -> list[tuple[Tensor, Tensor]]:
        """What the recurrence reads of a piece of the nodes, each with its weights."""
        x_nodes, busy = None if span.x_nodes is None else span.x_nodes[piece], self._busy(span)
        if busy is not None and x_nodes is not None:
            y_nodes = with_idle(y_nodes, x_nodes, busy.nodes[:, nodes], self.weight, self.activation)
        if self.weight_x is None:
            return [(y_nodes, self.weight_y)]
        if x_nodes is None:
            raise ValueError("this layer reads the inputs of its own nodes; give the span x_nodes")
        return [(y_nodes, self.weight_y), (x_nodes, self.weight_x)]


def _by_piece(state: State, turn: Turn) -> list[State]:
    """The state of each piece of the nodes."""
    if len(turn.pieces) == 1:
        return [state]
    sizes = [nodes.stop - nodes.start for nodes in turn.pieces]
    return [list(each) for each in zip(*(each.split(sizes) for each in state), strict=True)]


def _joined(states: list[State]) -> State:
    """The state of all nodes."""
    return states[0] if len(states) == 1 else [torch.cat(each) for each in zip(*states, strict=True)]


def gates_of(inputs: Sequence[tuple[Tensor, Tensor]], bias: Tensor) -> tuple[Tensor, ...]:
    """What the inputs give to the gates of each step: T times (R, G)."""
    num_steps = inputs[0][0].shape[0]
    summed = sum((x @ weight for x, weight in inputs), bias)
    return torch.broadcast_to(summed, (num_steps, *summed.shape[-2:])).unbind()


class CdGcn(Recurrent):
    """CD-GCN (https://arxiv.org/abs/1704.06199): ``Y_t = s(A_t X_t W)``, an LSTM per node over ``[Y_t, X_t]``."""

    spatial = "Y_t = s(A_t X_t W)"
    temporal = "h_t, c_t = LSTM([Y_t, X_t], h_{t-1}, c_{t-1})"
    carried = ("h", "c")
    num_gates = 4
    held = 6  # the gradient of Y is written over gates, that of the outputs over these
    makes_unread = False
    reads_inputs = True

    def recur(
        self, inputs: Sequence[tuple[Tensor, Tensor]], present: Tensor | None, state: State, way: Way
    ) -> tuple[Tensor, State]:
        """An LSTM; the gates are input, forget, new value, output."""
        flat = [each for pair in inputs for each in pair]
        keep = torch.is_grad_enabled()
        out, *after = _Lstm.apply(keep, way, present, *flat, self.weight_h, self.bias, *state)
        return out, after


class _Lstm(torch.autograd.Function):
    """Gates are kept where there is a way back, which a function is not told by itself, and made again for another."""

    @staticmethod
    def forward(ctx: Any, keep: bool, way: Way, present: Tensor | None, *given: Tensor) -> tuple[Tensor, ...]:
        out, passed, gates = native.lstm(_lstm(present, given), keep=keep, ends=way.ends)
        after = passed or [each.new_full((), torch.nan).expand_as(each) for each in given[-2:]]
        ctx.way, ctx.present, ctx.gates = way, present, gates
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        return out, *after

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given, gates, ctx.gates = ctx.saved_tensors, ctx.gates, None
        lstm, (grad, *of_after) = _lstm(ctx.present, given), grads
        if grad is None:
            grad = given[-1].new_zeros(lstm.num_steps, *given[-1].shape)
        found = native.lstm_backward(
            lstm,
            grad,
            (of_after[0], of_after[1]),
            gates=gates,
            wants=ctx.needs_input_grad[3 : 3 + 2 * len(lstm.inputs) : 2],
            apart=ctx.way.together,
            over=ctx.way.spent,
        )
        return None, None, None, *found


def _lstm(present: Tensor | None, given: Sequence[Tensor]) -> LstmInputs:
    *flat, weight_h, bias, h, c = given
    inputs = [Term(x, weight) for x, weight in zip(flat[::2], flat[1::2], strict=True)]
    return LstmInputs(inputs, weight_h, bias, present, (h, c), flat[0].shape[0])


class GcnGru(Recurrent):
    """A graph convolution in each step, then a GRU per node."""

    spatial = "Y_t = s(A_t X_t W)"
    temporal = "h_t = GRU(Y_t, h_{t-1})"
    carried = ("h",)
    num_gates = 3
    held = 16
    reads_inputs = False

    def recur(
        self, inputs: Sequence[tuple[Tensor, Tensor]], present: Tensor | None, state: State, way: Way
    ) -> tuple[Tensor, State]:
        """A GRU; the gates are update, reset, new value, and reset acts on the state before its product."""
        (h,), outputs, width = state, [], self.out_features
        of_gates, of_new = self.weight_h.split([2 * width, width], 1)
        for step, given in enumerate(gates_of(inputs, self.bias)):
            there = None if present is None else present[step]
            z, r = (given[:, : 2 * width] + h @ of_gates).sigmoid().chunk(2, 1)
            new = (given[:, 2 * width :] + (r * h) @ of_new).tanh()
            h_new = (1 - z) * h + z * new
            outputs.append(where_present(there, h_new, torch.zeros_like(h_new)))
            h = where_present(there, h_new, h)
        return torch.stack(outputs), [h]
