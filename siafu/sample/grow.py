"""Minibatches grow from their seeds, hop by hop, several at once.

It knows no rank: whoever is asked for neighbours does. Nodes are named by their *positions*, int64, which whoever is
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
        num_edges: (R,) int64, drawn for each.
        source: (E,) int64, the positions that they come from.
        weight: (E,) float32, or None where every edge weighs 1.
    """

    num_edges: Tensor
    source: Tensor
    weight: Tensor | None


class Neighbours(Protocol):
    """The in-edges of all nodes, wherever they are."""

    def draw(self, position: Tensor, key: Tensor, *, fanout: int, replace: bool) -> Drawn:
        """Draw in-edges of nodes, each by its key; both are (R,) int64."""


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
        position: (S,) int64, all nodes.
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
        sizes = [known.numel() for known in nodes]
        key = keys[:, hop].repeat_interleave(torch.tensor(sizes))
        drawn = near.draw(torch.cat(nodes), key, fanout=fanout, replace=replace)
        counts = drawn.num_edges.split(sizes)
        met = drawn.source.split([int(count.sum()) for count in counts])
        weights = None if drawn.weight is None else drawn.weight.split([part.numel() for part in met])
        places, fresh = native.first_met(nodes, list(met))
        nodes = [torch.cat(pair) for pair in zip(nodes, fresh, strict=True)]
        for place, (count, indices) in enumerate(zip(counts, places, strict=True)):
            indptr = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
            weight = None if weights is None else weights[place]
            hops[place].append(Hop(indptr, indices, nodes[place].numel(), weight))
    return [Grown(position, tuple(its)) for position, its in zip(nodes, hops, strict=True)]
