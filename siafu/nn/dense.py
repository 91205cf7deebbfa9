"""A layer without a graph: the baseline that every graph model is compared with."""

import torch
from torch import Tensor, nn

from siafu.graph import Block
from siafu.native import After
from siafu.nn.aggregate import widened
from siafu.nn.layer import Drop, Layer, first_generator, glorot, no_drop
from siafu.nn.product import product, products
from siafu.nn.streamed import Rows


class Dense(Layer):
    """``h = x W + b``; the block is not read."""

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

    def aggregate(self, block: Block, z_src: Rows) -> Rows:
        """The destinations' own rows."""
        return z_src[: block.num_dst]

    def combine(self, block: Block, x_src: Rows, drop: Drop = no_drop, after: After | None = None) -> Tensor:
        """``x W`` of the destinations."""
        return products([(drop(widened(x_src[: block.num_dst])), self.weight)], after)
