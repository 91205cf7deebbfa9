"""Minibatches grow from their seeds, hop by hop, several at once.

It knows no rank: whoever is asked for neighbours does. Nodes are named by their *positions*, int32, which whoever is
asked understands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class SampledEdges(NamedTuple):
    """In-edges drawn for R nodes.

    Attributes:
        indptr: (R + 1,) int64, where the edges of each begin.
        source: (E,) int32, the positions that they come from.
        weight: (E,) float32, or None where every edge weighs 1.
    """

    indptr: Tensor
    source: Tensor
    weight: Tensor | None


class SampledHop(NamedTuple):
    """In-edges drawn for the nodes of G minibatches, R in all.

    Attributes:
        indptr: (R + 1,) int64, where the edges of each begin.
        places: of each minibatch, (E,) int32, where the edges' sources stand among its nodes and then those met first.
        fresh: of each minibatch, (N,) int32, the positions of the nodes met first.
        weight: (E,) float32, of all edges, or None where every edge weighs 1.
    """

    indptr: Tensor
    places: list[Tensor]
    fresh: list[Tensor]
    weight: Tensor | None


class NeighborSampler(Protocol):
    """The in-edges of all nodes, wherever they are."""

    def sample_hop(self, nodes: list[Tensor], *, key: Tensor, fanout: int, replace: bool) -> SampledHop:
        """Draw in-edges of the nodes of each minibatch, (R,) int32; ``key``, (G,) int64, is the minibatches'."""


class HopBlock(NamedTuple):
    """One hop of a minibatch, its sources placed among the nodes that it has met.

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
    """A minibatch: the nodes it reads, seeds first, then as they were met, and its hops, from the seeds outwards.

    Attributes:
        position: (S,) int32, all nodes.
        hops: each reads a prefix of the nodes and writes a shorter one.
    """

    position: Tensor
    hops: tuple[HopBlock, ...]


def sample_minibatches(
    near: NeighborSampler, seeds: Sequence[Tensor], keys: Tensor, *, fanouts: Sequence[int], replace: bool
) -> list[Minibatch]:
    """Grow minibatches from positions; ``keys`` is (minibatches, hops) int64, ``fanouts`` that of each hop.

    Each hop asks once for the neighbours of all minibatches.
    """
    nodes, hops = list(seeds), [list[HopBlock]() for _ in seeds]
    for hop, fanout in enumerate(fanouts):
        met = near.sample_hop(nodes, key=keys[:, hop].contiguous(), fanout=fanout, replace=replace)
        first, num_met = 0, [places.numel() for places in met.places]
        weights = [None] * len(nodes) if met.weight is None else met.weight.split(num_met)
        for place, (known, indices, weight) in enumerate(zip(nodes, met.places, weights, strict=True)):
            indptr = met.indptr[first : first + known.numel() + 1]
            nodes[place] = torch.cat([known, met.fresh[place]])
            hops[place].append(HopBlock(indptr - indptr[0], indices, nodes[place].numel(), weight))
            first += known.numel()
    return [Minibatch(position, tuple(its)) for position, its in zip(nodes, hops, strict=True)]
