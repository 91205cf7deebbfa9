"""Sample several minibatches at once, hop by hop from their seeds.

It knows no rank: a :class:`NeighborSampler` provides the edges, wherever they are. Nodes are named by *positions*,
int32, which that sampler defines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class SampledEdges(NamedTuple):
    """Sampled in-edges of R nodes.

    Attributes:
        indptr: (R + 1,) int64, where the edges of each begin.
        source: (E,) int32, the positions that they come from.
        weight: (E,) float32, or None where every edge weighs 1.
    """

    indptr: Tensor
    source: Tensor
    weight: Tensor | None


class SampledHop(NamedTuple):
    """Sampled in-edges of the nodes of G minibatches, R nodes in all, with sources as local rows.

    Attributes:
        indptr: (R + 1,) int64, the first edge of each node.
        src_row: of each minibatch, (E,) int32, the row of each source: rows known before, then new ones.
        new_nodes: of each minibatch, (N,) int32, the positions of nodes that this hop reached first.
        weight: (E,) float32, of all edges, or None where every edge weighs 1.
    """

    indptr: Tensor
    src_row: list[Tensor]
    new_nodes: list[Tensor]
    weight: Tensor | None


class NeighborSampler(Protocol):
    """Samples in-edges of any node, wherever the edges are stored."""

    def sample_hop(self, nodes: list[Tensor], *, key: Tensor, fanout: int, replace: bool) -> SampledHop:
        """Sample in-edges of the nodes of each minibatch, (R,) int32; ``key``, (G,) int64, has a key per minibatch."""


class HopBlock(NamedTuple):
    """The bipartite block of one hop of a minibatch.

    Attributes:
        indptr: (D + 1,) int64.
        indices: (E,) int32.
        num_src: S.
        weight: (E,) float32 or None.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    weight: Tensor | None


@dataclass(frozen=True)
class Minibatch:
    """A sampled minibatch: the nodes it reads, seeds first, and one block per hop, from the seeds outwards.

    Attributes:
        position: (S,) int32, all nodes in the order of first occurrence.
        hops: the block of each hop; it reads a prefix of the nodes and writes a shorter one.
    """

    position: Tensor
    hops: tuple[HopBlock, ...]


def sample_minibatches(
    sampler: NeighborSampler, seeds: Sequence[Tensor], keys: Tensor, *, fanouts: Sequence[int], replace: bool
) -> list[Minibatch]:
    """Sample minibatches from seed positions; ``keys`` is (minibatches, hops) int64, ``fanouts`` one per hop.

    Each hop calls the sampler once for all minibatches.
    """
    nodes, hops = list(seeds), [list[HopBlock]() for _ in seeds]
    for hop, fanout in enumerate(fanouts):
        met = sampler.sample_hop(nodes, key=keys[:, hop].contiguous(), fanout=fanout, replace=replace)
        first, num_met = 0, [places.numel() for places in met.src_row]
        weights = [None] * len(nodes) if met.weight is None else met.weight.split(num_met)
        for place, (known, indices, weight) in enumerate(zip(nodes, met.src_row, weights, strict=True)):
            indptr = met.indptr[first : first + known.numel() + 1]
            nodes[place] = torch.cat([known, met.new_nodes[place]])
            hops[place].append(HopBlock(indptr - indptr[0], indices, nodes[place].numel(), weight))
            first += known.numel()
    return [Minibatch(position, tuple(its)) for position, its in zip(nodes, hops, strict=True)]
