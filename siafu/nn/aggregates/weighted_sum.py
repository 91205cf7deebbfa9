"""Weighted sums over in-edges: plain sums, means, and GCN's normalised sum. One kernel serves all, both ways.

    m_d = post_d * (sum over edges e = (s, d) of weight_e * pre_s * z_s  +  loop_d * pre_d * z_d)

Its gradient is the same sum over the transposed block, with ``pre`` and ``post`` exchanged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from siafu import native
from siafu.context import AnyBlock, Context
from siafu.graph import Block
from siafu.native import Csr, SparseRows
from siafu.nn.aggregates.aggregate import Aggregate, AggregatePass, aggregate
from siafu.nn.aggregates.halo import gather_halo, with_halo
from siafu.nn.streamed import Rows, Spill, Streamed

MOST_DENSE = 0.25  # share of numbers that are not zero, up to which products of sparse sums are faster


class Scales(NamedTuple):
    """The scales of a sum; see :func:`siafu.native.spmm`. None stands for ones, for ``loop`` for zeros."""

    pre: Tensor | None = None  # (S,)
    post: Tensor | None = None  # (D,)
    loop: Tensor | None = None  # (D,)

    def pre_of(self, rows: slice) -> Tensor | None:
        """The first scale of some sources."""
        return None if self.pre is None else self.pre[rows]


@dataclass(frozen=True)
class WeightedSum(Aggregate):
    """A sum over in-edges, weighted where edges have weights.

    Attributes:
        scaling: ``sum``: as it is; where edges were sampled, scaled to the sum over all edges. ``mean``: divided by the
            in-degree, zero where there are no in-edges. ``gcn``: ``D^-1/2 (A + I) D^-1/2``, D the in-degrees of
            ``A + I``; a node that has an edge to itself keeps it, of several the last, and gets no other.
    """

    linear: ClassVar[bool] = True
    scaling: Literal["sum", "mean", "gcn"]

    @property
    def reads_whole(self) -> bool:
        """All but the mean."""
        return self.scaling != "mean"

    def scales(self, context: Context, dtype: torch.dtype) -> Scales:
        """The scales for rows of a dtype. Collective, the first time."""
        block = context.block
        match self.scaling:
            case "gcn":
                return gcn_scales(context, dtype)
            case "mean":
                return Scales(post=_keep_scale(block, "mean", dtype, lambda: _inverse_degree(block)))
            case "sum" if block.whole is not None:
                return Scales(post=_keep_scale(block, "drawn", dtype, lambda: _inverse_share(block)))
        return Scales()

    def begin(self, context: Context, *, width: int, dtype: torch.dtype) -> "WeightedSumPass":
        """Begin a pass. Collective, the first time for a context."""
        return WeightedSumPass(context, self.scales(context, dtype), width=width, dtype=dtype)

    def aggregate_streamed(self, context: Context, x_src: Streamed) -> Tensor:
        """Sum static rows on disk, into an array on disk. Collective."""
        by, own = self.scales(context, torch.float32), slice(0, context.num_dst)
        if x_src.scale is not None:
            scale = with_halo(context, x_src.scale[:, None], exact=True)[:, 0]
            by = by._replace(pre=scale if by.pre is None else by.pre * scale)
        run = WeightedSumPass(context, by, width=x_src.shape[1], dtype=torch.float32)
        run.z_own, run.m_dst = x_src.rows, x_src.spill(context.num_dst, x_src.shape[1])
        run.sum_own(own)
        if context.has_halo:
            run.z_halo = x_src.spill(context.num_src - context.num_dst, x_src.shape[1])
            gather_halo(context, x_src.rows, run.z_halo, mode="exact")
            run.add_halo(own)
        return run.m_dst

    def aggregate_sparse(self, context: Context, x_src: SparseRows) -> Rows:
        """Sum static sparse rows; a sum that is no longer mostly zero is dense. Collective.

        Where the inputs are read from disk the sum is written to it.
        """
        by, block = self.scales(context, x_src.dtype), context.block
        rows = x_src
        if context.has_halo:
            rows = SparseRows.concatenate([rows, context.exchange.gather_sparse(rows)])
        found = native.sparse_sum(
            block.csr,
            rows,
            weight=edge_weights(block, x_src.dtype, transposed=False),
            pre=by.pre,
            post=by.post,
            loop=by.loop,
            allocate=torch.empty if context.spill is None else partial(_allocate, context.spill),
        )
        sizes = torch.tensor([found.values.numel(), found.numel()])
        stored, total = context.exchange.all_reduce(sizes, label="halo").tolist()  # ranks must decide alike
        if stored <= MOST_DENSE * total:
            return found
        if context.spill is None:
            return found.to_dense()
        return Streamed(found.to_dense(out=context.spill(*found.shape)), context.spill)


def _allocate(spill: Spill, count: int, *, dtype: torch.dtype) -> Tensor:
    """An array on disk of a dtype of 4 bytes."""
    return spill(count, 1).view(dtype)[:, 0]


class WeightedSumPass(AggregatePass):
    """A pass of :class:`WeightedSum`. Own columns are summed first, then those of the halo."""

    def __init__(self, context: Context, by: Scales, *, width: int, dtype: torch.dtype) -> None:
        super().__init__(context, z_features=width, m_features=width, dtype=dtype)
        self._by = by
        self.z_own: Tensor
        self.z_halo: Tensor

    def allocate(self, allocate: Callable[[int, int], Tensor]) -> None:
        """Allocate all arrays."""
        super().allocate(allocate)
        self.z_own, self.z_halo = self.z_src[: self.context.num_given], self.z_src[self.context.num_given :]

    def forward(self, rows: slice) -> None:
        """Sum for a range of destinations."""
        self.sum_own(rows)
        self.add_halo(rows)

    def sum_own(self, rows: slice) -> None:
        """Sum over own columns, or all of them without a halo."""
        block, by = self.block, self._by
        native.spmm(
            block.csr,
            self.z_own,
            weight=edge_weights(block, self.dtype, transposed=False),
            pre=by.pre_of(slice(self.context.num_given)),
            post=by.post,
            loop=by.loop,
            ends=block.own_end if self.context.has_halo else None,
            out=self.m_dst,
            rows=rows,
        )

    def add_halo(self, rows: slice) -> None:
        """Add the sum over columns of the halo, if there is one."""
        if not self.context.has_halo:
            return
        block, by, own = self.block, self._by, self.block.num_dst
        native.spmm(
            Csr(block.own_end, block.indices),
            self.z_halo,
            weight=edge_weights(block, self.dtype, transposed=False),
            pre=by.pre_of(slice(own, block.num_src)),
            post=by.post,
            ends=block.indptr[1:],
            first_src=own,
            add_to=self.m_dst,
            rows=rows,
        )

    def backward(self, rows: slice) -> None:
        """Sum over the transposed block, with the scales exchanged."""
        native.spmm(
            self.context.turned,
            self.grad_dst,
            weight=edge_weights(self.block, self.dtype, transposed=True),
            pre=self._by.post,
            post=self._by.pre,
            loop=self._by.loop,
            out=self.grad_src,
            rows=rows,
        )

    def forward_all(self, z_own: Tensor, arrived: Callable[[], Tensor]) -> Tensor:
        """Sum over own columns while the halo rows are on their way."""
        everything = slice(0, self.block.num_dst)
        self.z_own, self.m_dst = z_own, native.empty_rows(self.block.num_dst, self.m_features, self.dtype)
        self.sum_own(everything)
        self.z_halo = arrived()
        self.add_halo(everything)
        return self.m_dst

    def backward_halo(self, grad_dst: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the gradients of the halo rows alone, which travel while those of own rows are computed."""
        self.grad_dst = grad_dst
        if not self.context.has_halo:
            return grad_dst[:0], []
        return self._gradients(slice(self.block.num_dst, self.block.num_src), with_loop=False), []

    def backward_own(self) -> Tensor:
        """Compute the gradients of own rows."""
        return self._gradients(slice(0, self.context.num_given), with_loop=True)

    def _gradients(self, rows: slice, *, with_loop: bool) -> Tensor:
        """Compute the gradients of a range of sources in an array of their own."""
        turned, by = self.context.turned, self._by
        return native.spmm(
            Csr(turned.indptr[rows.start : rows.stop + 1], turned.indices),
            self.grad_dst,
            weight=edge_weights(self.block, self.dtype, transposed=True),
            pre=by.post,
            post=by.pre_of(rows),
            loop=by.loop if with_loop else None,
        )

    def save(self) -> list[Tensor]:
        """Forget all rows: the gradients of a sum need none of them."""
        del self.z_own, self.z_halo, self.m_dst
        return []

    def load(self, saved: Sequence[Tensor]) -> None:
        """Take back nothing."""


SUM, MEAN, GCN_SUM = WeightedSum("sum"), WeightedSum("mean"), WeightedSum("gcn")


def sum_in(block: AnyBlock, x_src: Rows) -> Rows:
    """Sum each destination's in-neighbour rows, weighted where edges have weights: (S, F) -> (D, F)."""
    return aggregate(SUM, block, x_src)


def mean_in(block: AnyBlock, x_src: Rows) -> Rows:
    """Average each destination's in-neighbour rows, zero where it has none: (S, F) -> (D, F)."""
    return aggregate(MEAN, block, x_src)


def gcn_in(block: AnyBlock, x_src: Rows) -> Rows:
    """``D^-1/2 (A + I) D^-1/2 x`` with D the in-degrees of ``A + I``: (N, F) -> (N, F)."""
    return aggregate(GCN_SUM, block, x_src)


def gcn_scales(context: Context, dtype: torch.dtype) -> Scales:
    """The scales of GCN's normalised sum. Collective, the first time.

    Where edges were sampled, degrees are those of the whole graph, and the sum over edges is scaled to that of all.
    """
    block = context.block
    if context.num_given != block.num_dst and block.whole is None:
        raise ValueError(
            f"GCN's normalisation needs every source's degree, but this block has {block.num_dst} destinations "
            f"for {block.num_src} sources"
        )

    def inverse_root() -> Tensor:
        sampled = block.whole is not None
        degree = block.whole.degree_src if block.whole else block.in_degree + block.missing_loop
        scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
        return scale if sampled else with_halo(context, scale[:, None], exact=True)[:, 0]

    scale = _keep_scale(context, "gcn", dtype, inverse_root)
    post = scale[: block.num_dst]
    if block.whole is None:
        loop = _keep_scale(block, "loop", dtype, lambda: block.missing_loop)
    else:
        whole, more = block.whole, _inverse_share(block)
        post = _keep_scale(block, "gcn-drawn", dtype, lambda: post * more)
        loop = _keep_scale(block, "loop", dtype, lambda: whole.missing_loop / more)
    return Scales(pre=scale, post=post, loop=loop)


def edge_weights(block: Block, dtype: torch.dtype, *, transposed: bool) -> Tensor | None:
    """The edge weights in a dtype, in the order of the block or of its transpose; None where all weigh 1."""
    if block.edge_weight is None:
        return None
    weight, origin = block.edge_weight, block.transposed.origin if transposed else None
    name = f"weight-{transposed}"
    return _keep_scale(block, name, dtype, lambda: weight if origin is None else weight[origin])


def _inverse_degree(block: Block) -> Tensor:
    return torch.where(block.in_degree != 0, 1.0 / block.in_degree, 0.0)


def _inverse_share(block: Block) -> Tensor:
    """In-edges of each destination per sampled in-edge, (D,) float64; 1 where none was sampled."""
    assert block.whole is not None
    sampled = block.indptr.diff()
    return torch.where(sampled > 0, block.whole.num_edges / sampled.clamp(min=1), 1.0).double()


def _keep_scale(where: AnyBlock, name: str, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
    dtype = torch.float32 if dtype == torch.bfloat16 else dtype
    return where.keep(("scale", name, dtype), lambda: compute().to(dtype))
