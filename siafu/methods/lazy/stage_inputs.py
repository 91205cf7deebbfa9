"""The inputs of a stage: own and halo rows, exchanged once, and aggregated once if the aggregate has no weights."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm
from siafu.comm.compressed_halo import exchange_rows
from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.route import Route
from siafu.context import NO_EXCHANGE, Context
from siafu.graph import Block, Whole


@dataclass(frozen=True, eq=False)
class StageInputs:
    """The rows that a stage reads, which do not change while it trains, and the context in which it reads them.

    Attributes:
        context: it needs no halo exchange, since all rows are here; ``x_src`` are its static rows.
        x_src: (S, F).
    """

    context: Context
    x_src: Tensor

    def subset(self, rows: Tensor) -> "StageInputs":
        """Restrict the inputs to some destinations, (R,) int64: their cached aggregates, without their edges."""
        made = edgeless_inputs(self.context, native.gather(self.x_src, rows), rows)
        for name, kept in self.context.cache.items():
            if isinstance(name, tuple) and name[0] == "aggregate":
                made.context.cache[name] = native.gather(kept, rows)
        return made


def edgeless_inputs(context: Context, x_rows: Tensor, rows: Tensor) -> StageInputs:
    """Build inputs of some destinations of a block, (R,) int64, without edges, from their rows (R, F)."""
    node_id = rows if context.node_id is None else context.node_id[rows]
    indptr = torch.zeros(rows.numel() + 1, dtype=torch.int64)
    few = Block(indptr, torch.empty(0, dtype=torch.int32), rows.numel(), node_id=node_id)
    return StageInputs(few.with_static(x_rows), x_rows)


def gather_source_rows(
    comm: Comm, route: Route, x_own: Tensor, *, precision: Precision, label: str
) -> Tensor:
    """Round own rows, exchange them, and append the halo rows: (D, F) -> (S, F). Collective.

    Own rows are rounded too, so that all ranks read the same numbers. Rows travel compressed without loss.
    """
    x_own = quantize_dequantize(x_own, precision)
    return torch.cat([x_own, exchange_rows(comm, route, x_own, label=label)])


def drop_edges_from(context: Context, unknown: Tensor) -> Context:
    """Drop the edges from some sources, (S,) bool, of a detached context; in a mean the other edges weigh more."""
    block = context.block
    kept = ~unknown[block.indices.long()]
    dst = block.row_edge[kept]
    indptr = torch.zeros_like(block.indptr)
    indptr[1:] = torch.bincount(dst, minlength=block.num_dst).cumsum(0)
    weight = None if block.edge_weight is None else block.edge_weight[kept]
    whole = None if block.whole is None else block.whole._replace(num_edges=indptr.diff())
    fewer = replace(block, indptr=indptr, indices=block.indices[kept], edge_weight=weight, whole=whole)
    return replace(context, block=fewer, cache={})


def detach_halo(comm: Comm, route: Route, context: Context, *, degrees: bool) -> Context:
    """Detach a part's context from halo exchange; with ``degrees``, exchange the degrees of its sources. Collective."""
    block, whole = context.block, None
    if degrees:
        degree = (block.in_degree + block.missing_loop)[:, None]
        degree_src = gather_source_rows(comm, route, degree, precision="fp32", label="halo degrees")[:, 0]
        degree_src[degree_src == 0] = 1.0  # of a node without known rows, whose edges are dropped
        whole = Whole(degree_src, block.missing_loop, block.indptr.diff())
    block = replace(block, whole=whole)
    return replace(context, block=block, exchange=NO_EXCHANGE, static_src=None, cache={})
