"""Graphs that change over time: an event log, and snapshots as views of it. No rank, no file, no clock.

Reading order: ``graph`` (the log), ``event_input`` (reading a user's arrays), ``protocol`` (how a data set is usually
scored), ``steps`` (cutting time into steps), ``snapshots`` (the graph of a step), ``chunk``, ``delta_snapshots`` and
``unpacking`` (snapshots packed as key frames and deltas), ``degrees`` (features where there are none),
``change_counts`` (edges and nodes that each step adds and removes).
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
