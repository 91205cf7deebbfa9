"""Minibatches grow from their seeds, hop by hop, several at once.

It knows no rank: whoever is asked for neighbours does. Nodes are named by their *positions*, int32, which whoever is
asked understands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from siafu import native


class Drawn(NamedTuple):
    """In-edges drawn for R nodes.

    Attributes:
        indptr: (R + 1,) int64, where the edges of each begin.
        source: (E,) int32, the positions that they come from.
        weight: (E,) float32, or None where every edge weighs 1.
    """

    indptr: Tensor
    source: Tensor
    weight: Tensor | None


class Neighbours(Protocol):
    """The in-edges of all nodes, wherever they are."""

    def draw(self, position: Tensor, *, sizes: Tensor, key: Tensor, fanout: int, replace: bool) -> Drawn:
        """Draw in-edges of nodes, (R,) int32, group after group; ``sizes`` and ``key``, (G,) int64, are the groups'."""


class Hop(NamedTuple):
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
class Grown:
    """A minibatch: the nodes it reads, seeds first, then as they were met, and its hops, from the seeds outwards.

    Attributes:
        position: (S,) int32, all nodes.
        hops: each reads a prefix of the nodes and writes a shorter one.
    """

    position: Tensor
    hops: tuple[Hop, ...]


def grow(
    near: Neighbours, seeds: Sequence[Tensor], keys: Tensor, *, fanouts: Sequence[int], replace: bool
) -> list[Grown]:
    """Grow minibatches from positions; ``keys`` is (minibatches, hops) int64, ``fanouts`` that of each hop.

    Each hop asks once for the neighbours of all minibatches.
    """
    nodes, hops = list(seeds), [list[Hop]() for _ in seeds]
    for hop, fanout in enumerate(fanouts):
        sizes = torch.tensor([known.numel() for known in nodes])
        drawn = near.draw(
            torch.cat(nodes), sizes=sizes, key=keys[:, hop].contiguous(), fanout=fanout, replace=replace
        )
        ends = [0, *sizes.cumsum(0).tolist()]
        num_met = drawn.indptr[ends].diff().tolist()
        weights = [None] * len(nodes) if drawn.weight is None else drawn.weight.split(num_met)
        places, fresh = native.first_met(nodes, drawn.source, num_met)
        nodes = [torch.cat(pair) for pair in zip(nodes, fresh, strict=True)]
        for place, (indices, weight) in enumerate(zip(places, weights, strict=True)):
            indptr = drawn.indptr[ends[place] : ends[place + 1] + 1]
            hops[place].append(Hop(indptr - indptr[0], indices, nodes[place].numel(), weight))
    return [Grown(position, tuple(its)) for position, its in zip(nodes, hops, strict=True)]
