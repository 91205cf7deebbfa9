"""Cut a graph into parts: each part has all in-edges of its nodes, and a halo of rows that it reads from others.

Edges are cut by destination. So a part knows the degrees of its nodes, and one CSR and one halo serve the forward and
the backward pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.comm.route import Route, empty_route
from siafu.context import NO_EXCHANGE, Context, HaloExchange
from siafu.graph import Block, Graph, take_rows
from siafu.native import Csr

NODE_FIELDS = ("x", "x_scale", "y", "train_mask", "val_mask", "test_mask")


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a graph that one rank trains on.

    Attributes:
        number: the number of the part.
        num_nodes: of the whole graph.
        own: the D nodes it owns, as a graph whose ``indices`` are own rows, then halo rows; each row ascends.
        halo_id: (H,) int64, the user's row numbers of the halo: nodes it reads but does not own, in the route's order.
        route: the own rows to send to each rank, and the number of halo rows from each.
    """

    number: int
    num_nodes: int
    own: Graph
    halo_id: Tensor
    route: Route

    @cached_property
    def block(self) -> Block:
        """The part as one block, over own rows, then halo rows."""
        own = self.own
        if not self.halo_id.numel():
            return replace(own.block)  # a copy, so that its transpose lives no longer than the part
        assert own.node_id is not None
        node_id = torch.cat([own.node_id, self.halo_id])
        return Block(own.indptr, own.indices, node_id.numel(), own.edge_weight, node_id, checked=own.checked)

    def context(self, exchange: HaloExchange = NO_EXCHANGE, *, narrow: bool = True) -> Context:
        """Return the context of the part's block, with the exchange of its halo rows; the only part needs none."""
        assert exchange.has_halo or not self.halo_id.numel()
        return Context(self.block, exchange, narrow=narrow)


@dataclass(frozen=True, eq=False)
class PartRows:
    """One part as rows of the whole graph, before any node data is copied.

    Attributes:
        number: which part.
        rows: (D,) int64, the rows it owns.
        halo: (H,) int64, the rows it reads from others, grouped by owner.
        csr: its in-edges, over own rows, then halo rows; ``origin`` where edges have weights.
        route: the own rows to send to each rank, and the number of halo rows from each.
    """

    number: int
    rows: Tensor
    halo: Tensor
    csr: Csr
    route: Route

    def part(self, graph: Graph) -> Part:
        """Copy the node data of the part into memory."""
        given = {name: getattr(graph, name) for name in NODE_FIELDS}
        nodes: dict[str, Any] = {name: take_rows(rows, self.rows) for name, rows in given.items()}
        own = Graph(
            self.csr.indptr,
            self.csr.indices,
            **nodes,
            edge_weight=self.edge_weight(graph),
            node_id=user_rows(graph, self.rows),
            name=graph.name,
            class_names=graph.class_names,
            num_halo=self.halo.numel(),
        )
        return Part(self.number, graph.num_nodes, own, user_rows(graph, self.halo), self.route)

    def edge_weight(self, graph: Graph) -> Tensor | None:
        """Return the weights of the part's edges."""
        if graph.edge_weight is None:
            return None
        assert self.csr.origin is not None
        return graph.edge_weight[self.csr.origin]


def whole_part(graph: Graph) -> Part:
    """Return the only part of a graph that is not cut."""
    return Part(0, graph.num_nodes, graph, torch.empty(0, dtype=torch.int64), empty_route())


def cut(graph: Graph, part_of_node: Tensor, *, parts: int, order: Tensor | None = None) -> Iterator[PartRows]:
    """Yield each part in turn; its nodes are in the order of ``order`` (N,), or as in the graph.

    ``part_of_node`` is (N,) int32. Beside one part at a time, this holds 13 bytes per node and 8 per halo row.
    """
    csr, owned = Csr(graph.indptr, graph.indices), _owned(part_of_node, parts, order)
    place = torch.empty(graph.num_nodes, dtype=torch.int32)  # within its own part
    for rows in owned:
        place[rows] = torch.arange(rows.numel(), dtype=torch.int32)
    halos = [_halo(csr, rows, part_of_node, place, parts) for rows in owned]
    name = torch.empty(graph.num_nodes, dtype=torch.int32)
    for number, rows in enumerate(owned):
        halo = torch.cat(halos[number])
        name[rows] = place[rows]
        name[halo] = torch.arange(rows.numel(), rows.numel() + halo.numel(), dtype=torch.int32)
        sent = [place[halos[reader][number]].long() for reader in range(parts)]
        route = Route(
            torch.cat(sent),
            tuple(index.numel() for index in sent),
            tuple(rows.numel() for rows in halos[number]),
        )
        taken = native.take_rows(csr, rows, name=name, origin=graph.edge_weight is not None)
        yield PartRows(number, rows, halo, taken, route)


def user_rows(graph: Graph, rows: Tensor) -> Tensor:
    """Map rows of the graph to the user's row numbers."""
    return rows if graph.node_id is None else graph.node_id[rows]


def _owned(part_of_node: Tensor, parts: int, order: Tensor | None) -> list[Tensor]:
    """Return the rows of each part, (D,) int64."""
    if order is None:
        return [(part_of_node == number).nonzero()[:, 0] for number in range(parts)]
    owner = part_of_node[order]
    return [order[owner == number] for number in range(parts)]


def _halo(csr: Csr, rows: Tensor, part_of_node: Tensor, place: Tensor, parts: int) -> list[Tensor]:
    """Return the rows that a part reads from each other part, in the order of the owner's rows."""
    read = native.mark_columns(csr, rows, num_cols=part_of_node.numel())
    read[rows] = False
    halo = read.nonzero()[:, 0]
    owner = part_of_node[halo].long()
    halo = halo[(owner * part_of_node.numel() + place[halo]).argsort()]
    return list(halo.split(torch.bincount(owner, minlength=parts).tolist()))
