"""The maximum of in-neighbour rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu import native
from siafu.context import AnyBlock, Context
from siafu.nn.aggregates.aggregate import Aggregate, AggregatePass, aggregate
from siafu.nn.streamed import Rows, Streamed


@dataclass(frozen=True)
class Maximum(Aggregate):
    """The maximum of each destination's in-neighbour rows, zero where it has none.

    Of equal rows the node that stands first in the user's data gives the maximum and gets the gradient.
    """

    def begin(self, context: Context, *, width: int, dtype: torch.dtype) -> "MaximumPass":
        """Begin a pass."""
        return MaximumPass(context, z_features=width, m_features=width, dtype=dtype)

    def aggregate_streamed(self, context: Context, x_src: Streamed) -> Tensor:
        """Refuse rows on disk."""
        raise ValueError(
            "the maximum needs all inputs in memory, but data.inputs is stream; set model.reduce to mean"
        )


class MaximumPass(AggregatePass):
    """A pass of :class:`Maximum`. Backward needs the source of each maximum, and no rows."""

    def allocate(self, allocate: Callable[[int, int], Tensor]) -> None:
        """Allocate all arrays."""
        super().allocate(allocate)
        self._source = self._empty_source()

    def forward(self, rows: slice) -> None:
        """Take the maximum, and note its source."""
        if not hasattr(self, "_source"):
            self._source = self._empty_source()
        into = (self.m_dst, self._source)
        native.segment_max(self.block.csr, self.z_src, node_id=self.block.node_id, into=into, rows=rows)

    def backward(self, rows: slice) -> None:
        """Give each gradient to the source of the maximum."""
        native.segment_max_backward(
            self.context.turned, self.grad_dst, self._source, out=self.grad_src, rows=rows
        )

    def save(self) -> list[Tensor]:
        """Keep the sources alone."""
        saved = [self._source]
        del self.z_src, self.m_dst, self._source
        return saved

    def load(self, saved: Sequence[Tensor]) -> None:
        """Take the sources back."""
        (self._source,) = saved

    def _empty_source(self) -> Tensor:
        return torch.empty(self.block.num_dst, self.m_features, dtype=torch.int32)


MAXIMUM = Maximum()


def max_in(block: AnyBlock, x_src: Rows) -> Tensor:
    """Take the maximum of each destination's in-neighbour rows: (S, F) -> (D, F)."""
    out = aggregate(MAXIMUM, block, x_src)
    assert isinstance(out, Tensor)
    return out
