"""Aggregates over a block's in-edges: graph work, pure functions without parameters, differentiable in the rows.

They take a row for each source; where others hold the halo, a row for each destination, and have the rest brought.
The aggregate of a block's static inputs is computed once and kept with the block.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block, Fetch
from siafu.native import Csr
from siafu.nn.streamed import Rows, Streamed

R = TypeVar("R", Tensor, Streamed, Rows)
_HALO_BYTES = 1 << 28  # of the halo's inputs on all ranks that are brought at a time


def sum_in(block: Block, x_src: Rows) -> Rows:
    """Sum of each destination's in-neighbour rows, weighted where edges have weights: (S, F) -> (D, F).

    Where edges were drawn, the sum is scaled to that of all of them.
    """
    return _sum(block, "sum", x_src, sum_scales(block, x_src.dtype))


def mean_in(block: Block, x_src: Rows) -> Rows:
    """Mean of each destination's in-neighbour rows, zero where it has none: (S, F) -> (D, F)."""
    return _sum(block, "mean", x_src, mean_scales(block, x_src.dtype))


def gcn_in(block: Block, x_src: Rows) -> Rows:
    """``D^-1/2 (A + I) D^-1/2 x`` with D the in-degrees of ``A + I``: (N, F) -> (N, F).

    A node that has an edge to itself keeps it, of several the last, and gets no other. No weight per edge is stored.
    Where edges were drawn, degrees are those of the whole graph, and the sum over edges is scaled to that of all.
    """
    return _sum(block, "gcn", x_src, gcn_scales(block, x_src.dtype))


class Scales(NamedTuple):
    """What a sum is scaled by; see :func:`siafu.native.spmm`."""

    pre: Tensor | None = None  # (S,)
    post: Tensor | None = None  # (D,)
    loop: Tensor | None = None  # (D,)

    def pre_of(self, rows: slice) -> Tensor | None:
        """The first scale of some sources."""
        return None if self.pre is None else self.pre[rows]


def sum_scales(block: Block, dtype: torch.dtype) -> Scales:
    """The scales of :func:`sum_in`."""
    if block.whole is None:
        return Scales()
    return Scales(post=_scale(block, "drawn", dtype, lambda: _inverse_share(block)))


def mean_scales(block: Block, dtype: torch.dtype) -> Scales:
    """The scales of :func:`mean_in`."""

    def inverse_degree() -> Tensor:
        return torch.where(block.in_degree != 0, 1.0 / block.in_degree, 0.0)

    return Scales(post=_scale(block, "mean", dtype, inverse_degree))


def gcn_scales(block: Block, dtype: torch.dtype) -> Scales:
    """The scales of :func:`gcn_in`. Collective, the first time."""
    if block.num_given != block.num_dst and block.whole is None:
        raise ValueError(
            f"GCN's normalisation needs every source's degree, but this block has {block.num_dst} destinations "
            f"for {block.num_src} sources"
        )

    def inverse_root() -> Tensor:
        drawn = block.whole is not None
        degree = block.whole.degree_src if block.whole else block.in_degree + block.missing_loop
        scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
        return scale if drawn else with_halo(block, scale[:, None], exact=True)[:, 0]

    scale = _scale(block, "gcn", dtype, inverse_root)
    post = scale[: block.num_dst]
    if block.whole is None:
        loop = _scale(block, "loop", dtype, lambda: block.missing_loop)
    else:
        whole, more = block.whole, _inverse_share(block)
        post = _scale(block, "drawn", dtype, lambda: post * more)
        loop = _scale(block, "loop", dtype, lambda: whole.missing_loop / more)
    return Scales(pre=scale, post=post, loop=loop)


def _inverse_share(block: Block) -> Tensor:
    """How many in-edges each destination has for one that was drawn, (D,) float64; 1 where it has none."""
    assert block.whole is not None
    drawn = block.indptr.diff()
    return torch.where(drawn > 0, block.whole.num_edges / drawn.clamp(min=1), 1.0).double()


def max_in(block: Block, x_src: Rows) -> Tensor:
    """Maximum of each destination's in-neighbour rows, zero where it has none: (S, F) -> (D, F).

    Of equal rows the node that stands first in the user's data gives the maximum and gets the gradient.
    """
    if isinstance(x_src, Streamed):
        raise ValueError(
            "the maximum needs all inputs in memory, but data.inputs is stream; set model.reduce to mean"
        )

    def compute() -> Tensor:
        rows = with_halo(block, widened(x_src), exact=x_src is block.static_src)
        return _Max.apply(rows, block)

    return _kept(block, "max", x_src, compute)


def with_halo(block: Block, x_src: Tensor, *, columns: int | None = None, exact: bool = False) -> Tensor:
    """A row for each source: (num_given, F) -> (S, F), the rows of the halo brought from where they are.

    Only the first ``columns`` of them are brought; the others are zero. ``exact`` rows are never rounded on the way.
    """
    if block.others is None:
        return x_src
    return _Completed.apply(x_src, block, columns or x_src.shape[1], exact)


def widened(rows: R) -> R:
    """Rows to calculate with: what is stored as bfloat16 becomes float32."""
    return rows.float() if isinstance(rows, Tensor) and rows.dtype == torch.bfloat16 else rows


def check_rows(block: Block, x_src: Rows) -> None:
    """Refuse rows that are not one for each source."""
    if len(x_src.shape) != 2 or x_src.shape[0] != block.num_given:
        raise ValueError(
            f"x is {tuple(x_src.shape)}; expected {block.num_given} rows, one for each of the block's sources"
        )


def _sum(block: Block, name: str, x_src: Rows, by: Scales) -> Rows:
    if not isinstance(x_src, Streamed):
        return _kept(block, name, x_src, lambda: _Sum.apply(x_src, block, by))
    check_rows(block, x_src)
    kept = block.keep(("aggregate", name), lambda: _sum_on_disk(block, x_src, by))
    return Streamed(kept, x_src.spill)


def _sum_on_disk(block: Block, x_src: Streamed, by: Scales) -> Tensor:
    """The sum of static rows that do not fit into memory: (num_given, F) -> (D, F), an array on disk."""
    pre, (own, _) = by.pre, _own_and_halo(block)
    if x_src.scale is not None:
        scale = with_halo(block, x_src.scale[:, None], exact=True)[:, 0]
        pre = scale if pre is None else pre * scale
    by = by._replace(pre=pre)
    weight = edge_weights(block, torch.float32, transposed=False)
    out = x_src.spill(block.num_dst, x_src.shape[1])
    ends = None if block.others is None else block.own_end
    native.spmm(
        block.csr,
        x_src.rows,
        weight=weight,
        pre=by.pre_of(own),
        post=by.post,
        loop=by.loop,
        ends=ends,
        add_to=out,
    )
    return out if block.others is None else _add_halo(block, _halo_on_disk(block, x_src), by, out)


def _halo_on_disk(block: Block, x_src: Streamed) -> Tensor:
    """The static rows of the halo, (S - D, F), in an array on disk."""
    halo = x_src.spill(block.num_src - block.num_dst, x_src.shape[1])
    bring_halo(block, x_src.rows, halo, how="exact")
    return halo


def bring_halo(block: Block, x_own: Tensor, x_halo: Tensor, *, how: Fetch) -> None:
    """Fill ``x_halo`` (S - D, F), which may lie on disk, with the rows of the halo, some columns at a time."""
    assert block.others is not None
    everywhere = int(block.others.total(torch.tensor([x_halo.shape[0]])))
    step = max(1, _HALO_BYTES // max(1, x_halo.dtype.itemsize * everywhere))
    for begin in range(0, x_halo.shape[1], step):
        columns = slice(begin, begin + step)
        x_halo[:, columns] = block.others.start_fetch(x_own[:, columns], how)()


def _kept(block: Block, name: str, x_src: Tensor, compute: Callable[[], Tensor]) -> Tensor:
    check_rows(block, x_src)
    return block.keep(("aggregate", name), compute) if x_src is block.static_src else compute()


def _scale(block: Block, name: str, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
    dtype = torch.float32 if dtype == torch.bfloat16 else dtype
    return block.keep(("scale", name, dtype), lambda: compute().to(dtype))


def edge_weights(block: Block, dtype: torch.dtype, *, transposed: bool) -> Tensor | None:
    """The weights of edges in some dtype, in the order of the block or of its transpose; None where all weigh 1."""
    if block.edge_weight is None:
        return None
    weight, origin = block.edge_weight, block.turned.origin if transposed else None
    return _scale(block, f"weight-{transposed}", dtype, lambda: weight if origin is None else weight[origin])


class _Sum(torch.autograd.Function):
    """``native.spmm``; its backward is the same sum over the transposed block with the scales exchanged.

    Where others hold the halo, the own rows are summed while those of the halo are on their way.
    """

    @staticmethod
    def forward(ctx: Any, x_own: Tensor, block: Block, by: Scales) -> Tensor:
        ctx.block, ctx.by = block, by
        weight = edge_weights(block, x_own.dtype, transposed=False)
        if block.others is None:
            return native.spmm(block.csr, x_own, weight=weight, pre=by.pre, post=by.post, loop=by.loop)
        own, _ = _own_and_halo(block)
        how = _how(ctx.needs_input_grad[0], exact=x_own is block.static_src)
        arrived = block.others.start_fetch(x_own, how)
        out = native.spmm(
            block.csr,
            x_own,
            weight=weight,
            pre=by.pre_of(own),
            post=by.post,
            loop=by.loop,
            ends=block.own_end,
        )
        return _add_halo(block, arrived(), by, out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad_dst,) = grads
        block: Block = ctx.block
        by: Scales = ctx.by
        weight = edge_weights(block, grad_dst.dtype, transposed=True)
        turned = block.turned
        if block.others is None:
            grad_src = native.spmm(turned, grad_dst, weight=weight, pre=by.post, post=by.pre, loop=by.loop)
            return grad_src, None, None
        own, halo = _own_and_halo(block)
        of_own = Csr(turned.indptr[: block.num_dst + 1], turned.indices)
        of_halo = Csr(turned.indptr[block.num_dst :], turned.indices)
        grad_halo = native.spmm(of_halo, grad_dst, weight=weight, pre=by.post, post=by.pre_of(halo))
        add_arrived = block.others.start_give_back(grad_halo)
        grad_own = native.spmm(
            of_own, grad_dst, weight=weight, pre=by.post, post=by.pre_of(own), loop=by.loop
        )
        add_arrived(grad_own)
        return grad_own, None, None


def _add_halo(block: Block, x_halo: Tensor, by: Scales, out: Tensor) -> Tensor:
    """Add what comes over edges from the halo to the sums over own rows."""
    return native.spmm(
        Csr(block.own_end, block.indices),
        x_halo,
        weight=edge_weights(block, out.dtype, transposed=False),
        pre=by.pre_of(_own_and_halo(block)[1]),
        post=by.post,
        ends=block.indptr[1:],
        first_src=block.num_dst,
        add_to=out,
    )


def _how(learning: bool, *, exact: bool) -> Fetch:
    if exact:
        return "exact"
    return "learning" if learning else "passing"


def _own_and_halo(block: Block) -> tuple[slice, slice]:
    """The places of own rows and of the halo's among the sources."""
    return slice(block.num_dst), slice(block.num_dst, block.num_src)


class _Completed(torch.autograd.Function):
    """Own rows, then the halo's; their gradients go back to those who own them."""

    @staticmethod
    def forward(ctx: Any, x_own: Tensor, block: Block, columns: int, exact: bool) -> Tensor:
        assert block.others is not None
        ctx.block, ctx.columns = block, columns
        how = _how(ctx.needs_input_grad[0], exact=exact)
        arrived = block.others.start_fetch(x_own[:, :columns], how)
        x_src = native.empty_rows(block.num_src, x_own.shape[1], x_own.dtype)
        x_src[: block.num_dst] = x_own
        x_src[block.num_dst :, columns:] = 0
        x_src[block.num_dst :, :columns] = arrived()
        return x_src

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad_src,) = grads
        block: Block = ctx.block
        assert block.others is not None
        add_arrived = block.others.start_give_back(grad_src[block.num_dst :, : ctx.columns].contiguous())
        grad_own = grad_src[: block.num_dst].clone()
        add_arrived(grad_own[:, : ctx.columns])
        return grad_own, None, None, None


class _Max(torch.autograd.Function):
    """``native.segment_max``; each gradient goes to the source that gave the maximum."""

    @staticmethod
    def forward(ctx: Any, x_src: Tensor, block: Block) -> Tensor:
        out, source = native.segment_max(block.csr, x_src, node_id=block.node_id)
        ctx.block = block
        ctx.save_for_backward(source)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (source,) = ctx.saved_tensors
        return native.segment_max_backward(ctx.block.turned, grads[0], source), None
