"""``Aggregate``: the graph work of a layer, and its passes over ranges of rows.

A kind of aggregate is written once, as an :class:`AggregatePass`: forward and backward, by ranges of rows, over arrays.
:func:`aggregate` runs it over all rows at once under autograd; the pipeline runs the same pass interval by interval.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from siafu import native
from siafu.context import AnyBlock, Context, context_of
from siafu.native import SparseRows
from siafu.nn.aggregates.halo import check_rows, exchange_mode, widened
from siafu.nn.streamed import Rows, Streamed

Allocate = Callable[[int, int], Tensor]  # makes an array of so many rows and columns, to be filled


@dataclass(frozen=True)
class Aggregate:
    """A kind of aggregate over a block's in-edges, with its options.

    It may read weights of its layer (GATv2's vector); their gradients come with those of the rows.

    Attributes:
        linear: whether it commutes with a product, ``aggregate(x) W == aggregate(x W)``.
        reads_graph: whether it reads edges at all.
        reads_whole: whether it reads degrees in the whole graph where the edges of a block were sampled.
        saves_output: whether its backward pass reads its output, so that nothing may overwrite that.
    """

    linear: ClassVar[bool] = False
    reads_graph: ClassVar[bool] = True
    saves_output: ClassVar[bool] = False

    @property
    def reads_whole(self) -> bool:
        """True if it reads degrees in the whole graph where edges were sampled."""
        return False

    def m_features(self, z_features: int) -> int:
        """The width of its results, for rows of a width."""
        return z_features

    def begin(self, context: Context, *, width: int, dtype: torch.dtype) -> "AggregatePass":
        """Begin a pass over rows of so many columns. Collective, the first time for a context."""
        raise NotImplementedError

    def aggregate_streamed(self, context: Context, x_src: Streamed) -> Tensor:
        """Aggregate static rows that do not fit into memory: (num_given, F) -> (D, F), an array on disk. Collective."""
        raise ValueError(
            "this aggregate needs all inputs in memory, but data.inputs is stream; set it to memory"
        )

    def aggregate_sparse(self, context: Context, x_src: SparseRows) -> Rows:
        """Aggregate static sparse rows: (num_given, F) -> (D, F), dense where most numbers are not zero. Collective."""
        return aggregate(self, context, x_src.to_dense())


class AggregatePass:
    """One aggregate over a block, by ranges of rows, forward and backward.

    Rows are own rows, 0 to D - 1, then halo rows, D to S - 1. Arrays are allocated here (:meth:`allocate`) or set by
    the caller. Rows of ``z_src`` must be there, and announced by :meth:`filled`, before a destination that reads them
    is aggregated.

    Attributes:
        z_src: (S, Z), the rows to aggregate.
        m_dst: (D, M), the result.
        grad_dst: (D, M), its gradients.
        grad_src: (S, Z), the gradients of ``z_src``.
        sent: how many of the first columns are read of halo rows.
        collects: whether gradients of destinations are added up once those of sources are known (:meth:`collect`).
    """

    collects: ClassVar[bool] = False
    z_src: Tensor
    m_dst: Tensor
    grad_dst: Tensor
    grad_src: Tensor

    def __init__(self, context: Context, *, z_features: int, m_features: int, dtype: torch.dtype) -> None:
        self.context, self.block, self.dtype = context, context.block, dtype
        self.z_features, self.m_features, self.sent = z_features, m_features, z_features

    def allocate(self, allocate: Allocate) -> None:
        """Allocate all arrays, for a caller that fills them range by range."""
        self.z_src = allocate(self.block.num_src, self.z_features)
        self.m_dst = allocate(self.block.num_dst, self.m_features)
        self.grad_dst = allocate(self.block.num_dst, self.m_features)
        self.grad_src = allocate(self.block.num_src, self.z_features)
        self.z_src[self.block.num_dst :, self.sent :] = 0

    def use(self, dropout: native.Dropout, weights: Sequence[Tensor]) -> None:
        """Use this dropout of edges, and these weights of the layer, from now on."""

    def filled(self, rows: slice) -> None:
        """Note that rows of ``z_src`` have new values."""

    def forward(self, rows: slice) -> None:
        """Aggregate for a range of destinations."""
        raise NotImplementedError

    def grad_filled(self, rows: slice, *, again: bool) -> list[Tensor]:
        """Note that rows of ``grad_dst`` have new values; returns their share of the gradients of the layer's weights.

        ``again`` says that sources may have changed since these destinations were aggregated.
        """
        return []

    def backward(self, rows: slice) -> None:
        """Compute the gradients of a range of sources."""
        raise NotImplementedError

    def collect(self, rows: slice) -> None:
        """Add up the gradients that sources have left for a range of destinations."""

    def forward_all(self, z_own: Tensor, arrived: Callable[[], Tensor]) -> Tensor:
        """Aggregate for all destinations; ``arrived`` waits for the halo rows: (num_given, Z) -> (D, M)."""
        self.z_src = self._completed(z_own, arrived()) if self.context.has_halo else z_own.contiguous()
        self.m_dst = native.empty_rows(self.block.num_dst, self.m_features, self.dtype)
        self.filled(slice(0, self.z_src.shape[0]))
        self.forward(slice(0, self.block.num_dst))
        return self.m_dst

    def backward_halo(self, grad_dst: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute the gradients of all halo rows, (S - D, sent), and those of the layer's weights."""
        block, self.grad_dst = self.block, grad_dst.contiguous()
        self.allocate_gradients()
        self.grad_src[block.num_dst :, self.sent :] = 0
        of_weights = self.grad_filled(slice(0, block.num_dst), again=False)
        self.backward(slice(0, block.num_src))
        return self.grad_src[self.context.num_given :, : self.sent], of_weights

    def allocate_gradients(self) -> None:
        """Allocate the gradients of all sources."""
        self.grad_src = native.empty_rows(self.block.num_src, self.z_features, self.dtype)

    def backward_own(self) -> Tensor:
        """Compute the gradients of all own rows, or all rows where no other rank holds any, after the halo's."""
        self.collect(slice(0, self.block.num_dst))
        return self.grad_src[: self.block.num_dst].clone() if self.context.has_halo else self.grad_src

    def save(self) -> list[Tensor]:
        """Give the tensors that the backward pass reads, and forget them."""
        raise NotImplementedError

    def load(self, saved: Sequence[Tensor]) -> None:
        """Take them back."""
        raise NotImplementedError

    def _completed(self, z_own: Tensor, z_halo: Tensor) -> Tensor:
        """Own rows, then halo rows, of which ``sent`` columns have come."""
        z_src = native.empty_rows(self.block.num_src, self.z_features, z_own.dtype)
        z_src[: self.block.num_dst] = z_own
        z_src[self.block.num_dst :, : self.sent] = z_halo
        z_src[self.block.num_dst :, self.sent :] = 0
        return z_src


def aggregate(
    kind: Aggregate,
    block: AnyBlock,
    z_src: Rows,
    *,
    weights: Sequence[Tensor] = (),
    dropout: native.Dropout | None = None,
) -> Rows:
    """Aggregate over all in-edges of a block, differentiably: (num_given, Z) -> (D, M).

    The aggregate of a context's static inputs is computed once and kept with the context. Collective where other ranks
    hold the halo.
    """
    context = context_of(block)
    if not kind.reads_graph:  # rows of destinations suffice
        return widened(z_src[: context.num_dst])
    check_rows(context, z_src)
    if z_src is context.static_src:
        return aggregate_static(context, (kind,), z_src)
    if isinstance(z_src, Streamed):
        return Streamed(kind.aggregate_streamed(context, z_src), z_src.spill)
    if isinstance(z_src, SparseRows):
        return kind.aggregate_sparse(context, z_src)
    return _Aggregate.apply(z_src, kind, context, False, dropout or native.Dropout(), *weights)


def aggregate_static(context: Context, kinds: Sequence[Aggregate], x_src: Rows) -> Rows:
    """Aggregate the context's static inputs, by several kinds one after another: (num_given, F) -> (D, F).

    The result is computed once and kept with the context. Collective, the first time.
    """

    def compute() -> Rows:
        rows = x_src
        for kind in kinds:
            if isinstance(rows, Streamed):
                rows = replace(rows, rows=kind.aggregate_streamed(context, rows), scale=None)
            elif isinstance(rows, SparseRows):
                rows = kind.aggregate_sparse(context, rows)
            else:
                rows = _Aggregate.apply(rows, kind, context, True, native.Dropout())
        return rows

    if not any(kind.reads_graph for kind in kinds):
        return widened(x_src[: context.num_dst])
    check_rows(context, x_src)
    return context.keep(("aggregate", *kinds), compute)


class _Aggregate(torch.autograd.Function):
    """A pass over all rows. Where other ranks hold the halo, work on own rows overlaps with its exchange."""

    @staticmethod
    def forward(
        ctx: Any,
        z_own: Tensor,
        kind: Aggregate,
        context: Context,
        static: bool,
        dropout: native.Dropout,
        *weights: Tensor,
    ) -> Tensor:
        z_own = z_own if kind.linear else widened(z_own)
        dtype = torch.float32 if z_own.dtype == torch.bfloat16 else z_own.dtype
        ctx.run = run = kind.begin(context, width=z_own.shape[1], dtype=dtype)
        run.use(dropout, [weight.detach() for weight in weights])
        mode = exchange_mode(ctx.needs_input_grad[0], exact=static)
        arrived = context.exchange.start_gather(z_own[:, : run.sent], mode)
        out = run.forward_all(z_own.detach(), arrived)
        ctx.save_for_backward(*run.save())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        run: AggregatePass = copy(ctx.run)  # so that its arrays are free once this has returned
        run.load(ctx.saved_tensors)
        grad_halo, of_weights = run.backward_halo(grads[0])
        add_arrived = run.context.exchange.start_reduce(grad_halo)
        grad_own = run.backward_own()
        add_arrived(grad_own if run.sent == grad_own.shape[1] else grad_own[:, : run.sent])
        return grad_own, None, None, None, None, *of_weights
