"""What a rank keeps of its nodes from one task to the next: the arrays that tasks read and write."""

import numpy as np
import torch

from siafu import native
from siafu.graph import Block
from siafu.nn.aggregate import widened
from siafu.nn.dropout import Dropout, key_of
from siafu.nn.layer import Layer
from siafu.nn.model import Gnn
from siafu.nn.ranges import Ranged, Room, ranged
from siafu.nn.streamed import Rows, Streamed
from siafu.training.task import Task as NodeTask
from siafu.workers.setup import Setup
from siafu.workers.shared import Segments
from siafu.workers.stages import earlier, has_grad_h, reads_static, reads_x, returns_h
from siafu.workers.task import Arrays, Direction, Key, Result


class KeptRows:
    """The rows of one rank.

    Attributes:
        setup: the tensor work.
        aggregates: by layer, but for the first where its aggregate is kept.
    """

    def __init__(
        self, model: Gnn, setup: Setup, block: Block, x: Rows, task: NodeTask, *, segments: Segments | None
    ) -> None:
        self.setup, self._x = setup, x
        room = _room(segments, next(model.parameters()).dtype)
        self._static = _kept_aggregate(model, block, x, room) if setup.kept else None
        self.aggregates: dict[int, Ranged] = {}
        self._h: dict[int, np.ndarray] = {}
        self._grad_h: dict[int, np.ndarray] = {}
        node_id = torch.arange(block.num_dst) if block.node_id is None else block.node_id[: block.num_dst]
        self._row_id, self._train, self._y = node_id.numpy(), task.rows["train"].numpy(), task.y.numpy()
        self._dropouts = _attention_dropouts(model)
        for place in range(1 if setup.kept else 0, setup.num_layers):
            layer = model.layers[place]
            assert isinstance(layer, Layer)
            first = setup.aggregates_first[place]
            self.aggregates[place] = ranged(layer, block, room, first=first)
            if returns_h(setup, place):
                self._h[place] = room(block.num_dst, layer.in_features).numpy()
            if has_grad_h(setup, place):
                self._grad_h[place] = room(block.num_dst, layer.in_features).numpy()

    def inputs(self, key: Key, rows: slice) -> Arrays:
        """What a task reads: arrays are cut as NumPy's, which takes a tenth of what it takes of tensors."""
        stage, arrays = key.stage, {"row_id": self._row_id[rows]}
        if stage:
            arrays["m"] = self._m(stage, rows)
        if reads_x(self.setup, stage):
            arrays["x"] = self._read(self._x, rows) if stage <= 1 else self._given(stage - 1)[rows]
        for place in earlier(self.setup, stage):
            arrays[f"h{place}"] = self._given(place)[rows]
        if key.direction == Direction.BACKWARD:
            arrays["grad_z"] = self.aggregates[stage].grad_src.numpy()[rows]
            if has_grad_h(self.setup, stage):
                arrays["grad_h"] = self._grad_h[stage][rows]
        elif key.direction == Direction.LEARN:
            arrays |= self._labels(rows)
        return arrays

    def commit(self, key: Key, rows: slice, result: Result) -> None:
        """Keep what a task gave."""
        stage, given = key.stage, result.arrays
        if key.direction == Direction.FORWARD:
            aggregate = self.aggregates[stage]
            aggregate.z_src.numpy()[rows] = given["z"]
            aggregate.filled(rows)
            if "h" in given:
                self._h[stage][rows] = given["h"]
            return
        if not reads_static(self.setup, stage):
            self.aggregates[stage - 1].grad_dst.numpy()[rows] = given["grad_m"]
        for place in earlier(self.setup, stage):
            self._grad_h[place][rows] = given[f"grad_h{place}"]
        if "grad_x" in given and stage > 1:
            if self.setup.model["jump"] != "none":
                self._grad_h[stage - 1][rows] += given["grad_x"]
            else:
                self._grad_h[stage - 1][rows] = given["grad_x"]

    def use(self, layer: int, *, epoch: int, weights: Arrays) -> Ranged:
        """The aggregate of a layer, with what an epoch drops and the weights it reads."""
        aggregate = self.aggregates[layer]
        found = self._dropouts.get(layer)
        if found is not None:
            place, rate = found
            key = key_of(seed=self.setup.seed, step=epoch, place=place)
            dropout = native.Dropout.of(rate, key) if rate else native.Dropout()
            vector = weights.get(f"layers.{layer}.vector")
            aggregate.use(dropout, None if vector is None else torch.from_numpy(vector))
        return aggregate

    def _m(self, stage: int, rows: slice) -> np.ndarray:
        if stage == 1 and self._static is not None:
            return self._read(self._static, rows)
        return self.aggregates[stage - 1].m_dst.numpy()[rows]

    def _given(self, place: int) -> np.ndarray:
        """The rows that a layer was given."""
        return self._h[place] if place in self._h else self.aggregates[place].z_src.numpy()

    def _labels(self, rows: slice) -> dict[str, np.ndarray]:
        begin, end = (self._train.searchsorted(row) for row in (rows.start, rows.stop))
        here = self._train[begin:end]
        return {"rows": here - rows.start, "y": self._y[here]}

    @staticmethod
    def _read(table: Rows, rows: slice) -> np.ndarray:
        return (table.read(rows) if isinstance(table, Streamed) else widened(table[rows])).numpy()


def _room(segments: Segments | None, dtype: torch.dtype) -> Room:
    """Where arrays lie: where worker processes see them, or in this process alone."""
    if segments is None:
        return lambda num_rows, width: native.empty_rows(num_rows, width, dtype)
    of_numpy = torch.empty(0, dtype=dtype).numpy().dtype
    return lambda num_rows, width: torch.from_numpy(segments.rows(num_rows, width, of_numpy))


def _kept_aggregate(model: Gnn, block: Block, x: Rows, room: Room) -> Rows:
    """The first layer's aggregate of the inputs; from now on the block keeps it where the room is."""
    layer = model.layers[0]
    assert isinstance(layer, Layer)
    with torch.no_grad():
        kept = layer.aggregate(block, x)
    if isinstance(kept, Streamed):
        return kept
    moved = room(*kept.shape).copy_(kept)
    for key, value in block.memo.items():
        if value is kept:
            block.memo[key] = moved
    return moved


def _attention_dropouts(model: Gnn) -> dict[int, tuple[int, float]]:
    """For each layer that drops edges: which of the model's dropouts does so, and its rate."""
    dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
    found = {}
    for number, layer in enumerate(model.layers):
        own = getattr(layer, "attention_drop", None)
        if own is not None:
            found[number] = (next(i for i, each in enumerate(dropouts) if each is own), own.rate)
    return found
