"""Features for graphs that have none: the one-hot out-degree of each node in the snapshot.

This is the protocol of EvolveGCN: row v at step t is 1 in the column of v's out-degree in the snapshot, where a
repeated pair counts once. There are columns up to the largest degree of any step. A row is given by its column number,
so that the wide and sparse table need not be built: a product with it picks rows of the weights.
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
    """One-hot degree features; nodes of higher degree than there are columns share the last one."""

    def __init__(self, snapshots: Snapshots, *, most: int = MOST_COLUMNS, exact: int | None = None) -> None:
        """With ``exact``, that many degrees have a column each; higher ones share 8 columns per doubling, 48 in all.

        The number of columns then does not depend on the degrees.
        """
        self._snapshots, self._most, self._exact = snapshots, most, exact

    @cached_property
    def num_features(self) -> int:
        """The number of columns F: the largest degree of any step plus one, or the limit if that is lower.

        Finding the largest degree reads all steps once, unless ``exact`` is set.
        """
        if self._exact is not None:
            return self._exact + _A_DOUBLING * _DOUBLINGS
        blocks = self._snapshots.walk(self._snapshots.steps.start, self._snapshots.steps.stop)
        largest = max(int(self._degree(block).max()) for block in blocks)
        return min(largest + 1, self._most)

    def columns(self, block: Block) -> Tensor:
        """Return the column in which each row of a snapshot is 1, (N,) int64."""
        degree = self._degree(block)
        if self._exact is not None:
            beyond = (degree.clamp(min=self._exact) / self._exact).log2()
            degree = torch.where(degree < self._exact, degree, self._exact + (_A_DOUBLING * beyond).long())
        return degree.clamp_(max=self.num_features - 1)

    def rows(self, block: Block) -> Tensor:
        """Return the dense feature rows, (N, F) float32."""
        x = torch.zeros(block.num_dst, self.num_features)
        return x.scatter_(1, self.columns(block)[:, None], 1.0)

    def _degree(self, block: Block) -> Tensor:
        undirected = self._snapshots.graph.undirected
        csr = block.csr if undirected else native.transpose(block.csr, num_cols=block.num_src)
        return native.count_distinct(csr)
