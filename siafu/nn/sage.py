"""GraphSAGE."""

from typing import Any, Literal

import torch
from torch import nn

from siafu.nn.aggregates import MAXIMUM, MEAN, Aggregate
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.ops import Finish, Ops


class Sage(Layer):
    """GraphSAGE (https://arxiv.org/abs/1706.02216).

    ``h_i = x_i W_self + reduce_{j in N(i)} x_j W_neigh + b``, with ``reduce`` the mean or the maximum. The maximum does
    not commute with the product, so it is always taken first.

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

    @property
    def kind(self) -> Aggregate:
        """The mean or the maximum of the in-neighbours."""
        return MEAN if self.reduce == "mean" else MAXIMUM

    @property
    def always_first(self) -> bool:
        """The maximum comes before the projection."""
        return self.reduce == "max"

    def projection(self, ops: Ops) -> tuple[Any, Any]:
        """``x W_neigh``."""
        return self.weight_neigh, None

    def update(self, ops: Ops, m_dst: Any, x_dst: Any) -> Any:
        """``m + x W_self``."""
        return ops.linear([(x_dst, self.weight_self)], add=m_dst)

    def join(self, ops: Ops, m_dst: Any, x_dst: Any, finish: Finish | None = None) -> Any:
        """``m W_neigh + x W_self``."""
        return ops.linear([(m_dst, self.weight_neigh), (x_dst, self.weight_self)], finish=finish)
