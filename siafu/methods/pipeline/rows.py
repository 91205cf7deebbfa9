"""The arrays of a rank's nodes that tasks read and write, kept from one task to the next."""

from collections.abc import Callable

import numpy as np
import torch

from siafu import native
from siafu.context import Context
from siafu.nn.aggregates import AggregatePass, Allocate, aggregate_static, widened
from siafu.nn.dropout import Dropout, key_of
from siafu.nn.model import Model
from siafu.nn.streamed import DenseRows, Streamed, dense
from siafu.training.task import Task as NodeTask
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import Segments
from siafu.workers.stages import adds_to_grad, earlier, has_grad_h, reads_x, returns_h, rows_with_grad
from siafu.workers.task import Arrays, Direction, Key, Result


class KeptRows:
    """The rows of one rank.

    Attributes:
        setup: the tensor work.
        aggregates: by number, but for those that are kept.
        edge_weights: the names of the weights that each aggregate reads.
    """

    def __init__(
        self,
        model: Model,
        setup: Setup,
        context: Context,
        x: DenseRows,
        task: NodeTask,
        *,
        segments: Segments | None,
    ) -> None:
        self.setup, self._x = setup, x
        dtype = next(model.parameters()).dtype
        allocate = _allocator(segments, dtype)
        self._static = _kept_aggregate(model, setup.kept, context, x, allocate) if setup.kept else None
        self.aggregates: dict[int, AggregatePass] = {}
        self.edge_weights: dict[int, list[str]] = {}
        self._inputs: dict[tuple[int, ...], Arrays] = {}  # of a stage, a direction and an interval
        self._written: dict[tuple[int, Direction], list[tuple[str, np.ndarray, bool]]] = {}
        self._h: dict[int, np.ndarray] = {}
        self._grad_h: dict[int, np.ndarray] = {}
        node_id = (
            torch.arange(context.num_dst) if context.node_id is None else context.node_id[: context.num_dst]
        )
        self._row_id = _seen(node_id.numpy(), segments)
        self._train, self._y = task.rows["train"].numpy(), task.y.numpy()
        self._dropouts = _edge_dropouts(model)
        for number in range(setup.kept, setup.num_aggregates):
            width = model.z_features(number, first=model.aggregates_first(number, context))
            self.aggregates[number] = model.kind(number).begin(context, width=width, dtype=dtype)
            self.aggregates[number].allocate(allocate)
            self.edge_weights[number] = list(model.edge_weights(number))
            if returns_h(setup, number):
                self._h[number] = allocate(context.num_dst, model.h_features(number)).numpy()
            if has_grad_h(setup, number):
                self._grad_h[number] = allocate(context.num_dst, model.h_features(number)).numpy()

    def inputs(self, key: Key, rows: slice) -> Arrays:
        """The arrays that a task reads."""
        return self._inputs.get(key[1:]) or self._cut(key, rows)

    def _cut(self, key: Key, rows: slice) -> Arrays:
        """Cut what a task reads out of what there is: once, where the same memory holds it in every epoch."""
        tables = self._to_read(key.stage, key.direction)
        arrays = {name: table[rows] for name, table in tables.items()}
        if key.direction == Direction.LEARN:
            arrays |= self._labels(rows)
        if not any(isinstance(table, _Ready) for table in tables.values()):
            self._inputs[key[1:]] = arrays
        return arrays

    def commit(self, key: Key, rows: slice, result: Result) -> None:
        """Keep what a task gave."""
        found = self._written.get(key[1:3])
        if found is None:
            found = self._written[key[1:3]] = self._to_write(key.stage, key.direction)
        for name, table, adds in found:
            if adds:
                table[rows] += result.arrays[name]
            else:
                table[rows] = result.arrays[name]
        if key.direction == Direction.FORWARD:
            self.aggregates[key.stage].filled(rows)

    def _to_read(self, stage: int, direction: Direction) -> dict[str, "_Table"]:
        """The arrays that tasks of a kind read."""
        tables: dict[str, _Table] = {"row_id": self._row_id}
        if stage:
            kept = self._static if stage == self.setup.kept else None
            tables["m"] = self.aggregates[stage - 1].m_dst.numpy() if kept is None else _table(kept)
        if reads_x(self.setup, stage):
            tables["x"] = _table(self._x)
        for place in earlier(self.setup, stage):
            tables[f"h{place}"] = self._given(place)
        if direction == Direction.BACKWARD:
            tables["grad_z"] = self.aggregates[stage].grad_src.numpy()
            if has_grad_h(self.setup, stage):
                tables["grad_h"] = self._grad_h[stage]
        return tables

    def _to_write(self, stage: int, direction: Direction) -> list[tuple[str, np.ndarray, bool]]:
        """The arrays that results of a kind are written into, and whether they are added to what is there."""
        if direction == Direction.FORWARD:
            tables = [("z", self.aggregates[stage].z_src.numpy(), False)]
            return [*tables, ("h", self._h[stage], False)] if returns_h(self.setup, stage) else tables
        tables = []
        for name in rows_with_grad(self.setup, stage):
            if name == "m":
                tables.append(("grad_m", self.aggregates[stage - 1].grad_dst.numpy(), False))
            else:
                adds = adds_to_grad(self.setup, stage, name)
                tables.append((f"grad_{name}", self._grad_h[int(name[1:])], adds))
        return tables

    def use(self, number: int, epoch: int, weights: Callable[[], Arrays]) -> AggregatePass:
        """Give an aggregate, with the dropout of an epoch and the weights it reads, where it reads any."""
        aggregate = self.aggregates[number]
        found = self._dropouts.get(number)
        if found is not None:
            place, rate = found
            key = key_of(seed=self.setup.seed, step=epoch, place=place)
            dropout = native.Dropout.of(rate, key) if rate else native.Dropout()
            read = weights() if self.edge_weights[number] else {}
            aggregate.use(dropout, [torch.from_numpy(read[name]) for name in self.edge_weights[number]])
        return aggregate

    def _given(self, place: int) -> np.ndarray:
        """The rows that a layer was given."""
        return self._h[place] if place in self._h else self.aggregates[place].z_src.numpy()

    def _labels(self, rows: slice) -> dict[str, np.ndarray]:
        begin, end = (self._train.searchsorted(row) for row in (rows.start, rows.stop))
        here = self._train[begin:end]
        return {"rows": here - rows.start, "y": self._y[here]}


class _Ready:
    """Rows that are made ready as they are read."""

    def __init__(self, rows: DenseRows) -> None:
        self._rows = rows

    def __getitem__(self, rows: slice) -> np.ndarray:
        table = self._rows
        return table.read(rows).numpy() if isinstance(table, Streamed) else widened(table[rows]).numpy()


_Table = np.ndarray | _Ready


def _table(rows: DenseRows) -> _Table:
    if isinstance(rows, Streamed) or rows.dtype == torch.bfloat16:
        return _Ready(rows)
    return rows.numpy()


def _allocator(segments: Segments | None, dtype: torch.dtype) -> Allocate:
    """Allocate arrays where worker processes see them, or in this process alone."""
    if segments is None:
        return lambda num_rows, width: native.empty_rows(num_rows, width, dtype)
    of_numpy = torch.empty(0, dtype=dtype).numpy().dtype
    return lambda num_rows, width: torch.from_numpy(segments.rows(num_rows, width, of_numpy))


def _seen(array: np.ndarray, segments: Segments | None) -> np.ndarray:
    """The array, where worker processes see it if there are any."""
    if segments is None:
        return array
    seen = segments.copies({"": array})[""]
    seen[...] = array
    return seen


def _kept_aggregate(
    model: Model, count: int, context: Context, x: DenseRows, allocate: Allocate
) -> DenseRows:
    """The leading aggregates of the inputs; from now on the context keeps them where they are allocated here."""
    with torch.no_grad():
        kept = dense(aggregate_static(context, model.kinds(count), x))
    if isinstance(kept, Streamed):
        return kept
    moved = allocate(*kept.shape).copy_(kept)
    for key, value in context.cache.items():
        if value is kept:
            context.cache[key] = moved
    return moved


def _edge_dropouts(model: Model) -> dict[int, tuple[int, float]]:
    """The place in the model, and the rate, of the dropout of edges of each aggregate that has one."""
    dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
    found = {}
    for number in range(model.num_aggregates):
        own = model.edge_drop(number)
        if own is not None:
            found[number] = (next(i for i, each in enumerate(dropouts) if each is own), own.rate)
    return found
