"""What is known of a node that has no features: how many nodes it has edges to, as a column of ones.

As in the protocol of EvolveGCN: row v at step t is 1 in the column of v's out-degree in the snapshot, a pair counted
once, and there are columns up to the largest degree of any step. A row is given by the number of its column, so that
the table, wide and nearly empty, need not be made: a product with it picks a row of weights.
"""

from functools import cached_property

import torch
from torch import Tensor

from siafu import native
from siafu.dynamic.snapshots import Snapshots
from siafu.graph import Block

MOST_COLUMNS = 1024
_A_DOUBLING, _DOUBLINGS = 8, 6  # columns beyond the exact ones


class DegreeFeatures:
    """Rows of features made of degrees; those of higher degree than there are columns share the last."""

    def __init__(self, snapshots: Snapshots, *, most: int = MOST_COLUMNS, exact: int | None = None) -> None:
        """With ``exact`` so many degrees have a column each, and higher ones share 8 for each doubling, 48 in all.

        There are then as many columns whatever the degrees are.
        """
        self._snapshots, self._most, self._exact = snapshots, most, exact

    @cached_property
    def num_features(self) -> int:
        """F: the largest degree of any step and one more, or the most there may be.

        To know the largest it goes over all steps once; with ``exact`` it need not.
        """
        if self._exact is not None:
            return self._exact + _A_DOUBLING * _DOUBLINGS
        blocks = self._snapshots.walk(self._snapshots.steps.start, self._snapshots.steps.stop)
        largest = max(int(self._degree(block).max()) for block in blocks)
        return min(largest + 1, self._most)

    def columns(self, block: Block) -> Tensor:
        """(N,) int64, the column in which each row of a snapshot is 1."""
        degree = self._degree(block)
        if self._exact is not None:
            beyond = (degree.clamp(min=self._exact) / self._exact).log2()
            degree = torch.where(degree < self._exact, degree, self._exact + (_A_DOUBLING * beyond).long())
        return degree.clamp_(max=self.num_features - 1)

    def rows(self, block: Block) -> Tensor:
        """(N, F) float32, the rows written out."""
        x = torch.zeros(block.num_dst, self.num_features)
        return x.scatter_(1, self.columns(block)[:, None], 1.0)

    def _degree(self, block: Block) -> Tensor:
        undirected = self._snapshots.graph.undirected
        csr = block.csr if undirected else native.transpose(block.csr, num_cols=block.num_src)
        return native.count_distinct(csr)
