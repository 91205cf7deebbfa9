"""A layer without a graph: the baseline that every graph model is compared with."""

from typing import Any

import torch
from torch import nn

from siafu.nn.aggregates import IDENTITY, Aggregate
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.ops import Ops


class Dense(Layer):
    """``h = x W + b``; the block's edges are not read."""

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
        """The destinations' own rows."""
        return IDENTITY

    @property
    def always_first(self) -> bool:
        """Rows that no destination reads are not projected."""
        return True

    def projection(self, ops: Ops) -> tuple[Any, Any]:
        """``x W``."""
        return self.weight, None
