"""Graph isomorphism network."""

from typing import Any

import torch
from torch import nn

from siafu.nn.aggregates import SUM, Aggregate
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.ops import Finish, Ops


class Gin(Layer):
    """Graph isomorphism layer (https://arxiv.org/abs/1810.00826).

    ``h_i = relu(((1 + eps) x_i + sum_{j in N(i)} x_j) W_1 + b_1) W_2 + b_2``, eps learned.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        W_1, W_2: (in_features, hidden), (hidden, out_features), ``hidden`` being ``out_features`` unless told.
        returns: (D, out_features).
    """

    reads_dst = True

    def __init__(self, in_features: int, out_features: int, *, hidden: int | None = None) -> None:
        super().__init__()
        hidden = out_features if hidden is None else hidden
        self.in_features, self.out_features, self.hidden = in_features, out_features, hidden
        self.eps = nn.Parameter(torch.empty(()))
        self.weight_in = nn.Parameter(torch.empty(in_features, hidden))
        self.bias_in = nn.Parameter(torch.empty(hidden))
        self.weight_out = nn.Parameter(torch.empty(hidden, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        for weight in (self.weight_in, self.weight_out):
            glorot(weight, generator)
        for parameter in (self.eps, self.bias_in, self.bias):
            nn.init.zeros_(parameter)

    @property
    def kind(self) -> Aggregate:
        """The sum of the in-neighbours."""
        return SUM

    @property
    def z_features(self) -> int:
        """The width of the inner layer."""
        return self.hidden

    def projection(self, ops: Ops) -> tuple[Any, Any]:
        """``x W_1``: linear, so it may come before or after the sum."""
        return self.weight_in, None

    def update(self, ops: Ops, m_dst: Any, x_dst: Any) -> Any:
        """Apply the MLP to ``(1 + eps) x + m``, whose first product is shared out over the sum."""
        weight = ops.scale_by_one_plus(self.weight_in, self.eps)
        z_dst = ops.linear([(x_dst, weight)], add=m_dst, finish=Finish(self.bias_in, "relu"))
        return ops.linear([(z_dst, self.weight_out)])

    def join(self, ops: Ops, m_dst: Any, x_dst: Any, finish: Finish | None = None) -> Any:
        """Apply the MLP to ``(1 + eps) x + m``."""
        z_dst = ops.add(ops.scale_by_one_plus(x_dst, self.eps), m_dst)
        z_dst = ops.linear([(z_dst, self.weight_in)], finish=Finish(self.bias_in, "relu"))
        return ops.linear([(z_dst, self.weight_out)], finish=finish)
