"""Sample one subgraph around seeds, hop by hop; each hop expands only the nodes that the last hop reached.

Models of other libraries read such a subgraph: one edge list for all layers (see ``minibatches`` for blocks). It knows
no rank: an :class:`EdgeSampler` provides the edges. Nodes are named by *positions*, int64, which that sampler defines.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from siafu import native


class FrontierEdges(NamedTuple):
    """Sampled in-edges of R frontier nodes.

    Attributes:
        num_edges: (R,) int64, drawn for each.
        source: (E,) int64, the positions that they come from.
        edge: (E,) int64, which edges they are, or None where they have no number.
        weight: (E,) float32, or None where every edge weighs 1, or where the number says it.
    """

    num_edges: Tensor
    source: Tensor
    edge: Tensor | None
    weight: Tensor | None


class EdgeSampler(Protocol):
    """Samples in-edges of nodes, (R,) int64."""

    def __call__(self, position: Tensor, key: int, *, fanout: int, replace: bool) -> FrontierEdges:
        """Sample at most ``fanout`` in-edges per node, all if negative; ``key`` is a signed 64-bit number."""


class Subgraph(NamedTuple):
    """A sampled subgraph: nodes, and edges between them.

    Attributes:
        position: (S,) int64, seeds first, then as they were met.
        edge_index: (2, E) int64, the rows of sources above those of targets, hop by hop.
        edge: (E,) int64 or None, see :class:`FrontierEdges`.
        weight: (E,) float32 or None.
        hop_nodes: the seeds, then the nodes first met in each hop; None where edges do not stand by hops.
        hop_edges: the edges of each hop, or None.
    """

    position: Tensor
    edge_index: Tensor
    edge: Tensor | None
    weight: Tensor | None
    hop_nodes: list[int] | None = None
    hop_edges: list[int] | None = None


def sample_subgraph(
    draw: EdgeSampler, seeds: Tensor, keys: Sequence[int], *, fanouts: Sequence[int], replace: bool
) -> Subgraph:
    """Sample a subgraph from distinct positions; the first fanout is that next to the seeds; each hop has a key."""
    known = front = seeds
    nodes, edges, hops = [seeds.numel()], [torch.empty(2, 0, dtype=torch.int64)], list[FrontierEdges]()
    for key, fanout in zip(keys, fanouts, strict=True):
        taken = draw(front, key, fanout=fanout, replace=replace)
        source, met = _local_rows(known, taken.source)
        edges.append(_edge_index(source, taken, first=known.numel() - front.numel()))
        hops.append(taken)
        known, front = torch.cat([known, met]), met
        nodes.append(front.numel())
    return Subgraph(
        known,
        torch.cat(edges, 1),
        _concatenate([hop.edge for hop in hops]),
        _concatenate([hop.weight for hop in hops]),
        nodes,
        [hop.source.numel() for hop in hops],
    )


def induced_subgraph(draw: EdgeSampler, nodes: Subgraph) -> Subgraph:
    """Return the induced subgraph: all edges between the nodes."""
    position = nodes.position
    taken = draw(position, 0, fanout=-1, replace=False)
    source, _ = _local_rows(position, taken.source)
    keep = source < position.numel()
    edge_index = _edge_index(source, taken, first=0)[:, keep]
    return Subgraph(position, edge_index, _select(taken.edge, keep), _select(taken.weight, keep))


def make_bidirectional(one: Subgraph) -> Subgraph:
    """Add the reverse of each edge and drop duplicates; a reversed edge keeps its number and weight."""
    edge_index = torch.cat([one.edge_index, one.edge_index.flip(0)], 1)
    code, order = (edge_index[1] * one.position.numel() + edge_index[0]).sort(stable=True)
    first = torch.ones_like(code, dtype=torch.bool)
    first[1:] = code[1:] != code[:-1]
    keep = order[first]
    edge, weight = (None if of is None else torch.cat([of, of])[keep] for of in (one.edge, one.weight))
    return Subgraph(one.position, edge_index[:, keep], edge, weight)


def unique_seeds(seeds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct positions among the seeds in their order, (U,), and the index of each seed in them, (B,)."""
    place, first = _local_rows(seeds[:0], seeds)
    return first, place


def repeat_seeds(one: Subgraph, place: Tensor) -> Subgraph:
    """Give each repeated seed a row of its own: the first B rows are then the seeds in their order.

    ``place`` (B,) is the index of each seed among the first rows of ``one``, which are distinct nodes. Each row of a
    repeated seed has all in-edges of that seed. Edges that leave the seed leave its first row, so that no message
    counts twice.
    """
    num_distinct = int(place.max()) + 1 if place.numel() else 0
    if place.numel() == num_distinct:
        return one
    node = torch.cat([place, torch.arange(num_distinct, one.position.numel())])  # the old row of each new one
    rows, count = node.argsort(stable=True), torch.bincount(node)
    begin = count.cumsum(0) - count  # where the new rows of each old one begin among `rows`
    source, target = one.edge_index
    edge = torch.arange(target.numel()).repeat_interleave(count[target])
    copies = count[target].cumsum(0) - count[target]
    target = rows[begin[target[edge]] + torch.arange(edge.numel()) - copies[edge]]
    more_edges = edge.numel() - source.numel()
    target, order = target.sort(stable=True)  # in-edges of seeds, the first hop, stay in front
    edge = edge[order]
    return Subgraph(
        one.position[node],
        torch.stack([rows[begin[source[edge]]], target]),
        _select(one.edge, edge),
        _select(one.weight, edge),
        one.hop_nodes and [place.numel(), *one.hop_nodes[1:]],
        one.hop_edges and [one.hop_edges[0] + more_edges, *one.hop_edges[1:]],
    )


def _local_rows(known: Tensor, met: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of ``met`` nodes, known ones first, then new ones in order; and the new nodes. All int64."""
    (place,), (fresh,) = native.local_rows([known.int()], met.int(), [met.numel()])
    return place.long(), fresh.long()


def _edge_index(source: Tensor, taken: FrontierEdges, *, first: int) -> Tensor:
    """Return edges to the frontier nodes, whose rows begin at ``first``."""
    target = torch.arange(first, first + taken.num_edges.numel()).repeat_interleave(taken.num_edges)
    return torch.stack([source, target])


def _concatenate(parts: list[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def _select(values: Tensor | None, keep: Tensor) -> Tensor | None:
    return None if values is None else values[keep]
