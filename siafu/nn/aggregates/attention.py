"""GAT's attention: a softmax over in-edges, and the sum of rows that it weighs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from siafu import native
from siafu.context import Context
from siafu.native import AttendBackward, CsrPair
from siafu.native import Attention as AttentionOptions
from siafu.nn.aggregates.aggregate import Aggregate, AggregatePass


@dataclass(frozen=True)
class Attention(Aggregate):
    """The attention-weighted sum of https://arxiv.org/abs/1710.10903: (S, H F + 2 H) -> (D, H F).

    The columns are the row to sum, then a node's H scores as a source, then as a destination.

    Attributes:
        heads: H.
        slope: of the leaky ReLU below zero.
    """

    saves_output: ClassVar[bool] = True
    heads: int
    slope: float = 0.2

    def m_features(self, z_features: int) -> int:
        """The rows to sum, without scores."""
        return z_features - 2 * self.heads

    def begin(self, context: Context, *, width: int, dtype: torch.dtype) -> "AttentionPass":
        """Begin a pass."""
        return AttentionPass(self, context, width=width, dtype=dtype)


class AttentionPass(AggregatePass):
    """A pass of :class:`Attention`. No array has the size of edges x features: backward weighs edges again."""

    collects = True

    def __init__(self, kind: Attention, context: Context, *, width: int, dtype: torch.dtype) -> None:
        super().__init__(context, z_features=width, m_features=kind.m_features(width), dtype=dtype)
        self.sent = self.m_features + kind.heads  # a halo row is no destination
        self._options = AttentionOptions(kind.heads, kind.slope, node_id=context.node_id)
        self._scores: Tensor | None = None
        self._softmax: Tensor | None = None
        self._steps: AttendBackward | None = None

    def allocate(self, allocate: Callable[[int, int], Tensor]) -> None:
        """Allocate all arrays; scores are kept together once more, since edges read them at random."""
        super().allocate(allocate)
        self._scores = torch.zeros(self.block.num_src, 2 * self._options.heads, dtype=self.dtype)

    def use(self, dropout: native.Dropout, weights: Sequence[Tensor]) -> None:
        """Drop these edges."""
        self._options = self._options._replace(dropout=dropout)

    def filled(self, rows: slice) -> None:
        """Copy scores."""
        if self._scores is not None:
            self._scores[rows] = self.z_src[rows, self.m_features :]

    def forward(self, rows: slice) -> None:
        """Sum for a range of destinations."""
        if self._softmax is None:
            self._softmax = self.z_src.new_empty(self.block.num_dst, 2, self._options.heads)
        into = (self.m_dst, self._softmax)
        native.attend(self.block.csr, self.z_src, self._options, scores=self._scores, into=into, rows=rows)

    def grad_filled(self, rows: slice, *, again: bool) -> list[Tensor]:
        """Compute what edges need of their destinations."""
        if again:
            self.forward(rows)
        self._backward_steps().by_destination(rows)
        return []

    def backward(self, rows: slice) -> None:
        """Compute all gradients of sources but those of their scores as destinations."""
        self._backward_steps().by_source(rows)

    def collect(self, rows: slice) -> None:
        """Compute the gradients of scores as destinations."""
        self._backward_steps().add_by_destination(rows)

    def allocate_gradients(self) -> None:
        """Use the array that the kernel's steps have made."""
        self.grad_src = self._backward_steps().grad_src

    def _backward_steps(self) -> AttendBackward:
        assert self._softmax is not None
        if self._steps is None:
            edges, saved = CsrPair(self.block.csr, self.block.transposed), (self.m_dst, self._softmax)
            self._steps = AttendBackward(edges, self.z_src, saved, self._options, scores=self._scores)
            self._steps.grad_src = getattr(self, "grad_src", self._steps.grad_src)
        self._steps.how, self._steps.grad_dst = self._options, self.grad_dst
        return self._steps

    def save(self) -> list[Tensor]:
        """Keep rows, output and softmax."""
        assert self._softmax is not None
        saved = [self.z_src, self.m_dst, self._softmax]
        del self.z_src, self.m_dst
        self._softmax = None
        return saved

    def load(self, saved: Sequence[Tensor]) -> None:
        """Take them back."""
        self.z_src, self.m_dst, self._softmax = saved
        self._steps = None
