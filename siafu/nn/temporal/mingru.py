"""A layer whose temporal part is a linear recurrence, which is a scan."""

from typing import Any

import torch
from torch import Tensor, nn

from siafu.nn.layer import first_generator, glorot
from siafu.nn.temporal.convolution import convolved
from siafu.nn.temporal.layer import Numbers, Span, State, TemporalLayer, where_present, zero_state
from siafu.nn.temporal.step import snapshots_in
from siafu.nn.temporal.temporal_comm import Turn, alone


class MinGru(TemporalLayer):
    """A graph convolution in each step, then a minGRU per node (https://arxiv.org/abs/2410.01201).

    ``h_t = (1 - z_t) h_{t-1} + z_t g_t`` with ``z_t = sigmoid(Y_t W_z + b_z)``, ``g_t = Y_t W_g + b_g``: neither reads
    the state, so what some steps make of a state h is ``a h + b``, and such pairs can be composed in any grouping. Rows
    stay by steps; what ranks tell each other is one pair a node, however many steps they have.
    """

    spatial = "Y_t = s(A_t X_t W), z_t = sigmoid(Y_t W_z + b_z), g_t = Y_t W_g + b_g"
    temporal = "h_t = (1 - z_t) h_{t-1} + z_t g_t"
    carried = ("h",)

    def __init__(self, in_features: int, out_features: int, *, activation: str = "relu") -> None:
        super().__init__()
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.weight_y = nn.Parameter(torch.empty(out_features, 2 * out_features))
        self.bias = nn.Parameter(torch.empty(2 * out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        glorot(self.weight, generator)
        for gate in self.weight_y.data.split(self.out_features, 1):
            glorot(gate, generator)
        nn.init.zeros_(self.bias)

    def begin(self, num_nodes: int, turn: Turn = alone) -> State:
        """Zeros, for all nodes."""
        return [zero_state(num_nodes, self.out_features, self.weight.dtype)]

    @property
    def numbers(self) -> Numbers:
        """The sum of inputs; Y, z, g, decay, gain, outputs and their gradients; the state."""
        return Numbers(self.in_features + 14 * self.out_features, self.out_features, self.out_features)

    def aggregated(self, span: Span, state: State, turn: Turn = alone) -> tuple[Tensor, State]:
        """``A_t X_t``."""
        return snapshots_in(span.steps, span.x), state

    def forward(self, span: Span, state: State, turn: Turn = alone) -> tuple[Span, State]:
        """The convolution and the scan, both by steps."""
        y = convolved(span, self.weight, self.activation)
        z, g = torch.addmm(self.bias, y.flatten(0, 1), self.weight_y).view(*y.shape[:2], -1).chunk(2, 2)
        z = where_present(z.sigmoid(), span.present)  # an absent node keeps its state
        decay, gain = 1 - z, z * g
        before = turn.carried_in(state[0], lambda: composed(decay, gain))
        h = scanned(decay, gain, before)
        after = turn.carried_out(h[-1])
        return span._replace(x=where_present(h, span.present), x_nodes=None, m=None), [after]


def scanned(decay: Tensor, gain: Tensor, before: Tensor) -> Tensor:
    """``h_t = decay_t h_{t-1} + gain_t``: 2 x (T, R, H), (R, H) -> (T, R, H)."""
    return _Scan.apply(decay, gain, before)


def composed(decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """What all steps make of a state h, ``a h + b``, as (a, b): 2 x (T, R, H) -> 2 x (R, H)."""
    return decay.prod(0), scanned(decay, gain, torch.zeros_like(gain[0]))[-1]


class _Scan(torch.autograd.Function):
    """Gradients are scanned from the last step to the first."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, gain: Tensor, before: Tensor) -> Tensor:
        out, h = torch.empty_like(gain), before
        for a, b, into in zip(decay, gain, out, strict=True):
            h = torch.addcmul(b, a, h, out=into)
        ctx.save_for_backward(decay, out, before)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, out, before = ctx.saved_tensors
        of_gain, of_decay = torch.empty_like(out), torch.empty_like(out)
        later = torch.zeros_like(before)
        for step in reversed(range(len(out))):
            torch.add(grads[0][step], later, out=of_gain[step])
            torch.mul(of_gain[step], out[step - 1] if step else before, out=of_decay[step])
            later = of_gain[step] * decay[step]
        return of_decay, of_gain, later
