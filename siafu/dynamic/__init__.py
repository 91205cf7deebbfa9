"""Graphs that change over time, in steps: a log of events, and snapshots as views of it. No rank, no file, no clock.

Reading order: ``graph`` (the log), ``protocol`` (how a set is usually scored), ``steps`` (times into steps),
``snapshots`` (the graph of a step, and how it follows from the one before), ``chunk`` and ``deltas`` (several of them
in few bytes), ``degrees`` (features where there are none).
"""

from siafu.dynamic.chunk import Chunk
from siafu.dynamic.degrees import DegreeFeatures
from siafu.dynamic.deltas import Deltas
from siafu.dynamic.graph import DynamicGraph
from siafu.dynamic.protocol import Protocol
from siafu.dynamic.snapshots import Snapshots, unpack
from siafu.dynamic.steps import Steps, find_steps

__all__ = [
    "Chunk",
    "DegreeFeatures",
    "Deltas",
    "DynamicGraph",
    "Protocol",
    "Snapshots",
    "Steps",
    "find_steps",
    "unpack",
]
