"""GraphSAGE."""

from typing import Literal

import torch
from torch import Tensor, nn

from siafu.graph import Block
from siafu.native import After
from siafu.nn.aggregate import max_in, mean_in, widened
from siafu.nn.layer import Drop, Layer, first_generator, glorot, no_drop
from siafu.nn.product import product, products
from siafu.nn.streamed import Rows


class Sage(Layer):
    """GraphSAGE (https://arxiv.org/abs/1706.02216).

    ``h_i = x_i W_self + reduce_{j in N(i)} x_j W_neigh + b``, with ``reduce`` the mean or the maximum.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        returns: (D, out_features).
    """

    reads_dst = True

    def __init__(
        self, in_features: int, out_features: int, *, reduce: Literal["mean", "max"] = "mean"
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.reduce = in_features, out_features, reduce
        self.weight_self = nn.Parameter(torch.empty(in_features, out_features))
        self.weight_neigh = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        glorot(self.weight_self, generator)
        glorot(self.weight_neigh, generator)
        nn.init.zeros_(self.bias)

    def project(self, x_src: Rows) -> Tensor:
        """``x W_neigh``; with the maximum, which does not commute with it, this follows the aggregate."""
        return product(x_src, self.weight_neigh)

    def aggregate(self, block: Block, z_src: Rows) -> Rows:
        """The mean or the maximum of the in-neighbours."""
        return mean_in(block, z_src) if self.reduce == "mean" else max_in(block, z_src)

    def update(self, m_dst: Tensor, x_dst: Rows) -> Tensor:
        """``m + x W_self``."""
        return product(x_dst, self.weight_self, m_dst)

    def join(self, m_dst: Rows, x_dst: Rows, after: After | None = None) -> Tensor:
        """``m W_neigh + x W_self``."""
        return products([(m_dst, self.weight_neigh), (x_dst, self.weight_self)], after)

    def aggregates_first(self, block: Block) -> bool:
        """As every layer; the maximum is always taken before the projection."""
        return self.reduce == "max" or super().aggregates_first(block)

    def keeps(self, x_src: Rows) -> bool:
        """The mean of all rows, the maximum of those in memory."""
        return self.reduce == "mean" or isinstance(x_src, Tensor)

    def combine(self, block: Block, x_src: Rows, drop: Drop = no_drop, after: After | None = None) -> Tensor:
        """As every layer; the maximum is always taken before the projection."""
        if self.reduce == "mean":
            return super().combine(block, x_src, drop, after)
        if x_src is block.static_src:
            m_dst, x_dst = drop(self.aggregate(block, x_src)), drop(widened(x_src[: block.num_dst]))
        else:
            x_src = drop(widened(x_src))
            m_dst, x_dst = self.aggregate(block, x_src), x_src[: block.num_dst]
        return self.join(m_dst, x_dst, after)
