"""What a stage reads: own rows and the halo's, exchanged once, and aggregated once where weights play no part."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm
from siafu.comm.compressed_halo import exchange_rows
from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.route import Route
from siafu.graph import Block, Whole


@dataclass(frozen=True, eq=False)
class StageInputs:
    """Rows that do not change while a stage is learned, and the block over which they are read.

    Attributes:
        block: without others, since all rows are here; ``x_src`` are its static rows.
        x_src: (S, F).
    """

    block: Block
    x_src: Tensor

    def of(self, rows: Tensor) -> "StageInputs":
        """The same for some destinations, (R,) int64: what is kept of their aggregates, and none of their edges."""
        made = read_alone(self.block, native.gather(self.x_src, rows), rows)
        for name, kept in self.block.memo.items():
            if isinstance(name, tuple) and name[0] == "aggregate":
                made.block.memo[name] = native.gather(kept, rows)
        return made


def read_alone(block: Block, x_rows: Tensor, rows: Tensor) -> StageInputs:
    """Some destinations of a block, (R,) int64, without edges, with their rows (R, F)."""
    node_id = rows if block.node_id is None else block.node_id[rows]
    indptr = torch.zeros(rows.numel() + 1, dtype=torch.int64)
    few = Block(indptr, torch.empty(0, dtype=torch.int32), rows.numel(), node_id=node_id)
    return StageInputs(few.with_static(x_rows), x_rows)


def exchange(comm: Comm, route: Route, x_own: Tensor, *, precision: Precision, label: str) -> Tensor:
    """Own rows, then the halo's, all of them rounded: (D, F) -> (S, F). Collective.

    So all ranks read the same numbers. They travel in the fewest bytes that hold them, sparse rows sparse.
    """
    x_own = quantize_dequantize(x_own, precision)
    return torch.cat([x_own, exchange_rows(comm, route, x_own, label=label)])


def without(block: Block, unknown: Tensor) -> Block:
    """A settled block without the edges from some sources, (S,) bool: the others weigh more where a mean is taken."""
    kept = ~unknown[block.indices.long()]
    dst = block.row_edge[kept]
    indptr = torch.zeros_like(block.indptr)
    indptr[1:] = torch.bincount(dst, minlength=block.num_dst).cumsum(0)
    weight = None if block.edge_weight is None else block.edge_weight[kept]
    whole = None if block.whole is None else block.whole._replace(num_edges=indptr.diff())
    return replace(
        block, indptr=indptr, indices=block.indices[kept], edge_weight=weight, whole=whole, memo={}
    )


def settle(comm: Comm, route: Route, block: Block, *, degrees: bool) -> Block:
    """The block of a part for which the rows of all sources are here, with their degrees if so asked. Collective."""
    whole = None
    if degrees:
        degree = (block.in_degree + block.missing_loop)[:, None]
        degree_src = exchange(comm, route, degree, precision="fp32", label="halo degrees")[:, 0]
        degree_src[degree_src == 0] = (
            1.0  # of a node of which nothing is known, and none of whose edges is read
        )
        whole = Whole(degree_src, block.missing_loop, block.indptr.diff())
    return replace(block, others=None, whole=whole, static_src=None, memo={})
