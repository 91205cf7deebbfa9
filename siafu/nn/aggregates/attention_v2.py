"""GATv2's attention, whose scores read both ends of an edge together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from siafu import native
from siafu.context import Context
from siafu.native import AttendV2Backward, CsrPair
from siafu.native import Attention as AttentionOptions
from siafu.nn.aggregates.aggregate import Aggregate, AggregatePass


@dataclass(frozen=True)
class AttentionV2(Aggregate):
    """The attention-weighted sum of https://arxiv.org/abs/2105.14491: (S, 2 H F) -> (D, H F).

    The columns are a node's row as a source, then its row as a destination. It reads one weight of its layer, the
    vector (H, F) of the scores.

    Attributes:
        heads: H.
        slope: of the leaky ReLU below zero.
    """

    saves_output: ClassVar[bool] = True
    heads: int
    slope: float = 0.2

    def m_features(self, z_features: int) -> int:
        """Half of it: the rows as sources."""
        return z_features // 2

    def begin(self, context: Context, *, width: int, dtype: torch.dtype) -> "AttentionV2Pass":
        """Begin a pass."""
        return AttentionV2Pass(self, context, width=width, dtype=dtype)


class AttentionV2Pass(AggregatePass):
    """A pass of :class:`AttentionV2`."""

    def __init__(self, kind: AttentionV2, context: Context, *, width: int, dtype: torch.dtype) -> None:
        super().__init__(context, z_features=width, m_features=kind.m_features(width), dtype=dtype)
        self.sent = self.m_features  # a halo row is no destination
        self._options = AttentionOptions(kind.heads, kind.slope, node_id=context.node_id)
        self._vector: Tensor
        self._softmax: Tensor | None = None
        self._steps: AttendV2Backward | None = None

    def use(self, dropout: native.Dropout, weights: Sequence[Tensor]) -> None:
        """Drop these edges, and score with this vector."""
        self._options = self._options._replace(dropout=dropout)
        (self._vector,) = weights

    def forward(self, rows: slice) -> None:
        """Sum for a range of destinations."""
        if self._softmax is None:
            self._softmax = self.z_src.new_empty(self.block.num_dst, 2, self._options.heads)
        into = (self.m_dst, self._softmax)
        native.attend_v2(self.block.csr, self.z_src, self._vector, self._options, into=into, rows=rows)

    def grad_filled(self, rows: slice, *, again: bool) -> list[Tensor]:
        """Compute the gradients of rows as destinations, and of the vector."""
        if again:
            self.forward(rows)
        return [self._backward_steps().by_destination(self._vector, rows)]

    def backward(self, rows: slice) -> None:
        """Compute the gradients of rows as sources."""
        self._backward_steps().by_source(self._vector, rows)

    def allocate_gradients(self) -> None:
        """Use the array that the kernel's steps have made."""
        self.grad_src = self._backward_steps().grad_src

    def _backward_steps(self) -> AttendV2Backward:
        assert self._softmax is not None
        if self._steps is None:
            edges, saved = CsrPair(self.block.csr, self.block.transposed), (self.m_dst, self._softmax)
            self._steps = AttendV2Backward(edges, self.z_src, saved, self._options)
            self._steps.grad_src = getattr(self, "grad_src", self._steps.grad_src)
        self._steps.how, self._steps.grad_dst = self._options, self.grad_dst
        return self._steps

    def save(self) -> list[Tensor]:
        """Keep rows, output, softmax and vector."""
        assert self._softmax is not None
        saved = [self.z_src, self.m_dst, self._softmax, self._vector]
        del self.z_src, self.m_dst, self._vector
        self._softmax = None
        return saved

    def load(self, saved: Sequence[Tensor]) -> None:
        """Take them back."""
        self.z_src, self.m_dst, self._softmax, self._vector = saved
        self._steps = None
