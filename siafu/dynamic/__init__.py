"""Graphs that change over time, in steps: a log of events, and snapshots as views of it. No rank, no file, no clock.

Reading order: ``graph`` (the log), ``protocol`` (how a set is usually scored), ``steps`` (times into steps),
``snapshots`` (the graph of a step, and how it follows from the one before), ``degrees`` (features where there are
none).
"""

from siafu.dynamic.degrees import DegreeFeatures
from siafu.dynamic.graph import DynamicGraph
from siafu.dynamic.protocol import Protocol
from siafu.dynamic.snapshots import Snapshots
from siafu.dynamic.steps import Steps, find_steps

__all__ = ["DegreeFeatures", "DynamicGraph", "Protocol", "Snapshots", "Steps", "find_steps"]
