"""Minibatches by neighbour sampling. It knows no rank, no file, no clock."""

from siafu.sample.config import SampledConfig
from siafu.sample.grow import Drawn, Grown, Hop, Neighbours, grow

__all__ = ["Drawn", "Grown", "Hop", "Neighbours", "SampledConfig", "grow"]
