"""TM-GCN: a moving mean along time, then a graph convolution."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from siafu.nn.layer import first_generator, glorot
from siafu.nn.temporal.convolution import convolve
from siafu.nn.temporal.layer import MemoryPerNode, Span, State, TemporalLayer, mask_absent
from siafu.nn.temporal.step import aggregate_steps, stack_steps
from siafu.nn.temporal.temporal_comm import TemporalComm, single_rank

BAND = 20


class TmGcn(TemporalLayer):
    """TM-GCN (https://arxiv.org/abs/1910.07643): ``H_t = s(A'_t X'_t W)``, adjacency and inputs smoothed along time.

    ``X'_t = sum_k M[t, k] X_k``, ``M[t, k] = 1 / min(t + 1, b)`` for the last b steps k, or all where there are fewer.
    The steps of its spans are graphs of ``A'``; see :class:`Step`. Its state is the inputs of earlier steps, and empty
    where all steps have the same inputs.
    """

    spatial = "H_t = s(A'_t X'_t W)"
    temporal = "X'_t = mean of the last b X_k"
    state_names = ("inputs of the last b - 1 steps",)

    def __init__(
        self, in_features: int, out_features: int, *, activation: str = "relu", band: int = BAND
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.band = band
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        glorot(self.weight, generator)

    def begin(self, num_nodes: int, comm: TemporalComm = single_rank) -> State:
        """No rows."""
        return [self.weight.new_zeros(0, num_nodes, self.in_features)]

    @property
    def memory_per_node(self) -> MemoryPerNode:
        """Smoothed inputs, their aggregate and gradients; outputs and their gradients; inputs of earlier steps."""
        state = (self.band - 1) * self.in_features
        return MemoryPerNode(4 * self.in_features + 2 * self.out_features, state, state)

    def aggregate_inputs(
        self, span: Span, state: State, comm: TemporalComm = single_rank
    ) -> tuple[Tensor, State]:
        """``A'_t X'_t``."""
        span, state = self._smooth(span, state, comm)
        return aggregate_steps(span.steps, span.x), state

    def forward(self, span: Span, state: State, comm: TemporalComm = single_rank) -> tuple[Span, State]:
        """The moving mean along time, then the convolution."""
        if span.m is None:
            span, state = self._smooth(span, state, comm)
        h = mask_absent(convolve(span, self.weight, self.activation), span.present)
        return span._replace(x=h, x_nodes=None, m=None), state

    def _smooth(self, span: Span, state: State, comm: TemporalComm) -> tuple[Span, State]:
        x = stack_steps(span.x)
        if x.ndim == 2 or self.band == 1:
            return span, state
        earlier, history = comm.temporal_halo(x, state[0], count=self.band - 1)
        first = span.first + comm.own_steps.start
        return span._replace(x=moving_mean(x, earlier, first=first, band=self.band)), [history]


def moving_mean(x: Tensor, earlier: Tensor, *, first: int, band: int) -> Tensor:
    """The mean of each step and the ``band - 1`` before it, or fewer at the start: (T, N, F), (K, N, F) -> (T, N, F).

    ``first`` is the number of the first step of ``x``; ``earlier`` are the steps right before it.
    """
    if earlier.shape[0] != min(first, band - 1):
        raise ValueError(f"{earlier.shape[0]} steps before step {first}; expected {min(first, band - 1)}")
    return _MovingMean.apply(x, earlier, band)


class _MovingMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, earlier: Tensor, band: int) -> Tensor:
        ctx.band, ctx.num_earlier = band, earlier.shape[0]
        out = torch.empty_like(x)
        for step, total in enumerate(_window_sums([*earlier, *x], band, first=len(earlier))):
            torch.mul(total, _mean_weight(len(earlier) + step, band), out=out[step])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradient of an input sums those of the means that contain it: window sums in reverse."""
        (grad,), num, band = grads, ctx.num_earlier, ctx.band
        shares = [each * _mean_weight(num + step, band) for step, each in enumerate(grad)]
        zero = torch.zeros_like(grad[0])
        out = grad.new_empty(num + len(grad), *grad.shape[1:])
        reverse = [*reversed(shares), *[zero] * num]
        for step, total in enumerate(_window_sums(reverse, band, first=0)):
            out[len(out) - 1 - step] = total
        return out[num:], out[:num], None


def _mean_weight(step: int, band: int) -> float:
    """The weight of each step in the mean."""
    return 1 / min(step + 1, band)


def _window_sums(rows: list[Tensor], band: int, *, first: int) -> Iterator[Tensor]:
    """The sum of each row from ``first`` on and the ``band - 1`` before it; each sum overwrites the one before."""
    total = torch.zeros_like(rows[0])
    for place in range(first, len(rows)):
        if (place - first) % band == 0:  # sum afresh, so that rounding errors do not accumulate
            total.zero_()
            for row in rows[max(0, place - band + 1) : place + 1]:
                total += row
        else:
            total += rows[place]
            if place >= band:
                total -= rows[place - band]
        yield total
