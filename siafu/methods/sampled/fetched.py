"""Static rows of nodes of all ranks: own rows are read in place, others are fetched, hot ones are cached."""

from typing import NamedTuple

import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm
from siafu.comm.config import Precision
from siafu.methods.sampled.neighbourhood import Neighbourhood, NodeQuery
from siafu.native import SparseRows
from siafu.nn.streamed import Rows


class Table(NamedTuple):
    """A table with a row for every node.

    Attributes:
        rows: (D, F), of this rank's own nodes.
        precision: of its rows on the wire.
    """

    rows: Rows
    precision: Precision = "fp32"

    @property
    def width(self) -> int:
        """F."""
        return self.rows.shape[1]

    def take(self, row: Tensor) -> Tensor | SparseRows:
        """Some of the rows: (R,) -> (R, F)."""
        return native.gather(self.rows, row) if isinstance(self.rows, Tensor) else self.rows.take(row)


class FetchedRows(NamedTuple):
    """Rows of nodes of other ranks.

    Attributes:
        position: (R,) int32, ascending.
        rows: for each table, (R, F).
    """

    position: Tensor
    rows: list[Tensor | SparseRows]


class StaticRows:
    """Tables over the nodes of all ranks, seen from one of them.

    Attributes:
        tables: what is known of this rank's own nodes.
    """

    def __init__(self, comm: Comm, near: Neighbourhood, tables: list[Table], *, hot_bytes: int) -> None:
        self.tables = tables
        self._comm, self._near, self._num_own = comm, near, len(near.own)
        each = sum(table.width * table.rows.dtype.itemsize for table in tables)
        others = int(near.offset[-1]) - self._num_own
        sparse = any(
            isinstance(table.rows, SparseRows) for table in tables
        )  # they are small, and fetched again
        self._hot = None if sparse else _HotRows(tables, slots=min(others, hot_bytes // max(1, each)))

    def fetch(self, position: Tensor) -> FetchedRows:
        """The rows of others' nodes, (R,) int32, ascending, each once. Collective."""
        if self._hot is None:
            return FetchedRows(position, self._ask(position))
        hit, slot = self._hot.find(position)
        missing = position[~hit]
        came = [_dense(rows) for rows in self._ask(missing)]
        rows: list[Tensor | SparseRows] = []
        for kept, fresh in zip(self._hot.rows, came, strict=True):
            out = native.empty_rows(position.numel(), fresh.shape[1], fresh.dtype)
            out[hit], out[~hit] = kept[slot], fresh
            rows.append(out)
        self._hot.keep(missing, came)
        return FetchedRows(position, rows)

    def place(self, position: Tensor, fetched: FetchedRows) -> Tensor:
        """Find the rows of nodes, (R,) int64: own rows first, then fetched rows."""
        row = position.long() - self._near.own.start
        if not fetched.position.numel():
            return row
        there = torch.searchsorted(fetched.position, position) + self._num_own
        return torch.where(self._near.is_own(position), row, there)

    def read(self, which: int, place: Tensor, fetched: FetchedRows) -> Tensor | SparseRows:
        """The rows of one table at some places, (R,) -> (R, F)."""
        table, more = self.tables[which], fetched.rows[which]
        if not fetched.position.numel():
            return table.take(place)
        if isinstance(table.rows, Tensor) and isinstance(more, Tensor):
            return native.gather(table.rows, place, more=more)
        own = place < self._num_own
        here, there = table.take(place[own]), place[~own] - self._num_own
        if isinstance(here, SparseRows) and isinstance(more, SparseRows):
            order = torch.cat([own.nonzero()[:, 0], (~own).nonzero()[:, 0]]).argsort()
            return SparseRows.concatenate([here, more.take(there)]).take(order)
        out = native.empty_rows(place.numel(), table.width, table.rows.dtype)
        out[own], out[~own] = _dense(here), _dense(more)[there]
        return out

    def read_dense(self, which: int, place: Tensor, fetched: FetchedRows) -> Tensor:
        """The same of a table that is not sparse."""
        return _dense(self.read(which, place, fetched))

    def _ask(self, position: Tensor) -> list[Tensor | SparseRows]:
        """Fetch rows from their owners; on one rank there are none to fetch. Collective."""
        if self._comm.world_size == 1:
            return [table.take(position) for table in self.tables]
        asked = NodeQuery(self._comm, self._near.offset, position)
        row, came = asked.rows().long(), list[Tensor | SparseRows]()
        for table in self.tables:
            if not table.width:
                came.append(torch.empty(position.numel(), 0, dtype=table.rows.dtype))
                continue
            rows = table.take(row)
            if isinstance(rows, SparseRows):
                came.append(asked.answer_sparse_rows(rows))
            else:
                came.append(asked.answer_rows(rows, precision=table.precision))
        return came


def _dense(rows: Tensor | SparseRows) -> Tensor:
    return rows.to_dense() if isinstance(rows, SparseRows) else rows


class _HotRows:
    """Rows of others that were read of late, in a fixed number of slots; the least read make room."""

    def __init__(self, tables: list[Table], *, slots: int) -> None:
        self.rows = [torch.empty(slots, table.width, dtype=table.rows.dtype) for table in tables]
        self._heat = torch.full(
            (slots,), -1, dtype=torch.int32
        )  # 0: its slot may be taken; below: it is empty
        self._position = torch.empty(0, dtype=torch.int32)  # ascending
        self._slot = torch.empty(0, dtype=torch.int64)

    def find(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Which of some nodes are here, (R,) bool, and the slots of those."""
        if not self._position.numel():
            return torch.zeros(position.numel(), dtype=torch.bool), torch.empty(0, dtype=torch.int64)
        at = torch.searchsorted(self._position, position).clamp_(max=self._position.numel() - 1)
        hit = self._position[at] == position
        slot = self._slot[at[hit]]
        self._heat >>= 1  # what is below zero stays there
        self._heat[slot] += 4
        return hit, slot

    def keep(self, position: Tensor, rows: list[Tensor]) -> None:
        """Take in as many nodes as there is room for."""
        wanted = position.numel()
        free = (self._heat < 0).nonzero()[:wanted, 0]
        if free.numel() < wanted:
            cold = (self._heat == 0).nonzero()[: wanted - free.numel(), 0]
            free = torch.cat([free, cold])
        if not free.numel():
            return
        position = position[: free.numel()]
        for kept, fresh in zip(self.rows, rows, strict=True):
            kept[free] = fresh[: free.numel()]
        self._heat[free] = 4
        stays = ~torch.isin(self._slot, free)
        joined = torch.cat([self._position[stays], position])
        order = joined.argsort()
        self._position, self._slot = joined[order], torch.cat([self._slot[stays], free])[order]
