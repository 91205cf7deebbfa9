"""Minibatches by neighbour sampling. It knows no rank, no file, no clock."""

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
    "SampledEdges",
    "Minibatch",
    "HopBlock",
    "SampledHop",
    "NeighborSampler",
    "KeyedPermutation",
    "Subgraph",
    "FrontierEdges",
    "make_bidirectional",
    "unique_seeds",
    "grow",
    "induced_subgraph",
    "repeat_seeds",
    "sample_subgraph",
]
