"""The rows that clients have received from their neighbours, now and in earlier stages."""

from dataclasses import replace

import torch
from torch import Tensor

from siafu.comm.rounds import MemberLinks
from siafu.context import Context
from siafu.graph import Block, Whole


class DeliveryHistory:
    """Records which messages were delivered in each stage, and builds the block of the edges whose rows are known.

    ``context`` is that of the whole graph; ``owner``, (N,) int64, is the client of each node.
    """

    def __init__(self, context: Context, links: MemberLinks, owner: Tensor) -> None:
        self._context, self._links, self._owner = context, links, owner
        self._came: dict[int, Tensor] = {}

    def messages_between(self, senders: Tensor, readers: Tensor) -> Tensor:
        """Select the messages from ``senders`` to ``readers``, each (P,) bool: (M,) bool."""
        links = self._links
        return senders[self._owner[links.row]] & readers[links.reader]

    def context(
        self, stage: int, rows: list[Tensor], came: Tensor, *, stands_in: bool
    ) -> tuple[Context, Tensor]:
        """Build the context of a stage and the rows of its sources; ``came``, (M,) bool, are the delivered messages.

        An edge whose source row was not delivered is left out, and the others weigh more, as with sampled edges. With
        ``stands_in``, the last row that was delivered in an earlier stage of the same width is used instead.
        """
        self._came[stage] = came | self._came.get(stage, torch.zeros_like(came))
        whole, message = self._context.block, self._links.of_edge
        here = (message < 0) | came[message]
        if bool(here.all()):
            return self._context, rows[stage]
        column, tables = whole.indices.clone(), [rows[stage]]
        for earlier in range(stage - 1, 0, -1) if stands_in else ():
            stale = ~here & self._came[earlier][message] if earlier in self._came else torch.zeros_like(here)
            if bool(stale.any()):
                column[stale] += whole.num_dst * len(tables)
                tables.append(rows[earlier])
                here = here | stale
        block = _without_edges(whole, here, column, copies=len(tables))
        return replace(self._context, block=block, static_src=None, cache={}), torch.cat(tables)


def _without_edges(whole: Block, here: Tensor, column: Tensor, *, copies: int) -> Block:
    """Build the block of some edges, (E,) bool; its sources are ``copies`` of all nodes, one per table of rows."""
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
        whole=Whole(degree.repeat(copies), whole.missing_loop, whole.indptr.diff()),
    )
