"""What a layer over time is: a part within each step, a part along time, and a state that is handed on."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from siafu.nn.temporal.step import Step, StepRows, stacked
from siafu.nn.temporal.temporal_comm import Busy, Turn, alone

State = list[Tensor]  # what is known of all steps before a block of time; no layer hides any


class Span(NamedTuple):
    """A block of time as a layer reads it.

    Attributes:
        steps: the graphs of the own steps.
        num_steps: how many steps the block has, those of others included.
        first: the number of the block's first step, counted from where the state began.
        x: the inputs of the own steps, see :data:`StepRows`.
        x_nodes: the inputs of each piece of the own nodes (see ``Turn.pieces``), (steps, R, F), or (R, F) where every
            step has the same; None where no layer asks for them.
        m: (N, F) for each own step, what the first layer makes of the inputs without its weights, which never changes
            (see ``TemporalModel.aggregated``); or None.
        present: (own steps, N) bool, which nodes are there; None: all.
        present_nodes: (steps, own nodes) bool, the same by nodes.
        busy: which nodes have an edge, where the rows of others are not sent; None: all rows are.
        last: whether all rows of the outputs are read, and not those of busy nodes alone.
        ends: whether the state after it is read; else a layer may give NaN for it. Gradients may come to it.
        spent: whether the state before it is read by nobody else, so that a layer may write its gradients over it.
    """

    steps: Sequence[Step]
    num_steps: int
    first: int
    x: StepRows
    x_nodes: Sequence[Tensor] | None = None
    m: StepRows | None = None
    present: Tensor | None = None
    present_nodes: Tensor | None = None
    busy: Busy | None = None
    last: bool = True
    ends: bool = True
    spent: bool = False


def span_alone(
    steps: Sequence[Step],
    x: StepRows,
    *,
    first: int = 0,
    m: StepRows | None = None,
    present: Tensor | None = None,
) -> Span:
    """A block of time of which all steps and all nodes are here."""
    return Span(steps, len(steps), first, x, [stacked(x)], m, present, present)


class Numbers(NamedTuple):
    """How many numbers a layer has in memory for each node.

    Attributes:
        step: for each step of a block, while it goes back: what was kept, outputs, and gradients.
        state: in its state.
        unread: in the state after a block that goes back, where it is made though nobody reads it.
    """

    step: int
    state: int
    unread: int


class TemporalLayer(nn.Module):
    """One layer over a block of time. It states its spatial part, its temporal part and what it carries.

    Shapes:
        x: (own steps, N, in_features); returns (own steps, N, out_features).
    """

    spatial: ClassVar[str]  # what it does within each step, independently of the others
    temporal: ClassVar[str]  # what it does along time
    carried: ClassVar[tuple[str, ...]]  # the tensors of its state
    rereads: ClassVar[bool] = True  # the way back reads the outputs, which must then stay as they are
    in_features: int
    out_features: int

    @property
    def numbers(self) -> Numbers:
        """What it takes in memory, about."""
        raise NotImplementedError

    def begin(self, num_nodes: int, turn: Turn = alone) -> State:
        """The state before the first step."""
        raise NotImplementedError

    def aggregated(self, span: Span, state: State, turn: Turn = alone) -> tuple[Tensor, State]:
        """What it makes of its inputs without its weights, (own steps, N, in_features), and the state after that."""
        raise NotImplementedError

    def forward(self, span: Span, state: State, turn: Turn = alone) -> tuple[Span, State]:
        """The block of time as the next layer reads it, and the state after it."""
        raise NotImplementedError

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        raise NotImplementedError


def own_number(num_nodes: int, turn: Turn) -> int:
    """How many nodes are computed here."""
    return len(range(*turn.own_nodes.indices(num_nodes)))


def zero_state(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """(rows, width), whose memory is not there until it is written to, which a state never is."""
    return torch.from_numpy(np.zeros((rows, width), dtype=torch.empty(0, dtype=dtype).numpy().dtype))


def where_present(h: Tensor, present: Tensor | None) -> Tensor:
    """Zeros for nodes that are not there: (T, N, F), (T, N) -> (T, N, F)."""
    return h if present is None else h * present[..., None].to(h.dtype)
