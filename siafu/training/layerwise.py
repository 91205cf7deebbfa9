"""Inference layer by layer: a model's exact outputs where activations do not fit into memory.

The rows that a layer reads and writes are tables, on disk where they are large. A layer goes over its destinations
range by range, each a small block with all of its in-edges, so that of rows no more is held in memory than a budget,
however large the graph.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from siafu import native
from siafu.context import AnyBlock, Context, context_of
from siafu.graph import Block, Whole
from siafu.native import SparseRows
from siafu.nn.aggregates import aggregate, aggregate_static, gather_halo, widened, with_halo
from siafu.nn.model import Model, Order, StageRows
from siafu.nn.ops import TorchOps
from siafu.nn.streamed import Rows, Spill, Streamed

_TABLES = 4  # of a layer at once: what it reads, its halo, what it projects, what it writes
_EDGE_BYTES = 32  # what renaming the sources of a range holds for each of its edges


@dataclass(frozen=True)
class Room:
    """The memory and the disk that tables may take.

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


def outputs_by_layer(model: Model, block: AnyBlock, x_own: Rows, *, room: Room) -> Tensor:
    """The outputs of a model in evaluation mode for each destination: (num_given, F) -> (D, out_features). Collective.

    The same as ``model(block, x_own)`` but for rounding. Where the rows are the context's static inputs their aggregate
    is kept, as there.
    """
    last = model.num_aggregates

    def outputs(ops: TorchOps, rows: StageRows, order: Order) -> Tensor:
        return model.stage(ops, last, rows, order)[0]

    with torch.no_grad(), native.arrays_reused():
        return _LayerwisePass(model, context_of(block), x_own, room).run(last, outputs)


def embeddings_by_layer(model: Model, block: AnyBlock, x_own: Rows, *, room: Room) -> Tensor:
    """The rows that the last layer reads, (D, hidden), as ``model.embed(block, x_own)``. Collective."""
    with torch.no_grad(), native.arrays_reused():
        return _LayerwisePass(model, context_of(block), x_own, room).run(
            model.embedding_stage, model.embedding
        )


class _LayerwisePass:
    """One pass over a model's stages, each range by range."""

    def __init__(self, model: Model, context: Context, x_own: Rows, room: Room) -> None:
        self.model, self.context, self.x_own, self.room = model, context, x_own, room
        self.block = context.block
        self.order = model.order([context] * model.num_aggregates, x_own)
        self._needed = {name for stage in range(model.num_aggregates + 1) for name in model.reads(stage)}
        self._h: dict[int, Tensor] = {}  # rows of earlier stages that later ones read
        context.exchange.begin("evaluate halo")

    def run(self, last: int, final: Callable[[TorchOps, StageRows, Order], Tensor]) -> Tensor:
        """Run the stages up to ``last``, which is ``final``; returns its rows."""
        if last < self.order.kept:
            self.order = self.order._replace(kept=0)
        z: Rows | None = None
        for number in range(self.order.kept, last):
            z = self._stage(number, z)
        out = None
        for rows, block, m in self._ranges(last, z):
            found = final(TorchOps(None, block), self._rows(last, rows, m), self.order)
            out = self._table(out, found, self.block.num_dst)
            out[rows] = found
        return self._nothing(last, final) if out is None else out

    def _stage(self, number: int, z_before: Rows | None) -> Rows:
        """Run a stage on all rows; returns those that the next aggregate reads."""
        model, num_rows = self.model, self.context.num_given
        if number == 0 and "h0" not in self._needed and self._is_identity():
            return self.x_own
        keeps_h, z_out, h_out = f"h{number}" in self._needed, None, None
        for rows, block, m in self._ranges(number, z_before):
            h, z = model.stage(TorchOps(None, block), number, self._rows(number, rows, m), self.order)
            z_out = self._table(z_out, z, num_rows)
            z_out[rows] = z
            if keeps_h and h is not z:
                h_out = self._table(h_out, h, num_rows)
                h_out[rows] = h
        if z_out is None:
            h, z_out = model.stage(TorchOps(None), number, self._empty(number), self.order)
        if keeps_h:
            self._h[number] = z_out if h_out is None else h_out
        return z_out

    def _ranges(self, number: int, z: Rows | None) -> Iterator[tuple[slice, Block, Rows | None]]:
        """The ranges of rows of a stage, with their block and the aggregate before the stage."""
        if number == 0:
            yield from ((rows, _no_edges(rows), None) for rows in self._row_ranges(number, self.x_own))
            return
        kind = self.model.kind(number - 1)
        if number == self.order.kept:
            table: Rows = aggregate_static(self.context, self.model.kinds(number), self.x_own)
        elif not kind.reads_graph:
            assert z is not None
            table = z
        else:
            assert z is not None
            yield from self._aggregated(number, z)
            return
        for rows in self._row_ranges(number, table):
            yield rows, _no_edges(rows), _read(table, rows)

    def _aggregated(self, number: int, own: Rows) -> Iterator[tuple[slice, Block, Tensor]]:
        """Aggregate over all in-edges of a range of destinations at a time."""
        kind, weights = self.model.kind(number - 1), tuple(self.model.edge_weights(number - 1).values())
        halo, degree_src = self._halo(own, exact=own is self.x_own), self._degree_src
        for rows in self._edge_ranges(own.shape[1], self._width(number)):
            part, src = self._part(rows, degree_src)
            m = aggregate(kind, part, self._gather(own, halo, src), weights=weights)
            assert isinstance(m, Tensor)
            yield rows, part, m

    def _rows(self, number: int, rows: slice, m: Rows | None) -> StageRows:
        """The rows that a stage reads of a range."""
        names = self.model.reads(number)
        x = _read(self.x_own, rows) if "x" in names else None
        return StageRows(
            m=m, x=x, h={int(name[1:]): self._h[int(name[1:])][rows] for name in names if name != "x"}
        )

    def _row_ranges(self, number: int, table: Rows) -> Iterator[slice]:
        """Ranges of rows that fit the budget."""
        for each in (table, self.x_own) if "x" in self.model.reads(number) else (table,):
            _expect_all(each)
        yield from _row_ranges(table.shape[0], self._width(number), self.room)

    def _width(self, number: int) -> int:
        """The numbers a row that a stage reads and makes."""
        model, last = self.model, self.model.num_aggregates
        width = model.in_features * ("x" in model.reads(number)) + 2 * model.out_features
        for near in (number - 1, number):
            if 0 <= near < last:
                width += 2 * max(model.z_features(near, first=first) for first in (True, False))
        return width + sum(model.h_features(int(name[1:])) for name in model.reads(number) if name != "x")

    def _is_identity(self) -> bool:
        """Say whether stage 0 passes the inputs on as they are."""
        few = self._empty(0)
        return self.model.stage(TorchOps(None), 0, few, self.order)[1] is few.x

    def _empty(self, number: int) -> StageRows:
        """No rows, of the widths that a stage reads."""
        model, dtype = self.model, next(self.model.parameters()).dtype
        m = torch.empty(0, model.m_features(number - 1, self.order), dtype=dtype) if number else None
        names = [name for name in model.reads(number) if name != "x"]
        h = {int(name[1:]): torch.empty(0, model.h_features(int(name[1:])), dtype=dtype) for name in names}
        return StageRows(m=m, x=torch.empty(0, model.in_features, dtype=dtype), h=h)

    def _nothing(self, last: int, final: Callable[[TorchOps, StageRows, Order], Tensor]) -> Tensor:
        return final(TorchOps(None), self._empty(last), self.order)

    def _table(self, table: Tensor | None, rows: Tensor, num_rows: int) -> Tensor:
        """The table that rows are written to, made for the first of them."""
        return self.room.table(num_rows, rows.shape[1], rows.dtype) if table is None else table

    def _halo(self, own: Rows, *, exact: bool) -> Rows | None:
        """The rows of the halo. Collective."""
        context = self.context
        if not context.has_halo:
            return None
        if isinstance(own, SparseRows):
            return context.exchange.gather_sparse(own)
        rows = own.rows if isinstance(own, Streamed) else own
        halo = self.room.table(context.num_src - context.num_dst, rows.shape[1], _dtype(own))
        gather_halo(context, rows, halo, mode="exact" if exact else "inference")
        if not isinstance(own, Streamed) or own.scale is None:
            return halo
        scale = with_halo(context, own.scale[:, None], exact=True)[context.num_dst :, 0]
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
        (place,), (fresh,) = native.local_rows([dst], block.indices[edges], [edges.stop - edges.start])
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
                native.prefetch_rows(own, src[here])
                native.prefetch_rows(halo, src[~here] - num_own)
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
            return with_halo(self.context, (block.in_degree + block.missing_loop)[:, None], exact=True)[:, 0]

        return self.context.keep(("degree", "src"), compute)

    @property
    def _item_bytes(self) -> int:
        return next(self.model.parameters()).dtype.itemsize


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


def _read(table: Rows, rows: slice) -> Tensor | SparseRows:
    if isinstance(table, Streamed):
        return table.read(rows)
    return table[rows] if isinstance(table, SparseRows) else widened(table[rows])


def _take(table: Rows, index: Tensor) -> Tensor:
    if isinstance(table, Streamed):
        return table.take(index)
    if isinstance(table, SparseRows):
        return table.dense_rows(index)
    native.prefetch_rows(table, index)
    return native.gather(table, index, widen=True)


def _expect_all(table: Rows) -> None:
    if not isinstance(table, SparseRows):
        native.restore_readahead(table.rows if isinstance(table, Streamed) else table)


def _dtype(table: Rows) -> torch.dtype:
    return torch.float32 if table.dtype == torch.bfloat16 else table.dtype
