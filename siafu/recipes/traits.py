"""``Traits``: the facts about a graph and its task that recipes are chosen by."""

from typing import NamedTuple

import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.sparse_input import MOST_SPARSE
from siafu.training.inputs import density, is_counts
from siafu.training.task import Task

_MOST_ROWS = 100_000  # training nodes whose in-edges are looked at
_FEWEST_EDGES = 50  # between training nodes, for a homophily


class Traits(NamedTuple):
    """The traits of a graph and its task.

    Attributes:
        num_train, num_val: labelled nodes.
        num_outputs: classes, labels or targets.
        in_features: the width of the features; 0 for none.
        counts: whether features look like counts of words: none negative, most zero.
        dense: whether most numbers of the features are not zero, or so many that dense rows are faster.
        degree: in-edges of a node, on average.
        homophily: among edges between training nodes, the share that joins nodes of one class, above what chance
            gives: 1 for all, 0 for chance, below 0 for fewer; None where too few edges tell.
    """

    num_train: int
    num_val: int
    num_outputs: int
    in_features: int
    counts: bool
    dense: bool
    degree: float
    homophily: float | None


def traits_of(graph: Graph, task: Task) -> Traits:
    """Look at a graph and its task."""
    x = graph.x
    sparse = x is not None and density(x) <= MOST_SPARSE
    return Traits(
        num_train=task.count["train"],
        num_val=task.count["val"],
        num_outputs=task.num_outputs,
        in_features=0 if x is None else x.shape[1],
        counts=x is not None and is_counts(x),
        dense=x is not None and not sparse,
        degree=graph.num_edges / max(1, graph.num_nodes),
        homophily=_homophily(graph, task) if task.kind == "class" else None,
    )


def _homophily(graph: Graph, task: Task) -> float | None:
    """The homophily of edges between training nodes, adjusted for the sizes of classes."""
    rows = _some(task.rows["train"])
    label = torch.full((graph.num_nodes,), -1, dtype=torch.int64)
    label[task.rows["train"]] = task.y[task.rows["train"]]
    start, end = graph.indptr[rows], graph.indptr[rows + 1]
    degree = end - start
    edge = torch.repeat_interleave(start - (degree.cumsum(0) - degree), degree) + torch.arange(
        int(degree.sum())
    )
    mine, other = torch.repeat_interleave(label[rows], degree), label[graph.indices[edge].long()]
    known = other >= 0
    if int(known.sum()) < _FEWEST_EDGES:
        return None
    mine, other = mine[known], other[known]
    share = torch.bincount(other, minlength=task.num_outputs).double() / len(other)
    chance = float((share**2).sum())
    alike = float((mine == other).double().mean())
    return (alike - chance) / (1 - chance) if chance < 1 else None


def _some(rows: Tensor) -> Tensor:
    """At most so many of the rows, evenly spaced."""
    step = -(-len(rows) // _MOST_ROWS)
    return rows[:: max(1, step)]
