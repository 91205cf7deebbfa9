"""The steps of a dynamic graph as a model reads them on one rank, built on demand and cached."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siafu.dynamic import DegreeFeatures, DynamicGraph, Snapshots
from siafu.nn.temporal import Step, aggregate_step
from siafu.nn.temporal.step import StepRows

_NODE_COST = 8  # edges that take as long to aggregate as one node's row takes in products
_DEGREES = 128  # degrees with a column of their own, where degrees are the inputs


class Timeline:
    """Graphs, inputs and aggregated inputs of steps, built on demand and cached while they fit.

    Attributes:
        graph: the dynamic graph.
        band: number of steps that are averaged to one graph (TM-GCN); None if edges live for ``edge_life`` steps.
        cache_bytes: memory left for the cache.
    """

    def __init__(
        self,
        graph: DynamicGraph,
        *,
        edge_life: int,
        band: int | None = None,
        weighted: bool = False,
        cache_bytes: int = 0,
    ) -> None:
        self.graph, self.band = graph, band
        self._view = Snapshots(graph, life=edge_life if band is None else band, weighted=weighted)
        self._degrees = DegreeFeatures(self._view, exact=_DEGREES)
        self.cache_bytes = cache_bytes
        self._steps: dict[int, Step] = {}
        self._previous: dict[int, Step] = {}  # the steps of the last call, cached or not
        self._aggregated: dict[int, Tensor] = {}
        self._active: dict[int, Tensor] = {}

    @property
    def life(self) -> int:
        """The number of steps for which an event is in the graph."""
        return self._view.life

    @property
    def in_features(self) -> int:
        """The width of the inputs."""
        return self._degrees.num_features if self.graph.x is None else self.graph.num_features

    def costs(self, numbers: range) -> list[float]:
        """The cost of each step, in edges."""
        life, graph = self.life, self.graph
        both = 2 if graph.undirected else 1
        counts = (graph.count(number - life + 1, number + 1) for number in numbers)
        return [both * count + _NODE_COST * graph.num_nodes for count in counts]

    def steps(self, numbers: range) -> list[Step]:
        """The graphs of consecutive steps; those of the previous call are not built again."""
        cached = {at: each[at] for each in (self._previous, self._steps) for at in numbers if at in each}
        if all(number in cached for number in numbers):
            return [cached[number] for number in numbers]
        self._previous, made = {}, list[Step]()  # free the others first
        for number, block in zip(numbers, self._view.walk(numbers.start, numbers.stop), strict=True):
            loop = 1.0 if self.band is None else float(min(number + 1, self.band))
            step = cached.get(number) or Step(block, loop, symmetric=self.graph.undirected)
            made.append(step)
            if number not in self._steps and self._reserve(_step_bytes(step)):
                self._steps[number] = step
        self._previous = dict(zip(numbers, made, strict=True))
        return made

    def active(self, numbers: range) -> Tensor:
        """The nodes that have an edge in consecutive steps, (steps, N) bool."""
        if not len(numbers):
            return torch.zeros(0, self.graph.num_nodes, dtype=torch.bool)
        return torch.stack([self._active_of(number) for number in numbers])

    def _active_of(self, number: int) -> Tensor:
        if number in self._active:
            return self._active[number]
        mark = self._view.active(number)
        if self._reserve(mark.nbytes):
            self._active[number] = mark
        return mark

    def activity_codes(self, numbers: range) -> Tensor:
        """0 for inactive nodes, else 1, plus the column of the node's degree if inputs are degrees.

        (steps, N) uint8.
        """
        codes = self.active(numbers).to(torch.uint8)
        if self.graph.x is None:
            for code, step in zip(codes, self.steps(numbers), strict=True):
                code += self._degrees.columns(step.block).to(torch.uint8)  # adds 0 where there is no edge
        return codes

    def inputs_from_codes(self, codes: Tensor) -> Tensor:
        """The degree inputs that activity codes stand for: (…) uint8 -> (…, F)."""
        columns = codes.long() - (codes > 0).long()
        return torch.zeros(*codes.shape, self.in_features).scatter_(-1, columns[..., None], 1.0)

    def inputs(self, numbers: range) -> StepRows:
        """The inputs of consecutive steps: one (N, F) for all, or one each."""
        x = self.graph.x
        if x is None:
            return _LazyInputs(self, numbers)
        return x if x.ndim == 2 else x[numbers.start : numbers.stop]

    def inputs_of(self, number: int) -> Tensor:
        """The inputs of a step, (N, F)."""
        if self.graph.x is not None:
            return self.graph.features(number)
        (step,) = self.steps(range(number, number + 1))
        return self._degrees.rows(step.block)

    def aggregated_inputs(self, numbers: range) -> list[Tensor]:
        """The first layer's aggregated inputs of consecutive steps, which are constant: (N, F) for each."""
        if any(number not in self._aggregated for number in numbers):
            self.steps(numbers)  # build all steps in one walk
        return [self._aggregated_of(number) for number in numbers]

    def _aggregated_of(self, number: int) -> Tensor:
        if number in self._aggregated:
            return self._aggregated[number]
        (step,) = self.steps(range(number, number + 1))
        rows = aggregate_step(step, self.inputs_of(number))
        if self._reserve(rows.nbytes):
            rows = self._aggregated[number] = rows.clone()  # outside of the buffers that are reused
        return rows

    def _reserve(self, size: int) -> bool:
        """Take so many bytes of the cache's memory, if they are left."""
        if size > self.cache_bytes:
            return False
        self.cache_bytes -= size
        return True


def _step_bytes(step: Step) -> int:
    """The bytes of a graph with all that is cached in use: scales, and the transpose for backward."""
    block = step.block
    parts = (block.indptr, block.indices, block.edge_weight)
    edges = sum(each.nbytes for each in parts if each is not None)
    return edges * (1 if step.symmetric else 2) + 4 * block.num_dst


class _LazyInputs(Sequence[Tensor]):
    """Inputs of consecutive steps, built from degrees on access: they are wide, and a model may not read them."""

    def __init__(self, timeline: Timeline, numbers: range) -> None:
        self._timeline, self._numbers = timeline, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        return self._timeline.inputs_of(self._numbers[place])


def select_nodes(x: StepRows, nodes: slice) -> Tensor:
    """The inputs of some nodes: (R, F) if they are the same in every step, else (T, R, F)."""
    return x[..., nodes, :] if isinstance(x, Tensor) else torch.stack([each[nodes] for each in x])
