"""Aggregates over a block's in-edges: graph work, pure functions without parameters, differentiable in the rows.

The aggregate of a block's static inputs is computed once and kept with the block.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block


def sum_in(block: Block, x_src: Tensor) -> Tensor:
    """Sum of each destination's in-neighbour rows, weighted where edges have weights: (S, F) -> (D, F)."""
    return _kept(block, "sum", x_src, lambda: _Sum.apply(x_src, block, None, None, None))


def mean_in(block: Block, x_src: Tensor) -> Tensor:
    """Mean of each destination's in-neighbour rows, zero where it has none: (S, F) -> (D, F)."""

    def inverse_degree() -> Tensor:
        return torch.where(block.in_degree != 0, 1.0 / block.in_degree, 0.0)

    scale = _scale(block, "mean", x_src.dtype, inverse_degree)
    return _kept(block, "mean", x_src, lambda: _Sum.apply(x_src, block, None, scale, None))


def gcn_in(block: Block, x_src: Tensor) -> Tensor:
    """``D^-1/2 (A + I) D^-1/2 x`` with D the in-degrees of ``A + I``: (N, F) -> (N, F).

    A node that has an edge to itself keeps it, of several the last, and gets no other. No weight per edge is stored.
    """
    if block.num_src != block.num_dst:
        raise ValueError(
            f"GCN's normalisation needs every source's degree, but this block has {block.num_dst} destinations "
            f"for {block.num_src} sources"
        )
    block = block.single_loops

    def inverse_root() -> Tensor:
        degree = block.in_degree.double() + block.lacks_loop
        return torch.where(degree > 0, degree.rsqrt(), 0.0)

    scale = _scale(block, "gcn", x_src.dtype, inverse_root)
    return _kept(block, "gcn", x_src, lambda: _Sum.apply(x_src, block, scale, scale, block.lacks_loop))


def max_in(block: Block, x_src: Tensor) -> Tensor:
    """Maximum of each destination's in-neighbour rows, zero where it has none: (S, F) -> (D, F)."""
    return _kept(block, "max", x_src, lambda: _Max.apply(widened(x_src), block))


def widened(rows: Tensor) -> Tensor:
    """Rows to calculate with: what is stored as bfloat16 becomes float32."""
    return rows.float() if rows.dtype == torch.bfloat16 else rows


def check_rows(block: Block, x_src: Tensor) -> None:
    """Refuse rows that are not one for each source."""
    if x_src.ndim != 2 or x_src.shape[0] != block.num_src:
        raise ValueError(
            f"x is {tuple(x_src.shape)}; expected {block.num_src} rows, one for each of the block's sources"
        )


def _kept(block: Block, name: str, x_src: Tensor, compute: Callable[[], Tensor]) -> Tensor:
    check_rows(block, x_src)
    return block.keep(("aggregate", name), compute) if x_src is block.static_src else compute()


def _scale(block: Block, name: str, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
    dtype = torch.float32 if dtype == torch.bfloat16 else dtype
    return block.keep(("scale", name, dtype), lambda: compute().to(dtype))


def _weights(block: Block, dtype: torch.dtype, *, transposed: bool) -> Tensor | None:
    if block.edge_weight is None:
        return None
    weight, origin = block.edge_weight, block.transposed.origin if transposed else None
    return _scale(block, f"weight-{transposed}", dtype, lambda: weight if origin is None else weight[origin])


class _Sum(torch.autograd.Function):
    """``native.spmm``; its backward is the same sum over the transposed block with the scales exchanged."""

    @staticmethod
    def forward(
        ctx: Any, x_src: Tensor, block: Block, pre: Tensor | None, post: Tensor | None, loop: Tensor | None
    ) -> Tensor:
        ctx.block, ctx.pre, ctx.post, ctx.loop = block, pre, post, loop
        weight = _weights(block, x_src.dtype, transposed=False)
        return native.spmm(block.csr, x_src, weight=weight, pre=pre, post=post, loop=loop)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (grad_dst,) = grads
        block: Block = ctx.block
        weight = _weights(block, grad_dst.dtype, transposed=True)
        grad_src = native.spmm(
            block.transposed, grad_dst, weight=weight, pre=ctx.post, post=ctx.pre, loop=ctx.loop
        )
        return grad_src, None, None, None, None


class _Max(torch.autograd.Function):
    """``native.segment_max``; each gradient goes to the source that gave the maximum."""

    @staticmethod
    def forward(ctx: Any, x_src: Tensor, block: Block) -> Tensor:
        out, source = native.segment_max(block.csr, x_src)
        ctx.block = block
        ctx.save_for_backward(source)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (source,) = ctx.saved_tensors
        return native.segment_max_backward(ctx.block.transposed, grads[0], source), None
