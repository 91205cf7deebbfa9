"""Minibatches by neighbour sampling. It knows no rank, no file, no clock."""

from siafu.sample.config import SampledConfig
from siafu.sample.grow import Drawn, Grown, Hop, Met, Neighbours, grow
from siafu.sample.shuffle import Shuffled
from siafu.sample.spread import Draw, Subgraph, Taken, both_ways, distinct, induced, repeat_seeds, spread

__all__ = [
    "Draw",
    "Drawn",
    "Grown",
    "Hop",
    "Met",
    "Neighbours",
    "SampledConfig",
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
