"""The steps of a graph that changes over time, as a model reads them on one rank."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from siafu.dynamic import DegreeFeatures, DynamicGraph, Snapshots
from siafu.nn.temporal import Step, snapshot_in
from siafu.nn.temporal.step import StepRows

_NODE_COST = 8  # edges whose sum takes as long as the products of one node's row
_DEGREES = 128  # that have a column each, where nothing else is known of nodes


class Timeline:
    """Graphs, inputs and aggregated inputs of steps, made when they are asked for and kept while they fit.

    Attributes:
        graph: whose steps they are.
        band: how many steps are averaged to one graph; None where edges live for a while instead.
        keep_bytes: how much more may be kept.
    """

    def __init__(
        self,
        graph: DynamicGraph,
        *,
        edge_life: int,
        band: int | None = None,
        weighted: bool = False,
        keep_bytes: int = 0,
    ) -> None:
        self.graph, self.band = graph, band
        self._view = Snapshots(graph, life=edge_life if band is None else band, weighted=weighted)
        self._degrees = DegreeFeatures(self._view, exact=_DEGREES)
        self.keep_bytes = keep_bytes
        self._steps: dict[int, Step] = {}
        self._latest: dict[int, Step] = {}  # of the last call, whether they are kept or not
        self._aggregated: dict[int, Tensor] = {}
        self._busy: dict[int, Tensor] = {}

    @property
    def life(self) -> int:
        """For how many steps an event is in the graph."""
        return self._view.life

    @property
    def in_features(self) -> int:
        """The width of the inputs."""
        return self._degrees.num_features if self.graph.x is None else self.graph.num_features

    def costs(self, numbers: range) -> list[float]:
        """What each step costs, in edges."""
        life, graph = self.life, self.graph
        both = 2 if graph.undirected else 1
        counts = (graph.count(number - life + 1, number + 1) for number in numbers)
        return [both * count + _NODE_COST * graph.num_nodes for count in counts]

    def steps(self, numbers: range) -> list[Step]:
        """The graphs of consecutive steps; of those of the call before, none is made again."""
        known = {at: each[at] for each in (self._latest, self._steps) for at in numbers if at in each}
        if all(number in known for number in numbers):
            return [known[number] for number in numbers]
        self._latest, made = {}, list[Step]()  # others can go
        for number, block in zip(numbers, self._view.walk(numbers.start, numbers.stop), strict=True):
            loop = 1.0 if self.band is None else float(min(number + 1, self.band))
            step = known.get(number) or Step(block, loop, symmetric=self.graph.undirected)
            made.append(step)
            if number not in self._steps and self._fits(_held_by(step)):
                self._steps[number] = step
        self._latest = dict(zip(numbers, made, strict=True))
        return made

    def busy(self, numbers: range) -> Tensor:
        """Which nodes have an edge in consecutive steps, (steps, N) bool."""
        if not len(numbers):
            return torch.zeros(0, self.graph.num_nodes, dtype=torch.bool)
        return torch.stack([self._busy_of(number) for number in numbers])

    def _busy_of(self, number: int) -> Tensor:
        if number in self._busy:
            return self._busy[number]
        mark = self._view.active(number)
        if self._fits(mark.nbytes):
            self._busy[number] = mark
        return mark

    def marks(self, numbers: range) -> Tensor:
        """0 for nodes without an edge, 1 for others, and the column of their degree where that is the input.

        (steps, N) uint8.
        """
        marks = self.busy(numbers).to(torch.uint8)
        if self.graph.x is None:
            for mark, step in zip(marks, self.steps(numbers), strict=True):
                mark += self._degrees.columns(step.block).to(torch.uint8)  # 0 without an edge
        return marks

    def marked(self, marks: Tensor) -> Tensor:
        """The inputs made of degrees that some marks tell of: (…) uint8 -> (…, F)."""
        columns = marks.long() - (marks > 0).long()
        return torch.zeros(*marks.shape, self.in_features).scatter_(-1, columns[..., None], 1.0)

    def inputs(self, numbers: range) -> StepRows:
        """What is known of the nodes in consecutive steps: one (N, F) for all, or one each."""
        x = self.graph.x
        if x is None:
            return _WhenAsked(self, numbers)
        return x if x.ndim == 2 else x[numbers.start : numbers.stop]

    def inputs_of(self, number: int) -> Tensor:
        """What is known of the nodes in a step, (N, F)."""
        if self.graph.x is not None:
            return self.graph.features(number)
        (step,) = self.steps(range(number, number + 1))
        return self._degrees.rows(step.block)

    def aggregated(self, numbers: range) -> list[Tensor]:
        """What the graphs of consecutive steps make of the inputs, which never changes: (N, F) for each."""
        if any(number not in self._aggregated for number in numbers):
            self.steps(numbers)  # at once
        return [self._aggregated_of(number) for number in numbers]

    def _aggregated_of(self, number: int) -> Tensor:
        if number in self._aggregated:
            return self._aggregated[number]
        (step,) = self.steps(range(number, number + 1))
        rows = snapshot_in(step, self.inputs_of(number))
        if self._fits(rows.nbytes):
            rows = self._aggregated[number] = rows.clone()  # elsewhere than what comes and goes
        return rows

    def _fits(self, size: int) -> bool:
        """Whether there is room to keep so many bytes; it is taken then."""
        if size > self.keep_bytes:
            return False
        self.keep_bytes -= size
        return True


def _held_by(step: Step) -> int:
    """Bytes of a graph with what is made of it when it is used: scales, and its transpose on the way back."""
    block = step.block
    parts = (block.indptr, block.indices, block.edge_weight)
    edges = sum(each.nbytes for each in parts if each is not None)
    return edges * (1 if step.symmetric else 2) + 4 * block.num_dst


class _WhenAsked(Sequence[Tensor]):
    """Inputs of consecutive steps, made of degrees when they are asked for: they are wide, and a model may not ask."""

    def __init__(self, timeline: Timeline, numbers: range) -> None:
        self._timeline, self._numbers = timeline, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        return self._timeline.inputs_of(self._numbers[place])


def stacked(x: StepRows, nodes: slice) -> Tensor:
    """The inputs of some nodes, (R, F) where they are the same in every step, else (T, R, F)."""
    return x[..., nodes, :] if isinstance(x, Tensor) else torch.stack([each[nodes] for each in x])
