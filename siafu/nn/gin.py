"""Graph isomorphism network."""

import torch
from torch import Tensor, nn

from siafu.graph import Block
from siafu.nn.aggregate import sum_in
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.product import product
from siafu.nn.streamed import Rows


class Gin(Layer):
    """Graph isomorphism layer (https://arxiv.org/abs/1810.00826).

    ``h_i = relu(((1 + eps) x_i + sum_{j in N(i)} x_j) W_1 + b_1) W_2 + b_2``, eps learned.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        W_1, W_2: (in_features, hidden), (hidden, out_features), ``hidden`` being ``out_features`` unless told.
        returns: (D, out_features).
    """

    reads_dst = True
    reads_whole = True

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
    def z_features(self) -> int:
        """The width of the inner layer."""
        return self.hidden

    def project(self, x_src: Rows) -> Tensor:
        """``x W_1``: linear, so it may come before or after the sum."""
        return product(x_src, self.weight_in)

    def aggregate(self, block: Block, z_src: Rows) -> Rows:
        """The sum of the in-neighbours."""
        return sum_in(block, z_src)

    def update(self, m_dst: Tensor, x_dst: Rows) -> Tensor:
        """The MLP of ``(1 + eps) x + m``, its first product shared out over the sum."""
        z_dst = product(x_dst, self.weight_in * (1 + self.eps), m_dst + self.bias_in)
        return product(z_dst.relu(), self.weight_out)
