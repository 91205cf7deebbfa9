"""One subgraph grows around its seeds, hop by hop; only nodes that were met in the last hop are asked for theirs.

That is what a model of another library reads, which has one list of edges for all layers; see ``grow`` for blocks. It
knows no rank: whoever draws does. Nodes are named by their *positions*, int64, which whoever draws understands.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from siafu import native


class FrontierEdges(NamedTuple):
    """In-edges drawn for R nodes.

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
    """Draws in-edges of nodes, (R,) int64."""

    def __call__(self, position: Tensor, key: int, *, fanout: int, replace: bool) -> FrontierEdges:
        """EdgeSampler at most ``fanout`` of each, all where it is negative, by a signed key of 64 bits and the node's id."""


class Subgraph(NamedTuple):
    """Nodes, and edges between them.

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
    """Grow from positions, none of them twice, the first fanout next to the seeds; each hop has its key."""
    known = front = seeds
    nodes, edges, hops = [seeds.numel()], [torch.empty(2, 0, dtype=torch.int64)], list[FrontierEdges]()
    for key, fanout in zip(keys, fanouts, strict=True):
        taken = draw(front, key, fanout=fanout, replace=replace)
        source, met = _places(known, taken.source)
        edges.append(_edge_index(source, taken, first=known.numel() - front.numel()))
        hops.append(taken)
        known, front = torch.cat([known, met]), met
        nodes.append(front.numel())
    return Subgraph(
        known,
        torch.cat(edges, 1),
        _joined([hop.edge for hop in hops]),
        _joined([hop.weight for hop in hops]),
        nodes,
        [hop.source.numel() for hop in hops],
    )


def induced_subgraph(draw: EdgeSampler, nodes: Subgraph) -> Subgraph:
    """All edges between the nodes."""
    position = nodes.position
    taken = draw(position, 0, fanout=-1, replace=False)
    source, _ = _places(position, taken.source)
    keep = source < position.numel()
    edge_index = _edge_index(source, taken, first=0)[:, keep]
    return Subgraph(position, edge_index, _picked(taken.edge, keep), _picked(taken.weight, keep))


def make_bidirectional(one: Subgraph) -> Subgraph:
    """Each edge also in the other direction, and none twice; an edge that was turned keeps its number and weight."""
    edge_index = torch.cat([one.edge_index, one.edge_index.flip(0)], 1)
    code, order = (edge_index[1] * one.position.numel() + edge_index[0]).sort(stable=True)
    first = torch.ones_like(code, dtype=torch.bool)
    first[1:] = code[1:] != code[:-1]
    keep = order[first]
    edge, weight = (None if of is None else torch.cat([of, of])[keep] for of in (one.edge, one.weight))
    return Subgraph(one.position, edge_index[:, keep], edge, weight)


def unique_seeds(seeds: Tensor) -> tuple[Tensor, Tensor]:
    """The different positions among the seeds, as they come: (U,), and where each seed stands among them: (B,)."""
    place, first = _places(seeds[:0], seeds)
    return first, place


def repeat_seeds(one: Subgraph, place: Tensor) -> Subgraph:
    """Give every seed a row of its own where seeds repeat: the first B rows are the seeds, as they come.

    ``place`` (B,) says where each seed stands among the first rows of ``one``, which are different nodes. Each row of a
    repeated seed has all in-edges of that seed. Edges that leave the seed leave its first row, so no message counts
    twice.
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
        _picked(one.edge, edge),
        _picked(one.weight, edge),
        one.hop_nodes and [place.numel(), *one.hop_nodes[1:]],
        one.hop_edges and [one.hop_edges[0] + more_edges, *one.hop_edges[1:]],
    )


def _places(known: Tensor, met: Tensor) -> tuple[Tensor, Tensor]:
    """The places of met nodes among the known ones and then those met first; and the latter. All are (…,) int64."""
    (place,), (fresh,) = native.local_rows([known.int()], met.int(), [met.numel()])
    return place.long(), fresh.long()


def _edge_index(source: Tensor, taken: FrontierEdges, *, first: int) -> Tensor:
    """Edges to the nodes that were asked, which stand from row ``first`` on."""
    target = torch.arange(first, first + taken.num_edges.numel()).repeat_interleave(taken.num_edges)
    return torch.stack([source, target])


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def _picked(values: Tensor | None, keep: Tensor) -> Tensor | None:
    return None if values is None else values[keep]
