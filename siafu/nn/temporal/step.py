"""The graph of one step of time, and sums over it: graph work without parameters, differentiable in the rows."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block

# Rows of some steps: (T, N, F), a list of T tensors (N, F), or one (N, F) that is the same in every step.
StepRows = Tensor | Sequence[Tensor]


class Step(NamedTuple):
    """The graph of one step: in-edges of N nodes, and an edge of each node to itself that weighs ``loop``.

    The mean of the last c snapshots, with an edge of weight 1 added to each node, has the same normalised sum as all
    edges of these snapshots with ``loop`` c; so no edge needs a value.

    Attributes:
        block: N destinations and the same N sources; an edge that stands there c times counts c times.
        loop: the weight of the edge from each node to itself, beside those of the block.
        symmetric: whether the block is its own transpose, which then need not be made.
    """

    block: Block
    loop: float = 1.0
    symmetric: bool = False

    def scale(self, dtype: torch.dtype) -> Tensor:
        """``(deg + loop)^-1/2``, (N,), kept with the block; zero where that is no number."""

        def inverse_root() -> Tensor:
            block = self.block  # whose own degrees are kept, which is too much for every step
            degree = block.indptr.diff().double() if block.edge_weight is None else block.in_degree
            degree = degree + self.loop
            return torch.where(degree > 0, degree.rsqrt(), 0.0).to(dtype)

        return self.block.keep(("step", self.loop, dtype), inverse_root)

    def loops(self, dtype: torch.dtype) -> Tensor:
        """``loop`` for each node, (N,); the same array for all steps that are alike."""
        return _full(self.block.num_dst, self.loop, dtype)


@lru_cache(maxsize=4)
def _full(number: int, value: float, dtype: torch.dtype) -> Tensor:
    return torch.full((number,), value, dtype=dtype)


def snapshot_in(step: Step, x_src: Tensor) -> Tensor:
    """``D^-1/2 (A + c I) D^-1/2 x``, D the row sums of ``A + c I``, c the loop: (N, F) -> (N, F)."""
    return snapshots_in([step], x_src[None])[0]


def snapshots_in(steps: Sequence[Step], x_src: StepRows) -> Tensor:
    """:func:`snapshot_in` of each step: T rows (N, F), or one for all -> (T, N, F)."""
    if isinstance(x_src, Tensor):
        return _Snapshots.apply(steps, x_src)
    if any(rows.requires_grad for rows in x_src):
        return _Snapshots.apply(steps, torch.stack(list(x_src)))
    return _summed(steps, x_src, turned=False)


def stacked(x: StepRows) -> Tensor:
    """The rows of all steps as one tensor."""
    return x if isinstance(x, Tensor) else torch.stack(list(x))


def rows_of(x: StepRows, step: int) -> Tensor:
    """The rows of one step, (N, F)."""
    return x if isinstance(x, Tensor) and x.ndim == 2 else x[step]


def _summed(steps: Sequence[Step], x: StepRows, *, turned: bool) -> Tensor:
    """The sum of each step's in-neighbours, or out-neighbours where it is turned."""
    num_rows, width = rows_of(x, 0).shape
    out = native.empty_steps(len(steps), num_rows, width, rows_of(x, 0).dtype)
    for place, step in enumerate(steps):
        sum_step(step, rows_of(x, place), out[place], turned=turned)
    return out


def sum_step(step: Step, x: Tensor, out: Tensor, *, turned: bool = False) -> None:
    """Fill ``out`` with :func:`snapshot_in` of a step, or with that of its transpose; nothing is differentiated."""
    block = step.block
    if x.shape[0] != block.num_src or block.num_src != block.num_dst:
        raise ValueError(
            f"x has {x.shape[0]} rows for a snapshot of {block.num_dst} rows and {block.num_src} columns; "
            "expected as many of each, one a node"
        )
    weight = None if block.edge_weight is None else block.edge_weight.to(x.dtype)
    csr = block.csr
    if turned and not step.symmetric:
        csr = block.turned
        weight = None if weight is None or csr.origin is None else weight[csr.origin]
    scale = step.scale(x.dtype)
    native.spmm(csr, x, weight=weight, pre=scale, post=scale, loop=step.loops(x.dtype), out=out)


class _Snapshots(torch.autograd.Function):
    """The same sums over transposed blocks bring gradients back."""

    @staticmethod
    def forward(ctx: Any, steps: Sequence[Step], x: Tensor) -> Tensor:
        ctx.steps, ctx.same = steps, x.ndim == 2
        return _summed(steps, x, turned=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        grad = _summed(ctx.steps, grads[0], turned=True)
        return None, grad.sum(0) if ctx.same else grad
