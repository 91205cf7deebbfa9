"""Graph convolution."""

from typing import Any

import torch
from torch import nn

from siafu.nn.aggregates import GCN_SUM, Aggregate
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.ops import Ops


class Gcn(Layer):
    """Graph convolution (https://arxiv.org/abs/1609.02907).

    ``h = D^-1/2 (A + I) D^-1/2 x W + b``, D the in-degrees of ``A + I``.

    Shapes:
        x_src: (N, in_features), rows ordered as in the block.
        returns: (N, out_features).
    """

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

    @property
    def kind(self) -> Aggregate:
        """The normalised sum."""
        return GCN_SUM

    def projection(self, ops: Ops) -> tuple[Any, Any]:
        """``x W``."""
        return self.weight, None
