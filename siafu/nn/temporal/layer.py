"""The interface of a temporal layer: a spatial part within each step, a temporal part, and an explicit state."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from siafu.nn.temporal.step import Step, StepRows, stack_steps
from siafu.nn.temporal.temporal_comm import ActivityMask, TemporalComm, single_rank

State = list[Tensor]  # all that a model keeps of the steps before a segment; layers hold no hidden state


class Span(NamedTuple):
    """A segment (consecutive steps) as a layer reads it on one rank.

    Attributes:
        steps: the graphs of the own steps.
        num_steps: number of steps of the segment on all ranks.
        first: number of the segment's first step, counted from the step at which the state began.
        x: the inputs of the own steps, see :data:`StepRows`.
        x_nodes: node-major inputs of each chunk of own nodes (``TemporalComm.node_chunks``): (steps, R, F), or (R, F)
            where every step has the same; None where no layer reads them.
        m: (N, F) for each own step, the first layer's aggregated inputs, which are constant (see
            ``TemporalModel.aggregate_inputs``); or None.
        present: (own steps, N) bool, the nodes that exist; None: all.
        present_nodes: (steps, own nodes) bool, the same node-major.
        activity: the nodes that have an edge, where rows of inactive nodes are not sent; None: all rows are sent.
        full_outputs: whether the outputs of inactive nodes are read too.
        final_state_needed: whether the state after the segment is read; if not, a layer may return NaN for it.
            Gradients may still arrive for it.
        initial_state_reusable: whether a layer may overwrite the state before the segment with its gradients.
    """

    steps: Sequence[Step]
    num_steps: int
    first: int
    x: StepRows
    x_nodes: Sequence[Tensor] | None = None
    m: StepRows | None = None
    present: Tensor | None = None
    present_nodes: Tensor | None = None
    activity: ActivityMask | None = None
    full_outputs: bool = True
    final_state_needed: bool = True
    initial_state_reusable: bool = False


def span_alone(
    steps: Sequence[Step],
    x: StepRows,
    *,
    first: int = 0,
    m: StepRows | None = None,
    present: Tensor | None = None,
) -> Span:
    """Make the span of a rank that owns all steps and all nodes."""
    return Span(steps, len(steps), first, x, [stack_steps(x)], m, present, present)


class MemoryPerNode(NamedTuple):
    """Memory of a layer for each node, in numbers.

    Attributes:
        step: for each step of a segment during the backward pass: saved tensors, outputs and gradients.
        state: in its state.
        unread_state: in the final state, if the layer computes it even where it is not read.
    """

    step: int
    state: int
    unread_state: int


class TemporalLayer(nn.Module):
    """A layer over a segment. Class attributes state its spatial part, its temporal part and its state.

    Shapes:
        x: (own steps, N, in_features); returns (own steps, N, out_features).
    """

    spatial: ClassVar[str]  # the formula within each step
    temporal: ClassVar[str]  # the formula along time
    state_names: ClassVar[tuple[str, ...]]  # the tensors of its state, in order
    backward_reads_outputs: ClassVar[bool] = (
        True  # backward reads the outputs, so that they must not be overwritten
    )
    in_features: int
    out_features: int

    @property
    def memory_per_node(self) -> MemoryPerNode:
        """An estimate of its memory."""
        raise NotImplementedError

    def begin(self, num_nodes: int, comm: TemporalComm = single_rank) -> State:
        """The state before the first step."""
        raise NotImplementedError

    def aggregate_inputs(
        self, span: Span, state: State, comm: TemporalComm = single_rank
    ) -> tuple[Tensor, State]:
        """The weightless part of the layer, (own steps, N, in_features), and the state after it."""
        raise NotImplementedError

    def forward(self, span: Span, state: State, comm: TemporalComm = single_rank) -> tuple[Span, State]:
        """The segment as the next layer reads it, and the state after it."""
        raise NotImplementedError

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        raise NotImplementedError


def num_own_nodes(num_nodes: int, comm: TemporalComm) -> int:
    """The number of nodes that this rank owns."""
    return len(range(*comm.own_nodes.indices(num_nodes)))


def zero_state(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Zeros (rows, width) that take no memory until they are written to, which a state never is."""
    return torch.from_numpy(np.zeros((rows, width), dtype=torch.empty(0, dtype=dtype).numpy().dtype))


def mask_absent(h: Tensor, present: Tensor | None) -> Tensor:
    """Set rows of absent nodes to zero: (T, N, F), (T, N) -> (T, N, F)."""
    return h if present is None else h * present[..., None].to(h.dtype)
