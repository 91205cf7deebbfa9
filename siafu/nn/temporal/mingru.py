"""minGRU: a layer whose temporal part is a linear recurrence, computed as a scan."""

from typing import Any

import torch
from torch import Tensor, nn

from siafu.nn.layer import first_generator, glorot
from siafu.nn.temporal.convolution import convolve
from siafu.nn.temporal.layer import MemoryPerNode, Span, State, TemporalLayer, mask_absent, zero_state
from siafu.nn.temporal.step import aggregate_steps
from siafu.nn.temporal.temporal_comm import TemporalComm, single_rank


class MinGru(TemporalLayer):
    """A graph convolution in each step, then a minGRU per node (https://arxiv.org/abs/2410.01201).

    ``h_t = (1 - z_t) h_{t-1} + z_t g_t`` with ``z_t = sigmoid(Y_t W_z + b_z)``, ``g_t = Y_t W_g + b_g``. Neither reads
    the state, so several steps map a state h to ``a h + b``, and such pairs compose associatively. Rows stay
    time-major; ranks exchange one pair a node, however many steps they own.
    """

    spatial = "Y_t = s(A_t X_t W), z_t = sigmoid(Y_t W_z + b_z), g_t = Y_t W_g + b_g"
    temporal = "h_t = (1 - z_t) h_{t-1} + z_t g_t"
    state_names = ("h",)

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

    def begin(self, num_nodes: int, comm: TemporalComm = single_rank) -> State:
        """Zeros, for all nodes."""
        return [zero_state(num_nodes, self.out_features, self.weight.dtype)]

    @property
    def memory_per_node(self) -> MemoryPerNode:
        """The aggregate of inputs; Y, z, g, decay, gain, outputs and their gradients; the state."""
        return MemoryPerNode(self.in_features + 14 * self.out_features, self.out_features, self.out_features)

    def aggregate_inputs(
        self, span: Span, state: State, comm: TemporalComm = single_rank
    ) -> tuple[Tensor, State]:
        """``A_t X_t``."""
        return aggregate_steps(span.steps, span.x), state

    def forward(self, span: Span, state: State, comm: TemporalComm = single_rank) -> tuple[Span, State]:
        """The convolution and the scan, both on time-major rows."""
        y = convolve(span, self.weight, self.activation)
        z, g = torch.addmm(self.bias, y.flatten(0, 1), self.weight_y).view(*y.shape[:2], -1).chunk(2, 2)
        z = mask_absent(z.sigmoid(), span.present)  # an absent node keeps its state
        decay, gain = 1 - z, z * g
        before = comm.scan_state_before(state[0], lambda: compose_affine(decay, gain))
        h = linear_scan(decay, gain, before)
        after = comm.broadcast_final_state(h[-1])
        return span._replace(x=mask_absent(h, span.present), x_nodes=None, m=None), [after]


def linear_scan(decay: Tensor, gain: Tensor, before: Tensor) -> Tensor:
    """``h_t = decay_t h_{t-1} + gain_t``: 2 x (T, R, H), (R, H) -> (T, R, H)."""
    return _Scan.apply(decay, gain, before)


def compose_affine(decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """The affine map ``a h + b`` of all steps on a state h, as (a, b): 2 x (T, R, H) -> 2 x (R, H)."""
    return decay.prod(0), linear_scan(decay, gain, torch.zeros_like(gain[0]))[-1]


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
