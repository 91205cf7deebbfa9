"""Layers whose temporal part is a recurrence per node: CD-GCN and GCN-GRU."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from siafu import native
from siafu.native import LstmInputs, Term
from siafu.native.recurrent_reference import where_present
from siafu.nn.layer import first_generator, glorot
from siafu.nn.temporal.convolution import convolve, fill_inactive
from siafu.nn.temporal.layer import MemoryPerNode, Span, State, TemporalLayer, num_own_nodes, zero_state
from siafu.nn.temporal.step import aggregate_steps
from siafu.nn.temporal.temporal_comm import ActivityMask, TemporalComm, single_rank


class BufferPolicy(NamedTuple):
    """The buffers that a recurrence may skip or overwrite.

    Attributes:
        final_state_needed, initial_state_reusable: as in :class:`Span`.
        is_local: whether gradients of the inputs stay on this rank, rather than being sent.
    """

    final_state_needed: bool
    initial_state_reusable: bool
    is_local: bool


class Recurrent(TemporalLayer):
    """A graph convolution in each step, then a recurrence per node whose weights all nodes share.

    An absent node keeps its state; its output is zero.
    """

    num_gates: ClassVar[int]
    values_per_output: ClassVar[int]  # numbers held for each output during backward: Y, gates, gradients
    computes_unread_state: ClassVar[bool] = True  # whether the final state is computed even if it is not read
    reads_inputs: ClassVar[bool]  # whether the recurrence reads X_t besides Y_t
    backward_reads_outputs = False

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
        """Draw new parameters; the weights of each gate are drawn as a matrix of their own."""
        glorot(self.weight, generator)
        for weight in (self.weight_y, self.weight_x, self.weight_h):
            for gate in () if weight is None else weight.data.split(self.out_features, 1):
                glorot(gate, generator)
        nn.init.zeros_(self.bias)

    def begin(self, num_nodes: int, comm: TemporalComm = single_rank) -> State:
        """Zeros, for own nodes."""
        rows = num_own_nodes(num_nodes, comm)
        return [zero_state(rows, self.out_features, self.weight.dtype) for _ in self.state_names]

    def aggregate_inputs(
        self, span: Span, state: State, comm: TemporalComm = single_rank
    ) -> tuple[Tensor, State]:
        """``A_t X_t``."""
        return aggregate_steps(span.steps, span.x), state

    def forward(self, span: Span, state: State, comm: TemporalComm = single_rank) -> tuple[Span, State]:
        """The convolution on time-major rows, the recurrence on node-major rows."""
        states, present = _split_state(state, comm), span.present_nodes
        h_nodes, after = [], []
        policy = BufferPolicy(span.final_state_needed, span.initial_state_reusable, comm.is_local)

        def recurrence(chunk: int, y_nodes: Tensor) -> Tensor:
            nodes = comm.node_chunks[chunk]
            there = None if present is None else present[:, nodes].contiguous()
            inputs = self._inputs(y_nodes, span, chunk, nodes)
            h, later = self.run_recurrence(inputs, there, states[chunk], policy)
            h_nodes.append(h)
            after.append(later)
            return h

        send_mask, return_mask = self._send_mask(span), None if span.full_outputs else span.activity
        x = comm.apply_node_major(
            convolve(span, self.weight, self.activation),
            recurrence,
            send_mask=send_mask,
            return_mask=return_mask,
        )
        return span._replace(x=x, x_nodes=h_nodes, m=None), _join_state(after)

    @staticmethod
    def _send_mask(span: Span) -> ActivityMask | None:
        """The rows to send: all, if the inputs from which rows of inactive nodes are computed are missing here."""
        return None if span.x_nodes is None else span.activity

    @property
    def memory_per_node(self) -> MemoryPerNode:
        """Inputs or their aggregate; values saved for each output; the state."""
        state = len(self.state_names) * self.out_features
        return MemoryPerNode(
            self.in_features + self.values_per_output * self.out_features,
            state,
            state if self.computes_unread_state else 0,
        )

    def run_recurrence(
        self,
        inputs: Sequence[tuple[Tensor, Tensor]],
        present: Tensor | None,
        state: State,
        policy: BufferPolicy,
    ) -> tuple[Tensor, State]:
        """The recurrence over inputs, each with its weights: (T, R, I), or (R, I) for all steps -> (T, R, H)."""
        raise NotImplementedError

    def _inputs(self, y_nodes: Tensor, span: Span, chunk: int, nodes: slice) -> list[tuple[Tensor, Tensor]]:
        """The inputs of the recurrence for a chunk of nodes, each with its weights."""
        x_nodes, mask = None if span.x_nodes is None else span.x_nodes[chunk], self._send_mask(span)
        if mask is not None and x_nodes is not None:
            y_nodes = fill_inactive(y_nodes, x_nodes, mask.nodes[:, nodes], self.weight, self.activation)
        if self.weight_x is None:
            return [(y_nodes, self.weight_y)]
        if x_nodes is None:
            raise ValueError("this layer reads the inputs of its own nodes; give the span x_nodes")
        return [(y_nodes, self.weight_y), (x_nodes, self.weight_x)]


def _split_state(state: State, comm: TemporalComm) -> list[State]:
    """The state of each chunk of nodes."""
    if len(comm.node_chunks) == 1:
        return [state]
    sizes = [nodes.stop - nodes.start for nodes in comm.node_chunks]
    return [list(each) for each in zip(*(each.split(sizes) for each in state), strict=True)]


def _join_state(states: list[State]) -> State:
    """The state of all nodes, from that of each chunk."""
    return states[0] if len(states) == 1 else [torch.cat(each) for each in zip(*states, strict=True)]


def gate_inputs(inputs: Sequence[tuple[Tensor, Tensor]], bias: Tensor) -> tuple[Tensor, ...]:
    """The part of each step's gates that comes from the inputs: T times (R, G)."""
    num_steps = inputs[0][0].shape[0]
    summed = sum((x @ weight for x, weight in inputs), bias)
    return torch.broadcast_to(summed, (num_steps, *summed.shape[-2:])).unbind()


class CdGcn(Recurrent):
    """CD-GCN (https://arxiv.org/abs/1704.06199): ``Y_t = s(A_t X_t W)``, an LSTM per node over ``[Y_t, X_t]``."""

    spatial = "Y_t = s(A_t X_t W)"
    temporal = "h_t, c_t = LSTM([Y_t, X_t], h_{t-1}, c_{t-1})"
    state_names = ("h", "c")
    num_gates = 4
    values_per_output = 6  # gradients of Y overwrite gates, gradients of the outputs overwrite the outputs
    computes_unread_state = False
    reads_inputs = True

    def run_recurrence(
        self,
        inputs: Sequence[tuple[Tensor, Tensor]],
        present: Tensor | None,
        state: State,
        policy: BufferPolicy,
    ) -> tuple[Tensor, State]:
        """An LSTM; the gates are input, forget, cell, output."""
        flat = [each for pair in inputs for each in pair]
        keep = torch.is_grad_enabled()
        out, *after = _Lstm.apply(keep, policy, present, *flat, self.weight_h, self.bias, *state)
        return out, after


class _Lstm(torch.autograd.Function):
    """The LSTM kernel; with ``keep`` gates are saved for backward, and a second backward computes them again."""

    @staticmethod
    def forward(
        ctx: Any, keep: bool, policy: BufferPolicy, present: Tensor | None, *given: Tensor
    ) -> tuple[Tensor, ...]:
        out, passed, gates = native.lstm(_lstm(present, given), keep=keep, ends=policy.final_state_needed)
        after = passed or [each.new_full((), torch.nan).expand_as(each) for each in given[-2:]]
        ctx.policy, ctx.present, ctx.gates = policy, present, gates
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
            apart=ctx.policy.is_local,
            over=ctx.policy.initial_state_reusable,
        )
        return None, None, None, *found


def _lstm(present: Tensor | None, given: Sequence[Tensor]) -> LstmInputs:
    *flat, weight_h, bias, h, c = given
    inputs = [Term(x, weight) for x, weight in zip(flat[::2], flat[1::2], strict=True)]
    return LstmInputs(inputs, weight_h, bias, present, (h, c), flat[0].shape[0])


class GcnGru(Recurrent):
    """GCN-GRU: a graph convolution in each step, then a GRU per node."""

    spatial = "Y_t = s(A_t X_t W)"
    temporal = "h_t = GRU(Y_t, h_{t-1})"
    state_names = ("h",)
    num_gates = 3
    values_per_output = 16
    reads_inputs = False

    def run_recurrence(
        self,
        inputs: Sequence[tuple[Tensor, Tensor]],
        present: Tensor | None,
        state: State,
        policy: BufferPolicy,
    ) -> tuple[Tensor, State]:
        """A GRU; the gates are update, reset, candidate, and reset is applied to the state before its product."""
        (h,), outputs, width = state, [], self.out_features
        of_gates, of_new = self.weight_h.split([2 * width, width], 1)
        for step, given in enumerate(gate_inputs(inputs, self.bias)):
            there = None if present is None else present[step]
            z, r = (given[:, : 2 * width] + h @ of_gates).sigmoid().chunk(2, 1)
            new = (given[:, 2 * width :] + (r * h) @ of_new).tanh()
            h_new = (1 - z) * h + z * new
            outputs.append(where_present(there, h_new, torch.zeros_like(h_new)))
            h = where_present(there, h_new, h)
        return torch.stack(outputs), [h]
