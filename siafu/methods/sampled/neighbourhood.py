"""Neighbour sampling over ranks: the owner of a node samples its in-edges.

Nodes are named by position, an int32: the row in the owner's part, after the rows of all parts before it. A rank
samples the in-edges of its own nodes while its questions to other ranks travel.
"""

from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.array_checks import check_ids
from siafu.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantization import decode, encode
from siafu.comm.sparse_rows import exchange_sparse_rows
from siafu.graph import Block
from siafu.native import Csr, SparseRows
from siafu.nn.streamed import Spill
from siafu.partition.cut import Part
from siafu.sampling import SampledEdges, SampledHop

_FEW = 255  # edges a node that a byte can count


class Neighbourhood:
    """The nodes of all parts, seen from one of them.

    Attributes:
        offset: (P + 1,) int64, the position of each part's first node, and the number of all nodes.
        own: the positions of this rank's own nodes.
    """

    def __init__(self, comm: Comm, part: Part, *, spill: Spill | None = None) -> None:
        """``spill`` makes the array of its in-edges, where that should not lie in memory. Collective."""
        self._comm, num_own = comm, part.own.num_nodes
        sizes = comm.all_gather(torch.tensor([num_own]), label="sample")
        self.offset = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(sizes).cumsum(0)])
        first = int(self.offset[comm.rank])
        self.own = range(first, first + num_own)
        self._node_id, self._name = part.own.node_id, None
        if comm.world_size > 1:
            route = part.route
            halo = comm.all_to_all((route.index + first).int(), route.send, route.recv, label="sample")
            self._name = torch.cat([torch.arange(first, first + num_own, dtype=torch.int32), halo])
        self._csr, self._weight = _canonical(part.block, spill)

    def sample_hop(self, nodes: list[Tensor], *, key: Tensor, fanout: int, replace: bool) -> SampledHop:
        """Draw in-edges of nodes; see :class:`siafu.sampling.NeighborSampler`. Collective."""
        if self._comm.world_size == 1:
            weighted = self._weight is not None
            how: dict[str, Any] = {"node_id": self._node_id, "edges": weighted}
            met = native.sample_and_relabel(self._csr, nodes, key=key, fanout=fanout, replace=replace, **how)
            return SampledHop(met.indptr, met.src_row, met.new_nodes, self._weight_of(met.edge))
        sizes = torch.tensor([known.numel() for known in nodes])
        drawn = self.draw(torch.cat(nodes), sizes=sizes, key=key, fanout=fanout, replace=replace)
        ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        places, fresh = native.local_rows(nodes, drawn.source, drawn.indptr[ends].diff().tolist())
        return SampledHop(drawn.indptr, places, fresh, drawn.weight)

    def draw(
        self, position: Tensor, *, sizes: Tensor, key: Tensor, fanout: int, replace: bool
    ) -> SampledEdges:
        """Draw in-edges of nodes, (R,) int32, group after group; ``sizes`` and ``key``, (G,) int64, are the groups'.

        Collective.
        """
        if self._comm.world_size == 1:
            return self._draw(position, sizes, key, fanout, replace)
        is_own = self.is_own(position)
        group = torch.arange(sizes.numel()).repeat_interleave(sizes)
        there, here = (~is_own).nonzero()[:, 0], is_own.nonzero()[:, 0]
        asked = NodeQuery(self._comm, self.offset, position[there], group[there], groups=sizes.numel())
        own_sizes = torch.bincount(group[here], minlength=sizes.numel())
        drawn = self._draw(position[here] - self.own.start, own_sizes, key, fanout, replace)
        came = self._draw(asked.rows(), asked.sizes, key.repeat(self._comm.world_size), fanout, replace)
        answers = asked.answer(came, few=0 <= fanout <= _FEW)
        return _merged(position.numel(), [(here, drawn), (there, answers)])

    def is_own(self, position: Tensor) -> Tensor:
        """Say which of some nodes this rank owns, (R,) bool."""
        return (position >= self.own.start) & (position < self.own.stop)

    def _draw(self, rows: Tensor, sizes: Tensor, key: Tensor, fanout: int, replace: bool) -> SampledEdges:
        """Draw in-edges of own nodes, (R,) int32."""
        drawn = native.sample_edges(
            self._csr,
            rows,
            sizes=sizes,
            key=key,
            fanout=fanout,
            replace=replace,
            node_id=self._node_id,
            name=self._name,
            edges=self._weight is not None,
        )
        return SampledEdges(drawn.indptr, drawn.source, self._weight_of(drawn.edge))

    def _weight_of(self, edge: Tensor | None) -> Tensor | None:
        return None if self._weight is None or edge is None else self._weight[edge]


class NodeQuery:
    """A query about nodes of other ranks, sent to their owners, in groups that all ranks know.

    Attributes:
        sizes: (P G,) int64, the number of questions of each group from each rank; set once :meth:`rows` has returned.
    """

    def __init__(
        self, comm: Comm, offset: Tensor, position: Tensor, group: Tensor | None = None, *, groups: int = 1
    ) -> None:
        """Send the questions, (R,) int32; ``group`` is (R,) int64 and ascends. Collective."""
        self._comm, ranks, self._num_nodes = comm, comm.world_size, int(offset[-1])
        owner = torch.bucketize(position, offset[1:], right=True)
        self._order = owner.argsort(stable=True)
        bucket = owner * groups + (0 if group is None else group)
        counts = torch.bincount(bucket, minlength=ranks * groups)
        self._send = counts.view(ranks, groups).sum(1).tolist()
        each = [groups] * ranks
        self.sizes = comm.all_to_all(counts.int(), each, each, label="sample").long()
        self._recv = self.sizes.view(ranks, groups).sum(1).tolist()
        row = (position - offset[owner])[self._order].int()
        self._rows = comm.start_all_to_all(row, self._send, self._recv, label="sample")

    def rows(self) -> Tensor:
        """Wait for the own rows that other ranks ask for, rank after rank, group after group: (Q,) int32."""
        return self._rows.wait()

    def answer(self, drawn: SampledEdges, *, few: bool) -> SampledEdges:
        """Send other ranks the edges sampled for them; returns those that they sampled for this one. Collective.

        ``few`` says that a byte can count the edges of a node.
        """
        counts = drawn.indptr.diff()
        sent = counts.to(torch.uint8 if few else torch.int32)
        came = self._comm.all_to_all(sent, self._recv, self._send, label="sample").long()
        ends = torch.tensor([0, *self._recv]).cumsum(0)
        given = drawn.indptr[ends].diff().tolist()
        expected = [int(part.sum()) for part in came.split(self._send)]
        source = self._comm.all_to_all(drawn.source, given, expected, label="sample")
        check_ids(source, self._num_nodes, "sources that other ranks drew", field="source")
        weight = drawn.weight
        if weight is not None:
            weight = self._comm.all_to_all(weight, given, expected, label="sample")
        answers = SampledEdges(torch.cat([came.new_zeros(1), came.cumsum(0)]), source, weight)
        return _merged(came.numel(), [(self._order, answers)])

    def answer_rows(self, rows: Tensor, *, precision: Precision = "fp32") -> Tensor:
        """One row for each question, in the order in which they were asked: (Q, F) -> (R, F). Collective."""
        wire = self._comm.all_to_all(encode(rows, precision), self._recv, self._send, label="fetch")
        came = wire if precision == "fp32" else decode(wire, precision, rows.shape[1], rows.dtype)
        self._comm.check_rows(came, self._send, label="fetch")
        out = torch.empty_like(came)
        out[self._order] = came
        return out

    def answer_sparse_rows(self, rows: SparseRows) -> SparseRows:
        """One sparse row for each question, in the order in which they were asked. Collective."""
        came = exchange_sparse_rows(self._comm, rows, self._recv, self._send, label="fetch")
        return came.take(self._order.argsort())


def _merged(num_rows: int, pieces: list[tuple[Tensor, SampledEdges]]) -> SampledEdges:
    """Merge edges sampled for different rows, in the order of the rows."""
    counts = torch.empty(num_rows, dtype=torch.int64)
    for rows, drawn in pieces:
        counts[rows] = drawn.indptr.diff()
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    source = torch.empty(int(indptr[-1]), dtype=torch.int32)
    weighted = pieces[0][1].weight is not None
    weight = torch.empty(source.numel(), dtype=torch.float32) if weighted else None
    for rows, drawn in pieces:
        native.scatter_rows(drawn.indptr, drawn.source, rows, indptr, source)
        if weight is not None and drawn.weight is not None:
            native.scatter_rows(drawn.indptr, drawn.weight.float(), rows, indptr, weight)
    return SampledEdges(indptr, source, weight)


def _canonical(block: Block, spill: Spill | None) -> tuple[Csr, Tensor | None]:
    """The in-edges of own nodes, each row in the order of the user's ids, so that draws depend on no cut."""
    weighted = block.edge_weight is not None
    origin = torch.arange(block.num_edges) if weighted else None
    csr = Csr(block.indptr, block.indices, origin)
    if block.node_id is not None:
        apart = spill(block.num_edges, 1).view(torch.int32)[:, 0] if spill else None
        csr = native.sort_rows_by_id(csr, block.node_id, indices=apart)
    return csr, None if block.edge_weight is None or csr.origin is None else block.edge_weight[csr.origin]
