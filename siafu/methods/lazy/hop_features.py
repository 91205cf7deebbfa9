"""Hop features: ``S^k X`` for some nodes, S being the normalised adjacency of GCN.

Ranks first request the rows that they need, hop by hop from the last to the first; only those are sent, compressed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siafu import native
from siafu.comm.comm import Comm
from siafu.comm.compressed_halo import exchange_rows, subset_route
from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.route import Route
from siafu.context import Context
from siafu.graph import Block
from siafu.nn.aggregates import Scales, edge_weights, gcn_scales

_REQUESTS, _ROWS = "halo asks", "halo features"


@dataclass(frozen=True, eq=False)
class _HopPlan:
    """The rows that one hop reads.

    Attributes:
        count: the number of own rows that the hop computes; they are the first of those that it reads.
        halo: (H,) bool, the halo rows that it reads.
        route: the route that brings these halo rows.
    """

    count: int
    halo: Tensor
    route: Route


def compute_hop_features(
    comm: Comm,
    context: Context,
    route: Route,
    x_own: Tensor,
    *,
    wanted: Tensor,
    hops: int,
    precision: Precision,
) -> list[Tensor]:
    """Compute ``S X``, …, ``S^hops X`` of the own rows ``wanted``, (W,) int64: (D, F) -> each (W, F). Collective.

    Inputs are sent exactly. The results of hops are rounded to ``precision``, on their own rank as on the wire.
    """
    block, by = context.block, gcn_scales(context, torch.float64)
    order, plan = _plan(comm, block, route, wanted, hops)
    rows, found = x_own[order], []
    for number, hop in enumerate(plan):
        rows = rows if number == 0 else quantize_dequantize(rows.double(), precision).to(rows.dtype)
        rows = _propagate(comm, block, by, order[: rows.shape[0]], rows, hop)
        found.append(rows[: wanted.numel()])
    return found


def _plan(comm: Comm, block: Block, route: Route, wanted: Tensor, hops: int) -> tuple[Tensor, list[_HopPlan]]:
    """Plan the hops. Returns the own rows that are read, ordered by the last hop that reads them; and the hops."""
    order, plan = wanted, []
    for _ in range(hops):
        read = native.mark_columns(block.csr, order, num_cols=block.num_src)
        halo = read[block.num_dst :]
        some = subset_route(comm, route, halo, label=_REQUESTS)
        plan.append(_HopPlan(order.numel(), halo, some))
        new = read[: block.num_dst]
        new[some.index] = True
        new[order] = False
        order = torch.cat([order, new.nonzero()[:, 0]])
    return order, plan[::-1]


def _propagate(comm: Comm, block: Block, by: Scales, order: Tensor, rows: Tensor, hop: _HopPlan) -> Tensor:
    """Multiply rows by ``S``, for the first ``count`` of them: (R, F) -> (count, F)."""
    place = torch.zeros(block.num_src, dtype=torch.int32)
    place[order] = torch.arange(order.numel(), dtype=torch.int32)
    index = place[hop.route.index].long()
    some = Route(index, hop.route.send, hop.route.recv)
    came = exchange_rows(comm, some, rows, label=_ROWS, own_row=hop.route.index)
    halo = hop.halo.nonzero()[:, 0] + block.num_dst
    place[halo] = torch.arange(order.numel(), order.numel() + halo.numel(), dtype=torch.int32)
    weight = edge_weights(block, rows.dtype, transposed=False)
    out_rows = order[: hop.count]
    csr = native.take_rows(block.csr, out_rows, name=place, origin=weight is not None)
    assert by.pre is not None
    assert by.post is not None
    assert by.loop is not None
    return native.spmm(
        csr,
        torch.cat([rows, came]),
        weight=None if weight is None or csr.origin is None else weight[csr.origin],
        pre=by.pre[torch.cat([order, halo])].to(rows.dtype),
        post=by.post[out_rows].to(rows.dtype),
        loop=by.loop[out_rows].to(rows.dtype),
    )
