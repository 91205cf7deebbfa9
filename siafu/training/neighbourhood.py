"""All nodes of a graph that is cut over ranks, asked by position: their in-edges, facts and rows.

A node's position is its row within its part after the rows of all parts before. Whoever owns a node answers for it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm
from siafu.graph import Block
from siafu.native import Csr
from siafu.partition.cut import Part
from siafu.sample import Drawn


class Facts(NamedTuple):
    """What is known of some nodes.

    Attributes:
        node_id: (R,) int64, the user's row numbers.
        num_edges: (R,) int64, of their in-edges.
        missing_loop: (R,) float64, what they lack of exactly one edge to themselves.
        degree: (R,) float64, the weight of their in-edges with exactly one loop.
    """

    node_id: Tensor
    num_edges: Tensor
    missing_loop: Tensor
    degree: Tensor


class Neighbourhood:
    """The nodes of all parts, seen from one of them. Every method is collective."""

    def __init__(self, comm: Comm, part: Part, block: Block) -> None:
        self._comm, own = comm, part.own
        sizes = comm.all_gather(torch.tensor([own.num_nodes]), label="sample")
        self.offset = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(sizes).cumsum(0)])
        self.first = int(self.offset[comm.rank])
        self._node_id = torch.arange(own.num_nodes) if own.node_id is None else own.node_id
        route = part.route
        halo = comm.all_to_all(route.index + self.first, route.send, route.recv, label="sample")
        self._position_src = torch.cat([torch.arange(own.num_nodes) + self.first, halo])
        self._csr, self._weight = _canonical(block)
        degree = block.in_degree + block.missing_loop
        counts = block.indptr.diff()
        self._facts = torch.stack([self._node_id.double(), counts.double(), block.missing_loop, degree], 1)

    def draw(self, position: Tensor, key: Tensor, *, fanout: int, replace: bool) -> Drawn:
        """Draw in-edges of nodes; see :class:`siafu.sample.Neighbours`."""
        asked = _Asked(self._comm, self.offset, position)
        rows, keys = asked.ask(position) - self.first, asked.ask(key)
        drawn = native.draw(
            self._csr, rows, key=keys, node_id=self._node_id[rows], fanout=fanout, replace=replace
        )
        count = asked.answer(drawn.indptr.diff())
        source = asked.answer_all(
            self._position_src[self._csr.indices[drawn.edge].long()], drawn.indptr, count
        )
        weight = None
        if self._weight is not None:
            weight = asked.answer_all(self._weight[drawn.edge], drawn.indptr, count)
        return Drawn(count, source, weight)

    def facts(self, position: Tensor) -> Facts:
        """What is known of nodes."""
        asked = _Asked(self._comm, self.offset, position)
        table = asked.answer(self._facts[asked.ask(position) - self.first])
        return Facts(table[:, 0].long(), table[:, 1].long(), table[:, 2], table[:, 3])

    def rows(self, position: Tensor, table: Tensor) -> Tensor:
        """The rows of nodes in a table that every rank has for its own nodes: (R,), (D, F) -> (R, F)."""
        asked = _Asked(self._comm, self.offset, position)
        return asked.answer(native.gather(table, asked.ask(position) - self.first))


class _Asked:
    """Questions about nodes on their way to those who own them, and answers on their way back."""

    def __init__(self, comm: Comm, offset: Tensor, position: Tensor) -> None:
        self._comm = comm
        owner = torch.searchsorted(offset, position, right=True) - 1
        self._order = owner.argsort(stable=True)
        self._send = torch.bincount(owner, minlength=comm.world_size)
        counts = comm.all_gather(self._send, label="sample")
        self._recv = torch.stack(counts)[:, comm.rank]

    def ask(self, values: Tensor) -> Tensor:
        """What each rank is asked, one value a question."""
        return self._comm.all_to_all(
            values[self._order], self._send.tolist(), self._recv.tolist(), label="sample"
        )

    def answer(self, values: Tensor) -> Tensor:
        """One value for each question, in the order in which they were asked."""
        came = self._comm.all_to_all(values, self._recv.tolist(), self._send.tolist(), label="sample")
        out = torch.empty_like(came)
        out[self._order] = came
        return out

    def answer_all(self, values: Tensor, indptr: Tensor, count: Tensor) -> Tensor:
        """Several values for each question; ``indptr`` says which here, ``count`` how many there."""
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), self._recv.cumsum(0)])
        given = indptr[ends].diff().tolist()
        came_count = count[self._order]
        expected = [int(part.sum()) for part in came_count.split(self._send.tolist())]
        came = self._comm.all_to_all(values, given, expected, label="sample")
        starts = torch.empty_like(count)
        starts[self._order] = came_count.cumsum(0) - came_count
        begin = (starts - count.cumsum(0) + count).repeat_interleave(count)
        return came[begin + torch.arange(came.numel())]


def _canonical(block: Block) -> tuple[Csr, Tensor | None]:
    """The in-edges of own nodes, each row in the order of the user's ids, so that draws depend on no cut."""
    weighted = block.edge_weight is not None
    origin = torch.arange(block.num_edges) if weighted else None
    csr = Csr(block.indptr, block.indices, origin)
    if block.node_id is not None:
        csr = native.sort_rows_by_id(csr, block.node_id)
    return csr, None if block.edge_weight is None or csr.origin is None else block.edge_weight[csr.origin]
