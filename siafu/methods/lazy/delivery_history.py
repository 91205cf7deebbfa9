"""What clients know of their neighbours' rows: those that came, and those that came before."""

from dataclasses import replace

import torch
from torch import Tensor

from siafu.comm.rounds import MemberLinks
from siafu.graph import Block, Whole


class Known:
    """Which rows came to whom in each stage, and the block that is left without the others.

    ``block`` is the whole graph's, whose nodes have an ``owner`` each, (N,) int64.
    """

    def __init__(self, block: Block, links: MemberLinks, owner: Tensor) -> None:
        self._block, self._links, self._owner = block, links, owner
        self._came: dict[int, Tensor] = {}

    def asked(self, senders: Tensor, readers: Tensor) -> Tensor:
        """The messages between some members and others, each (P,) bool: (M,) bool."""
        links = self._links
        return senders[self._owner[links.row]] & readers[links.reader]

    def block(self, stage: int, rows: list[Tensor], came: Tensor, *, stands_in: bool) -> tuple[Block, Tensor]:
        """What is read in a stage of whose messages those, (M,) bool, came: a block, and the rows of its sources.

        An edge whose source did not come is left out, and what is left weighs more, as where edges are drawn. Where
        ``stands_in``, the row that came last in an earlier stage, if it is as wide, takes its place.
        """
        self._came[stage] = came | self._came.get(stage, torch.zeros_like(came))
        whole, message = self._block, self._links.of_edge
        here = (message < 0) | came[message]
        if bool(here.all()):
            return whole, rows[stage]
        column, tables = whole.indices.clone(), [rows[stage]]
        for earlier in range(stage - 1, 0, -1) if stands_in else ():
            stood_in = (
                ~here & self._came[earlier][message] if earlier in self._came else torch.zeros_like(here)
            )
            if bool(stood_in.any()):
                column[stood_in] += whole.num_dst * len(tables)
                tables.append(rows[earlier])
                here = here | stood_in
        return _left(whole, here, column, copies=len(tables)), torch.cat(tables)


def _left(whole: Block, here: Tensor, column: Tensor, *, copies: int) -> Block:
    """The block of some edges, (E,) bool, whose sources are told of in so many copies of the nodes."""
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), here.cumsum(0)])[whole.indptr]
    node_id = torch.arange(whole.num_dst) if whole.node_id is None else whole.node_id
    degree = whole.in_degree + whole.missing_loop
    return replace(
        whole,
        indptr=indptr,
        indices=column[here],
        num_src=copies * whole.num_dst,
        edge_weight=None if whole.edge_weight is None else whole.edge_weight[here],
        node_id=node_id.repeat(copies),
        static_src=None,
        memo={},
        whole=Whole(degree.repeat(copies), whole.missing_loop, whole.indptr.diff()),
    )
