"""Graph convolution."""

import torch
from torch import Tensor, nn

from siafu.graph import Block
from siafu.native import After
from siafu.nn.aggregate import gcn_in
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.product import product, products
from siafu.nn.streamed import Rows


class Gcn(Layer):
    """Graph convolution (https://arxiv.org/abs/1609.02907).

    ``h = D^-1/2 (A + I) D^-1/2 x W + b``, D the in-degrees of ``A + I``.

    Shapes:
        x_src: (N, in_features), rows ordered as in the block.
        returns: (N, out_features).
    """

    reads_whole = True

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        glorot(self.weight, generator)
        nn.init.zeros_(self.bias)

    def project(self, x_src: Rows) -> Tensor:
        """``x W``."""
        return product(x_src, self.weight)

    def join(self, m_dst: Rows, x_dst: Rows, after: After | None = None) -> Tensor:
        """``m W``."""
        return products([(m_dst, self.weight)], after)

    def aggregate(self, block: Block, z_src: Rows) -> Rows:
        """The normalised sum."""
        return gcn_in(block, z_src)
