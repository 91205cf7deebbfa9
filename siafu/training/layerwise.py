"""A model's exact outputs, layer by layer, for activations that do not fit into memory.

The rows that a layer reads and writes are tables, on disk where they are large. A layer goes over its destinations
range by range, each a small block with all of its in-edges, so that of rows no more is held in memory than a budget,
however large the graph.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block, Whole
from siafu.nn.aggregate import bring_halo, widened, with_halo
from siafu.nn.dense import Dense
from siafu.nn.layer import Layer
from siafu.nn.model import Gnn
from siafu.nn.streamed import Rows, Spill, Streamed

_TABLES = 4  # of a layer at once: what it reads, its halo, what it projects, what it writes
_EDGE_BYTES = 32  # what renaming the sources of a range holds for each of its edges


@dataclass(frozen=True)
class Room:
    """Where tables lie.

    Attributes:
        spill: makes arrays on disk.
        budget_bytes: what the tables of a layer, or the work on a range, may take of the memory.
    """

    spill: Spill
    budget_bytes: int

    def table(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """An array to be filled, on disk where it is larger than its share of the budget."""
        if rows * width * dtype.itemsize <= self.budget_bytes // _TABLES:
            return torch.empty(rows, width, dtype=dtype)
        return self.spill(rows, width * dtype.itemsize // 4).view(dtype)


def outputs_by_layer(model: Gnn, block: Block, x_own: Rows, *, room: Room) -> Tensor:
    """What the model, set to evaluate, says of each destination: (num_given, F) -> (D, out_features). Collective.

    The same as ``model(block, x_own)`` but for rounding. Where the rows are the block's static inputs their aggregate
    is kept, as there.
    """
    with torch.no_grad(), native.arrays_reused():
        tables = _Pass(model, block, room).through(x_own, len(model.layers))
        head = model.head
        if head is None:
            return tables[-1]
        out = room.table(block.num_dst, head.out_features, tables[-1].dtype)
        for rows in _row_ranges(block.num_dst, len(tables) * tables[0].shape[1], room):
            few = _no_edges(rows)
            out[rows] = head(few, model.joined([table[rows] for table in tables], few.num_dst))
        return out


def embeddings_by_layer(model: Gnn, block: Block, x_own: Rows, *, room: Room) -> Tensor:
    """The rows that the last layer reads, (D, hidden), as ``model.embed(block, x_own)``. Collective."""
    with torch.no_grad(), native.arrays_reused():
        tables = _Pass(model, block, room).through(x_own, len(model.norms))
        if not tables:
            return x_own.whole() if isinstance(x_own, Streamed) else widened(x_own)
        if model.head is None:
            return tables[-1]
        out = room.table(block.num_dst, model.head.in_features, tables[-1].dtype)
        for rows in _row_ranges(block.num_dst, len(tables) * tables[0].shape[1], room):
            out[rows] = model.joined([table[rows] for table in tables], rows.stop - rows.start)
        return out


class _Pass:
    """One pass over a model's layers."""

    def __init__(self, model: Gnn, block: Block, room: Room) -> None:
        self.model, self.block, self.room = model, block, room
        if block.others is not None:
            block.others.begin("evaluate halo")

    def through(self, x_own: Rows, layers: int) -> list[Tensor]:
        """The output of the first so many layers; all but the last are forgotten unless the model reads them again."""
        tables: list[Tensor] = []
        for place in range(layers):
            table = self._layer(place, tables[-1] if tables else x_own)
            tables = [*tables, table] if self.model.head is not None else [table]
        return tables

    def _layer(self, place: int, x_own: Rows) -> Tensor:
        layer = self.model.layers[place]
        assert isinstance(layer, Layer)
        out = self.room.table(self.block.num_dst, layer.out_features, layer.bias.dtype)
        steps = self._kept if _known(layer, self.block, x_own) else self._aggregated
        for rows, part, z_dst, x_dst in steps(place, layer, x_own):
            out[rows] = self.model.finish(place, part, z_dst, x_dst)
        return out

    def _kept(self, place: int, layer: Layer, x_own: Rows) -> Iterator[tuple[slice, Block, Tensor, Tensor]]:
        """The ranges of a layer whose aggregate is known, or none."""
        m_dst = layer.aggregate(self.block, x_own)
        for table in (x_own, m_dst):
            _expect_all(table)
        for rows in _row_ranges(self.block.num_dst, 2 * layer.in_features + layer.z_features, self.room):
            x_dst = self._destinations(place, x_own, rows)
            z_dst = layer.update(layer.project(_read(m_dst, rows)), x_dst)
            yield rows, _no_edges(rows), z_dst, x_dst

    def _aggregated(
        self, place: int, layer: Layer, x_own: Rows
    ) -> Iterator[tuple[slice, Block, Tensor, Tensor]]:
        """The ranges of a layer, aggregated over all in-edges of each."""
        first = layer.aggregates_first(self.block)
        own = x_own if first else self._projected(layer, x_own)
        halo, degree_src = self._halo(own, exact=first and place == 0), self._degree_src
        widths = layer.in_features + 2 * (layer.z_features + layer.out_features)
        for rows in self._edge_ranges(own.shape[1], widths):
            part, src = self._part(rows, degree_src)
            z_src = self._gather(own, halo, src)
            m_dst = layer.aggregate(part, z_src)
            assert isinstance(m_dst, Tensor)
            x_dst = z_src[: part.num_dst] if first else self._destinations(place, x_own, rows)
            yield rows, part, layer.update(layer.project(m_dst) if first else m_dst, x_dst), x_dst

    def _destinations(self, place: int, x_own: Rows, rows: slice) -> Tensor:
        """The rows of a range, or nothing where nobody reads them."""
        if self.model.reads_dst(place):
            return _read(x_own, rows)
        return torch.empty(rows.stop - rows.start, 0)

    def _projected(self, layer: Layer, x_own: Rows) -> Tensor:
        """What a layer aggregates: (D, in_features) -> (D, Z)."""
        out = None
        _expect_all(x_own)
        for rows in _row_ranges(x_own.shape[0], layer.in_features + 2 * layer.z_features, self.room):
            z_own = layer.project(_read(x_own, rows))
            if out is None:
                out = self.room.table(x_own.shape[0], z_own.shape[1], z_own.dtype)
            out[rows] = z_own
        return layer.project(_read(x_own, slice(0, 0))) if out is None else out

    def _halo(self, own: Rows, *, exact: bool) -> Rows | None:
        """The rows of the halo. Collective."""
        block = self.block
        if block.others is None:
            return None
        rows = own.rows if isinstance(own, Streamed) else own
        halo = self.room.table(block.num_src - block.num_dst, rows.shape[1], _dtype(own))
        bring_halo(block, rows, halo, how="exact" if exact else "passing")
        if not isinstance(own, Streamed) or own.scale is None:
            return halo
        scale = with_halo(block, own.scale[:, None], exact=True)[block.num_dst :, 0]
        return Streamed(halo, own.spill, scale)

    def _edge_ranges(self, width: int, widths: int) -> Iterator[slice]:
        """Ranges of destinations whose in-edges and rows fit the budget; at least one destination each."""
        size = self._item_bytes
        cost = self.block.indptr * (width * size + _EDGE_BYTES)
        cost = cost + torch.arange(cost.numel()) * ((width + widths) * size)
        begin, num_dst = 0, self.block.num_dst
        while begin < num_dst:
            most = cost[begin] + self.room.budget_bytes
            end = max(begin + 1, int(torch.searchsorted(cost, most, right=True)) - 1)
            yield slice(begin, end)
            begin = end

    def _part(self, rows: slice, degree_src: Tensor) -> tuple[Block, Tensor]:
        """The block of a range of destinations, and the rows of its sources."""
        block, dst = self.block, torch.arange(rows.start, rows.stop, dtype=torch.int32)
        indptr = block.indptr[rows.start : rows.stop + 1]
        edges = slice(int(indptr[0]), int(indptr[-1]))
        (place,), (fresh,) = native.first_met([dst], block.indices[edges], [edges.stop - edges.start])
        src = torch.cat([dst, fresh]).long()
        weight = None if block.edge_weight is None else block.edge_weight[edges]
        whole = Whole(degree_src[src], block.missing_loop[rows], indptr.diff())
        return Block(indptr - indptr[0], place, src.numel(), weight, whole=whole), src

    def _gather(self, own: Rows, halo: Rows | None, src: Tensor) -> Tensor:
        """The rows of sources, on disk where one destination alone has more of them than the budget."""
        num_own, size = self.block.num_dst, own.shape[1] * self._item_bytes
        if src.numel() * size <= self.room.budget_bytes:
            if halo is None:
                return _take(own, src)
            if isinstance(own, Tensor) and isinstance(halo, Tensor) and own.dtype == halo.dtype:
                here = src < num_own
                native.expect_rows(own, src[here])
                native.expect_rows(halo, src[~here] - num_own)
                return native.gather(own, src, more=halo)
        out = self.room.table(src.numel(), own.shape[1], _dtype(own))
        step = max(1, self.room.budget_bytes // (3 * max(1, size)))
        for begin in range(0, src.numel(), step):
            index, into = src[begin : begin + step], out[begin : begin + step]
            here = index < num_own
            into[here] = _take(own, index[here])
            if halo is not None:
                into[~here] = _take(halo, index[~here] - num_own)
        return out

    @property
    def _degree_src(self) -> Tensor:
        """(S,) float64, the degree of every source with exactly one loop. Collective, the first time."""
        block = self.block

        def compute() -> Tensor:
            return with_halo(block, (block.in_degree + block.missing_loop)[:, None], exact=True)[:, 0]

        return block.keep(("degree", "src"), compute)

    @property
    def _item_bytes(self) -> int:
        return next(self.model.parameters()).dtype.itemsize


def _known(layer: Layer, block: Block, x_own: Rows) -> bool:
    """Whether a layer's aggregate of all rows is known, or will be kept, or is the rows themselves."""
    return isinstance(layer, Dense) or (x_own is block.static_src and layer.keeps(x_own))


def _row_ranges(num_rows: int, width: int, room: Room) -> Iterator[slice]:
    """Ranges of rows so wide that fit the budget."""
    step = max(1, room.budget_bytes // (8 * max(1, width)))
    for begin in range(0, num_rows, step):
        yield slice(begin, min(begin + step, num_rows))


def _no_edges(rows: slice) -> Block:
    """A block of as many nodes as a range, without edges."""
    num_rows = rows.stop - rows.start
    nothing = torch.zeros(num_rows + 1, dtype=torch.int64)
    return Block(nothing, torch.empty(0, dtype=torch.int32), num_rows)


def _read(table: Rows, rows: slice) -> Tensor:
    return table.read(rows) if isinstance(table, Streamed) else widened(table[rows])


def _take(table: Rows, index: Tensor) -> Tensor:
    if isinstance(table, Streamed):
        return table.take(index)
    native.expect_rows(table, index)
    return native.gather(table, index, widen=True)


def _expect_all(table: Rows) -> None:
    native.expect_all(table.rows if isinstance(table, Streamed) else table)


def _dtype(table: Rows) -> torch.dtype:
    return torch.float32 if table.dtype == torch.bfloat16 else table.dtype
