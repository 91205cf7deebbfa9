"""The adjacency that correct-and-smooth propagates over: symmetric, weighted, normalised by degrees."""

import torch
from torch import Tensor

from siafu import native
from siafu.context import Context
from siafu.native.splitmix import splitmix64
from siafu.nn.aggregates import with_halo
from siafu.nn.aggregates.weighted_sum import Scales, WeightedSumPass

_LABEL = "correct and smooth halo"
_EDGES_PER_RANGE = 1 << 22
_PROBE_BITS = 20  # sums of so short whole numbers are exact in float64
_TOLERANCE = 1e-9  # of sums of weights, which round


class SymmetricAdjacency:
    """Products with ``S = D^-1/2 (A + A^T) D^-1/2``, D being the row sums of ``A + A^T``.

    ``A[d, s]`` is the weight of the edge from s to d, so each edge is read in both directions; edges of a node to
    itself count. If A is symmetric, S is ``D^-1/2 A D^-1/2`` with the degrees of A, which is what is computed. A node
    whose edges do not weigh more than 0 together has an empty row.

    Attributes:
        symmetric: whether A is symmetric.
    """

    def __init__(self, context: Context) -> None:
        """Compute the degrees. Collective."""
        context.exchange.begin(_LABEL)
        self.context, self.symmetric = context, _is_symmetric(context)
        degree = context.block.in_degree
        if not self.symmetric:
            degree = degree + transposed_sum(context, torch.ones(context.num_dst, dtype=torch.float64))
        scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
        self._scale_src = with_halo(context, scale[:, None], exact=True)[:, 0].float()

    def multiply(self, x_own: Tensor, out: Tensor) -> None:
        """Fill ``out`` with ``S x``: (D, C) float32 -> (D, C). Collective."""
        context, scale = self.context, self._scale_src
        by = Scales(pre=scale, post=scale[: context.num_dst])
        sums = WeightedSumPass(context, by, width=x_own.shape[1], dtype=x_own.dtype)
        everything = slice(0, context.num_dst)
        arrived = context.exchange.start_gather(x_own, "exact") if context.has_halo else None
        sums.z_own, sums.m_dst = x_own, out
        sums.sum_own(everything)
        if arrived is not None:
            sums.z_halo = arrived()
            sums.add_halo(everything)
        if not self.symmetric:
            self._add_transposed(sums, x_own, out)

    def _add_transposed(self, sums: WeightedSumPass, x_own: Tensor, out: Tensor) -> None:
        """Add the sums over out-edges, which are those of a backward pass. Collective."""
        halo, _ = sums.backward_halo(x_own)
        add = self.context.exchange.start_reduce(halo) if self.context.has_halo else None
        out += sums.backward_own()
        if add is not None:
            add(out)


def transposed_sum(context: Context, values_own: Tensor) -> Tensor:
    """Sum the destinations' values over each node's out-edges: (D,) float64 -> (D,). Collective.

    It needs no transposed block.
    """
    block, sums = context.block, torch.zeros(context.num_src, dtype=torch.float64)
    begin = 0
    while begin < block.num_dst:
        most = block.indptr[begin] + _EDGES_PER_RANGE
        end = max(begin + 1, int(torch.searchsorted(block.indptr, most, right=True)) - 1)
        edges = slice(int(block.indptr[begin]), int(block.indptr[end]))
        each = values_own[begin:end].repeat_interleave(block.indptr[begin : end + 1].diff())
        if block.edge_weight is not None:
            each *= block.edge_weight[edges]
        sums.index_add_(0, block.indices[edges], each)
        begin = end
    own = sums[: context.num_dst].clone()
    if context.has_halo:
        context.exchange.start_reduce(sums[context.num_dst :, None])(own[:, None])
    return own


def _is_symmetric(context: Context) -> bool:
    """Compare ``A r`` with ``A^T r`` for pseudo-random whole numbers r. Collective."""
    block, ids = context.block, context.node_id
    ids = torch.arange(context.num_dst) if ids is None else ids[: context.num_dst]
    hashed = splitmix64(ids.numpy().astype("uint64")) >> (64 - _PROBE_BITS)
    probe = torch.from_numpy(hashed.astype("float64"))
    weight = None if block.edge_weight is None else block.edge_weight.double()
    x_src = with_halo(context, probe[:, None], exact=True)
    found, turned = (
        native.spmm(block.csr, x_src, weight=weight)[:, 0],
        transposed_sum(context, probe),
    )
    different = (found - turned).abs() > _TOLERANCE * (found.abs() + turned.abs())
    return not int(context.exchange.all_reduce(different.any().long().reshape(1), label=_LABEL))
