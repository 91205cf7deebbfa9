"""Graphs that change over time, in steps: a log of events, and snapshots as views of it. No rank, no file, no clock.

Reading order: ``graph`` (the log), ``protocol`` (how a set is usually scored), ``steps`` (times into steps),
``snapshots`` (the graph of a step, and how it follows from the one before), ``chunk``, ``deltas`` and ``unpacked``
(several of them in few bytes, and the events of those), ``degrees`` (features where there are none), ``change`` (what
each step brings and takes).
"""

from siafu.dynamic.change_counts import ChangeCounts, change_of
from siafu.dynamic.chunk import Chunk
from siafu.dynamic.degrees import DegreeFeatures
from siafu.dynamic.delta_snapshots import DeltaSnapshots
from siafu.dynamic.graph import DynamicGraph
from siafu.dynamic.protocol import Protocol
from siafu.dynamic.snapshots import Snapshots, unpack
from siafu.dynamic.steps import Steps, find_steps
from siafu.dynamic.unpacking import events_of

__all__ = [
    "ChangeCounts",
    "Chunk",
    "DegreeFeatures",
    "DeltaSnapshots",
    "DynamicGraph",
    "Protocol",
    "Snapshots",
    "Steps",
    "change_of",
    "events_of",
    "find_steps",
    "unpack",
]
