"""DynamicGraph: a log of events, each an edge at a step of time. It knows no rank, no file and no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from siafu.array_checks import check_array, check_classes, check_ids, check_offsets, check_width
from siafu.dynamic.event_input import read_classes, read_features, read_ids, read_targets, read_times
from siafu.dynamic.protocol import Protocol
from siafu.dynamic.steps import Steps, find_steps
from siafu.graph import checksum_of
from siafu.user_input import MAX_NODES, check_edges, check_finite, read_edge_weight

_ARRAYS = ("src", "dst", "step_ptr", "weight", "x", "y", "edge_y")


@dataclass(frozen=True, eq=False)
class DynamicGraph:
    """A graph that changes over time, stored as the log of its events; ``Snapshots`` gives the graph of a step.

    Attributes:
        src, dst: (M,) int32, the ends of each event as the user gave them, by step; within a step in the order given.
        step_ptr: (T + 1,) int64, non-decreasing from 0: the events of step t are ``step_ptr[t]:step_ptr[t + 1]``. A
            step may have none.
        num_nodes: N, over all steps.
        undirected: whether a snapshot holds each event in both directions.
        weight: (M,) float32, or None.
        x: (N, F) or (T, N, F) float32; None: the features are one-hot out-degrees, see ``DegreeFeatures``.
        y: (N,) or (T, N) int64, a class or -1 for none; (T, N) or (T, N, K) float32 targets, NaN for none; or None.
        edge_y: (M,) int64, the class of each event, -1 for none; or None.
        step_time: (T,) float64, the begin of each step in the user's units; None if unknown.
        name: its name in messages.
        node_names: N ids as the user wrote them (an Arrow array of strings or integers), or None: the row number.
        class_names: as many names as there are classes, of nodes or of events, or None: the class number.
        protocol: its usual evaluation protocol.
        whole_ptr: (T + 1,) int64, ``step_ptr`` of the whole log if this is a shard that holds some steps only; other
            steps cannot be read. None: it holds all steps.
        checked: the ``src`` and ``dst`` that were found to be in range; the same arrays are not checked again.
    """

    src: Tensor
    dst: Tensor
    step_ptr: Tensor
    num_nodes: int
    undirected: bool = False
    weight: Tensor | None = None
    x: Tensor | None = None
    y: Tensor | None = None
    edge_y: Tensor | None = None
    step_time: Tensor | None = None
    name: str = "graph"
    node_names: Any = None
    class_names: tuple[str, ...] | None = None
    protocol: Protocol = field(default_factory=Protocol)
    whole_ptr: Tensor | None = None
    checked: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_log(self)
        object.__setattr__(self, "checked", (self.src, self.dst))
        for field_name, classes in (("y", self.y), ("edge_y", self.edge_y)):
            if classes is not None:
                check_classes(classes, self.name, field=field_name, class_names=self.class_names)

    @property
    def num_steps(self) -> int:
        """T."""
        return self.step_ptr.numel() - 1

    @property
    def num_events(self) -> int:
        """M."""
        return self.src.numel()

    @property
    def num_features(self) -> int:
        """F, 0 where there are no features."""
        return 0 if self.x is None else self.x.shape[-1]

    def __repr__(self) -> str:
        counts = {"num_nodes": self.num_nodes, "num_events": self.num_events, "num_steps": self.num_steps}
        counts |= {"num_features": self.num_features}
        listed = ", ".join(f"{key}={value}" for key, value in counts.items())
        return f"DynamicGraph({self.name!r}, {listed}{', undirected' if self.undirected else ''})"

    def save(self, path: Any) -> None:
        """Write the graph as a store, a folder that must not exist yet; ``siafu.load`` reads it."""
        from siafu.store import write_dynamic

        write_dynamic(self, path)

    def events(self, start: int, stop: int) -> slice:
        """Return the slice of the events of steps ``start`` to before ``stop``; steps before the first have none."""
        found = _between(self.step_ptr, start, stop)
        if found.stop - found.start != self.count(start, stop):
            raise IndexError(
                f"{self.name}: of steps {max(0, start)} to {stop - 1} only {found.stop - found.start} events are here, "
                f"of {self.count(start, stop)}: this is a part of the log, and does not hold all of these steps"
            )
        return found

    def count(self, start: int, stop: int) -> int:
        """Count the events of steps ``start`` to before ``stop``, also where this shard does not hold them."""
        there = _between(self.step_ptr if self.whole_ptr is None else self.whole_ptr, start, stop)
        return there.stop - there.start

    def features(self, step: int) -> Tensor:
        """Return the features at a step, (N, F); features that never change are the same array each time."""
        assert self.x is not None, "without features, ask Snapshots for degrees"
        return self.x[step] if self.x.ndim == 3 else self.x

    @cached_property
    def first_step(self) -> Tensor:
        """(N,) int32, the first step with an event of each node; T where it has none."""
        return self._last_event_step(range(self.num_steps - 1, -1, -1), self.num_steps)

    @cached_property
    def last_step(self) -> Tensor:
        """(N,) int32, the last step with an event of each node; -1 where it has none. It knows the future."""
        return self._last_event_step(range(self.num_steps), -1)

    def seen(self, step: int) -> Tensor:
        """Return whether each node has had an event by this step, (N,) bool."""
        return self.first_step <= step

    def present(self, step: int) -> Tensor:
        """Return whether a step lies between a node's first and last event, (N,) bool; this knows the future."""
        return (self.first_step <= step) & (step <= self.last_step)

    @cached_property
    def fingerprint(self) -> str:
        """The checksum of everything that a run reads of the graph."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return checksum_of(arrays, f"{self.num_nodes} {self.undirected}")

    def _last_event_step(self, steps: range, never: int) -> Tensor:
        """Return, for each node, the last of ``steps`` (in the order given) in which it has an event."""
        found = torch.full((self.num_nodes,), never, dtype=torch.int32)
        for step in steps:
            events = self.events(step, step + 1)
            found[self.src[events].long()] = step
            found[self.dst[events].long()] = step
        return found

    @classmethod
    def from_events(
        cls,
        src: ArrayLike | Tensor,
        dst: ArrayLike | Tensor,
        t: ArrayLike | Tensor,
        *,
        step: float | None = None,
        steps: int | None = None,
        cut: Steps | None = None,
        weight: ArrayLike | Tensor | None = None,
        edge_y: ArrayLike | Tensor | None = None,
        num_nodes: int | None = None,
        undirected: bool = False,
        x: ArrayLike | Tensor | None = None,
        y: ArrayLike | Tensor | None = None,
        name: str = "graph",
        protocol: Protocol | None = None,
    ) -> "DynamicGraph":
        """Make a graph of events (M,) in any order: ``src[i]`` to ``dst[i]`` at time ``t[i]``, NumPy arrays or tensors.

        Time is cut into steps of length ``step``, the last of which may be shorter, or into ``steps`` equal steps, or
        as ``cut`` says. With none of these each distinct time is a step, if there are at most 1000. Steps without
        events are kept. The other arguments are the fields of the class.
        """
        edges = torch.stack([read_ids(src, "src", name), read_ids(dst, "dst", name)])
        times = read_times(t, edges.shape[1], name)
        cut = cut or find_steps(times, step=step, steps=steps, name=name)
        number = cut.of(times)
        targets = None if y is None else read_targets(y, name)
        features = None if x is None else read_features(x, name)
        count = num_nodes if num_nodes is not None else _count(edges, features, targets, cut.num_steps)
        check_edges(edges, count, name)
        order = number.argsort(stable=True)
        ptr = torch.zeros(cut.num_steps + 1, dtype=torch.int64)
        ptr[1:] = torch.bincount(number, minlength=cut.num_steps).cumsum(0)
        protocol = Protocol() if protocol is None else protocol
        values = None if weight is None else read_edge_weight(weight, edges.shape[1], name)
        classes = None if edge_y is None else read_classes(edge_y, edges.shape[1], name)
        graph = cls(
            edges[0, order].to(torch.int32),
            edges[1, order].to(torch.int32),
            ptr,
            count,
            undirected=undirected,
            weight=None if values is None else values[order],
            x=features,
            y=targets,
            edge_y=None if classes is None else classes[order],
            step_time=cut.begin,
            name=name,
            protocol=replace(protocol, step=cut.length),
        )
        check(graph)
        return graph

    @classmethod
    def from_snapshots(cls, snapshots: Sequence[Any], **fields: Any) -> "DynamicGraph":
        """Make a graph of one snapshot per step: (2, E) sources above targets, scipy matrices or networkx graphs.

        The keywords are those of :meth:`from_events`; see :func:`siafu.convert.from_snapshots`.
        """
        from siafu import convert

        return convert.from_snapshots(snapshots, **fields)

    @classmethod
    def from_pyg_temporal(cls, data: Any, **fields: Any) -> "DynamicGraph":
        """Convert a PyG ``TemporalData``; see :func:`siafu.convert.from_pyg_temporal`."""
        from siafu import convert

        return convert.from_pyg_temporal(data, **fields)


def _between(ptr: Tensor, start: int, stop: int) -> slice:
    return slice(int(ptr[max(0, start)]), int(ptr[max(0, stop)]))


def _check_log(graph: DynamicGraph) -> None:
    """Refuse steps and events that are out of range, and arrays of another length than the events."""
    name, events = graph.name, graph.num_events
    if not 1 <= graph.num_nodes <= MAX_NODES:
        raise ValueError(f"{name}: num_nodes is {graph.num_nodes}; expected 1 to {MAX_NODES}")
    for field_name in ("src", "dst"):
        check_array(getattr(graph, field_name), f"{name}: {field_name}", torch.int32, (events,))
    check_offsets(graph.step_ptr, events, name, field="step_ptr", of="events")
    if graph.num_steps < 1:
        raise ValueError(f"{name}: step_ptr has no step; expected one offset more than steps")
    if graph.whole_ptr is not None:
        check_array(graph.whole_ptr, f"{name}: whole_ptr", torch.int64, (graph.num_steps + 1,))
        check_offsets(graph.whole_ptr, int(graph.whole_ptr[-1]), name, field="whole_ptr", of="events")
    known = graph.checked
    if known is None or known[0] is not graph.src or known[1] is not graph.dst:
        check_ids(graph.src, graph.num_nodes, name, field="src")
        check_ids(graph.dst, graph.num_nodes, name, field="dst")
    for field_name, dtype in (("weight", torch.float32), ("edge_y", torch.int64)):
        values: Tensor | None = getattr(graph, field_name)
        if values is not None:
            check_array(values, f"{name}: {field_name}", dtype, (events,))
    if graph.x is not None:
        check_width(graph.x.shape, f"{name}: x")
    if graph.step_time is not None:
        check_array(graph.step_time, f"{name}: step_time", torch.float64, (graph.num_steps,))


def check(graph: DynamicGraph) -> None:
    """Refuse features, labels and weights that cannot be trained on; the error says which and where."""
    name, steps, rows = graph.name, graph.num_steps, graph.num_nodes
    if graph.x is not None:
        if tuple(graph.x.shape[:-1]) not in ((rows,), (steps, rows)):
            raise ValueError(
                f"{name}: x is {tuple(graph.x.shape)}; expected ({rows}, F), or ({steps}, {rows}, F) a step"
            )
        check_finite(graph.x.reshape(-1, graph.x.shape[-1]), f"{name}: x")
    if graph.weight is not None:
        check_finite(graph.weight[:, None], f"{name}: weight")
    _check_targets(graph)


def _check_targets(graph: DynamicGraph) -> None:
    y, steps, rows = graph.y, graph.num_steps, graph.num_nodes
    if y is None:
        return
    found = f"{graph.name}: y is {tuple(y.shape)} {y.dtype}"
    if y.is_floating_point():
        if tuple(y.shape[:2]) != (steps, rows) or y.ndim > 3:
            raise ValueError(
                f"{found}; expected ({steps}, {rows}) or ({steps}, {rows}, K) numbers, a row a step"
            )
        if bool(y.isinf().any()):
            raise ValueError(
                f"{graph.name}: y holds an infinite number; expected finite ones, or NaN for none"
            )
    elif tuple(y.shape) not in ((rows,), (steps, rows)):
        raise ValueError(f"{found}; expected ({rows},) classes, or ({steps}, {rows}), a row a step")


def _count(edges: Tensor, x: Tensor | None, y: Tensor | None, num_steps: int) -> int:
    """Return N: from features or targets if given, else from the largest id."""
    if x is not None:
        return x.shape[-2]
    if y is not None:
        by_step = y.ndim > 1 and y.shape[0] == num_steps
        return y.shape[1] if by_step else y.shape[0]
    return int(edges.max()) + 1 if edges.numel() else 0
