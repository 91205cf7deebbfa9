"""Count how a dynamic graph changes from step to step, from its event log alone."""

from typing import NamedTuple

import torch
from torch import Tensor

from siafu.dynamic.graph import DynamicGraph


class ChangeCounts(NamedTuple):
    """Sizes of each step's snapshot and its differences from the previous one; T numbers each.

    Attributes:
        edges: events that live in the step.
        added: events of the step itself.
        removed: events that lived in the step before and no longer do.
        active: nodes that have an edge.
        arrived: nodes that never had one before.
    """

    edges: list[int]
    added: list[int]
    removed: list[int]
    active: list[int]
    arrived: list[int]


def change_of(graph: DynamicGraph, *, life: int) -> ChangeCounts:
    """Count the changes of a graph in which an event lives for ``life`` steps."""
    degree = torch.zeros(graph.num_nodes, dtype=torch.int64)
    seen = torch.zeros(graph.num_nodes, dtype=torch.bool)
    rows = []
    for step in range(graph.num_steps):
        degree += _degree(graph, step)
        if step >= life:
            degree -= _degree(graph, step - life)
        known, seen = int(seen.sum()), seen | (degree > 0)
        counts = [_number(graph, step - life + 1, step + 1), _number(graph, step, step + 1)]
        counts.append(_number(graph, step - life, step - life + 1))
        rows.append([*counts, int((degree > 0).sum()), int(seen.sum()) - known])
    return (
        ChangeCounts(*(list(column) for column in zip(*rows, strict=True)))
        if rows
        else ChangeCounts([], [], [], [], [])
    )


def _number(graph: DynamicGraph, start: int, stop: int) -> int:
    events = graph.events(start, stop)
    return events.stop - events.start


def _degree(graph: DynamicGraph, step: int) -> Tensor:
    """Count how often each node occurs in the events of a step, (N,)."""
    events, size = graph.events(step, step + 1), graph.num_nodes
    ends = (torch.bincount(each[events], minlength=size) for each in (graph.src, graph.dst))
    return next(ends) + next(ends)
