"""Neighbour sampling: minibatches, subgraphs, negative pairs and keyed permutations. No rank, no file, no clock."""

from siafu.sampling.minibatches import (
    HopBlock,
    Minibatch,
    NeighborSampler,
    SampledEdges,
    SampledHop,
    sample_minibatches,
)
from siafu.sampling.permutation import KeyedPermutation
from siafu.sampling.subgraph import (
    EdgeSampler,
    FrontierEdges,
    Subgraph,
    induced_subgraph,
    make_bidirectional,
    repeat_seeds,
    sample_subgraph,
    unique_seeds,
)

__all__ = [
    "EdgeSampler",
    "FrontierEdges",
    "HopBlock",
    "KeyedPermutation",
    "Minibatch",
    "NeighborSampler",
    "SampledEdges",
    "SampledHop",
    "Subgraph",
    "induced_subgraph",
    "make_bidirectional",
    "repeat_seeds",
    "sample_minibatches",
    "sample_subgraph",
    "unique_seeds",
]
