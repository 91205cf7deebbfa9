"""Minibatches by neighbour sampling. It knows no rank, no file, no clock."""

from siafu.sampling.grow import Drawn, Grown, Hop, Met, Neighbours, grow
from siafu.sampling.shuffle import Shuffled
from siafu.sampling.spread import Draw, Subgraph, Taken, both_ways, distinct, induced, repeat_seeds, spread

__all__ = [
    "Draw",
    "Drawn",
    "Grown",
    "Hop",
    "Met",
    "Neighbours",
    "Shuffled",
    "Subgraph",
    "Taken",
    "both_ways",
    "distinct",
    "grow",
    "induced",
    "repeat_seeds",
    "spread",
]
