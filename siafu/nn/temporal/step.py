"""The graph of one step, and its normalised aggregate: graph work without parameters, differentiable in the rows."""

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
    """The graph of one step: in-edges of N nodes, and a self-loop of weight ``loop`` for each node.

    The mean of the last c snapshots, with a self-loop of weight 1 for each node, has the same normalised aggregate as
    all edges of these snapshots with ``loop`` c. So no edge needs a weight.

    Attributes:
        block: N destinations and the same N sources; an edge that occurs c times counts c times.
        loop: the weight of the self-loops, beside the edges of the block.
        symmetric: whether the block equals its transpose, which is then not built.
    """

    block: Block
    loop: float = 1.0
    symmetric: bool = False

    def scale(self, dtype: torch.dtype) -> Tensor:
        """``(deg + loop)^-1/2``, (N,), cached with the block; zero where the degree is not positive."""

        def inverse_root() -> Tensor:
            block = self.block  # ``in_degree`` would be cached with every block
            degree = block.indptr.diff().double() if block.edge_weight is None else block.in_degree
            degree = degree + self.loop
            return torch.where(degree > 0, degree.rsqrt(), 0.0).to(dtype)

        return self.block.keep(("step", self.loop, dtype), inverse_root)

    def loops(self, dtype: torch.dtype) -> Tensor:
        """``loop`` for each node, (N,); steps of the same loop and size share the array."""
        return _full(self.block.num_dst, self.loop, dtype)


@lru_cache(maxsize=4)
def _full(number: int, value: float, dtype: torch.dtype) -> Tensor:
    return torch.full((number,), value, dtype=dtype)


def aggregate_step(step: Step, x_src: Tensor) -> Tensor:
    """``D^-1/2 (A + c I) D^-1/2 x``, D the row sums of ``A + c I``, c the loop: (N, F) -> (N, F)."""
    return aggregate_steps([step], x_src[None])[0]


def aggregate_steps(steps: Sequence[Step], x_src: StepRows) -> Tensor:
    """:func:`aggregate_step` of each step: T rows (N, F), or one for all -> (T, N, F)."""
    if isinstance(x_src, Tensor):
        return _AggregateSteps.apply(steps, x_src)
    if any(rows.requires_grad for rows in x_src):
        return _AggregateSteps.apply(steps, torch.stack(list(x_src)))
    return _aggregate_all(steps, x_src, transposed=False)


def stack_steps(x: StepRows) -> Tensor:
    """The rows of all steps as one tensor."""
    return x if isinstance(x, Tensor) else torch.stack(list(x))


def rows_of(x: StepRows, step: int) -> Tensor:
    """The rows of one step, (N, F)."""
    return x if isinstance(x, Tensor) and x.ndim == 2 else x[step]


def _aggregate_all(steps: Sequence[Step], x: StepRows, *, transposed: bool) -> Tensor:
    """Aggregate the in-neighbours in each step, or the out-neighbours where ``transposed``."""
    num_rows, width = rows_of(x, 0).shape
    out = native.empty_steps(len(steps), num_rows, width, rows_of(x, 0).dtype)
    for place, step in enumerate(steps):
        aggregate_step_into(step, rows_of(x, place), out[place], transposed=transposed)
    return out


def aggregate_step_into(step: Step, x: Tensor, out: Tensor, *, transposed: bool = False) -> None:
    """Fill ``out`` with :func:`aggregate_step` of a step, or of its transpose, without autograd."""
    block = step.block
    if x.shape[0] != block.num_src or block.num_src != block.num_dst:
        raise ValueError(
            f"x has {x.shape[0]} rows for a snapshot of {block.num_dst} rows and {block.num_src} columns; "
            "expected as many of each, one a node"
        )
    weight = None if block.edge_weight is None else block.edge_weight.to(x.dtype)
    csr = block.csr
    if transposed and not step.symmetric:
        csr = block.turned
        weight = None if weight is None or csr.origin is None else weight[csr.origin]
    scale = step.scale(x.dtype)
    native.spmm(csr, x, weight=weight, pre=scale, post=scale, loop=step.loops(x.dtype), out=out)


class _AggregateSteps(torch.autograd.Function):
    """The gradient is the aggregate over the transposed blocks."""

    @staticmethod
    def forward(ctx: Any, steps: Sequence[Step], x: Tensor) -> Tensor:
        ctx.steps, ctx.same = steps, x.ndim == 2
        return _aggregate_all(steps, x, transposed=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        grad = _aggregate_all(ctx.steps, grads[0], transposed=True)
        return None, grad.sum(0) if ctx.same else grad
