"""No aggregate: each destination's own row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from siafu.context import Context
from siafu.nn.aggregates.aggregate import Aggregate, AggregatePass


@dataclass(frozen=True)
class Identity(Aggregate):
    """Each destination's own row; edges are not read, and nothing is exchanged."""

    linear: ClassVar[bool] = True
    reads_graph: ClassVar[bool] = False

    def begin(self, context: Context, *, width: int, dtype: torch.dtype) -> "IdentityPass":
        """Begin a pass."""
        return IdentityPass(context, z_features=width, m_features=width, dtype=dtype)


class IdentityPass(AggregatePass):
    """A pass of :class:`Identity`."""

    def __init__(self, context: Context, *, z_features: int, m_features: int, dtype: torch.dtype) -> None:
        super().__init__(context, z_features=z_features, m_features=m_features, dtype=dtype)
        self.sent = 0

    def forward(self, rows: slice) -> None:
        """Copy rows."""
        self.m_dst[rows] = self.z_src[rows]

    def backward(self, rows: slice) -> None:
        """Copy gradients."""
        self.grad_src[rows] = self.grad_dst[rows]

    def save(self) -> list[Tensor]:
        """Keep nothing."""
        return []

    def load(self, saved: Sequence[Tensor]) -> None:
        """Take back nothing."""


IDENTITY = Identity()
