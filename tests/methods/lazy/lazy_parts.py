"""Inputs of lazy training on the parts of a graph, and dense references of its steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.halo import Halo
from siafu.comm.route import Route
from siafu.context import NO_EXCHANGE, Context
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.partition.cut import cut, whole_part
from siafu.training.config import TrainConfig
from siafu.training.task import Task, task_of

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Given:
    """The inputs of one rank; ``node_id`` are the nodes of its rows."""

    comm: Comm
    context: Context
    route: Route
    x: Tensor
    task: Task
    node_id: Tensor


def on_ranks(
    graph: Graph,
    ranks: int,
    work: Callable[[Given], T],
    *,
    owner: Tensor | None = None,
    train: TrainConfig | None = None,
) -> list[T]:
    """Run ``work`` on each rank and return its results; nodes are assigned at random, or by ``owner``."""
    draw = torch.Generator().manual_seed(ranks)
    owner = torch.randint(ranks, (graph.num_nodes,), generator=draw) if owner is None else owner
    parts = [whole_part(graph)]
    if ranks > 1:
        parts = [one.part(graph) for one in cut(graph, owner.to(torch.int32), parts=ranks)]

    def rank(comm: Comm) -> T:
        part = parts[comm.rank]
        exchange = Halo(comm, part.route, num_own=part.own.num_nodes) if ranks > 1 else NO_EXCHANGE
        assert part.own.x is not None
        task = task_of(part.own, train or TrainConfig(), comm)
        node_id = torch.arange(graph.num_nodes) if part.own.node_id is None else part.own.node_id
        return work(Given(comm, part.context(exchange), part.route, part.own.x, task, node_id))

    return run_threads(rank, ranks=ranks, threads=1)


def gathered(graph: Graph, found: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Gather the rows of all ranks in the order of the graph."""
    out = found[0][1].new_empty(graph.num_nodes, found[0][1].shape[1])
    for node_id, rows in found:
        out[node_id] = rows
    return out


def dense_s(graph: Graph) -> Tensor:
    """``D^-1/2 (A + I) D^-1/2`` with exactly one loop a node, (N, N) float64."""
    block = graph.block
    weight = torch.ones(block.num_edges) if block.edge_weight is None else block.edge_weight
    a = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    a.index_put_((block.row_edge.long(), block.indices.long()), weight.double(), accumulate=True)
    a += torch.diag(block.missing_loop)
    scale = a.sum(1).clamp(min=1e-30).rsqrt()
    return scale[:, None] * a * scale
