"""Models over graphs that change over time: a part within each step, a part along time. No rank, no file, no clock."""

from siafu.nn.temporal.blocks import passed_in_blocks
from siafu.nn.temporal.cut import Need, cut_time, need_of
from siafu.nn.temporal.layer import Span, State, TemporalLayer, span_alone
from siafu.nn.temporal.model import TemporalModel, build_temporal
from siafu.nn.temporal.step import Step, snapshot_in, snapshots_in
from siafu.nn.temporal.turn import Turn, alone

__all__ = [
    "Need",
    "Span",
    "State",
    "Step",
    "TemporalLayer",
    "TemporalModel",
    "Turn",
    "alone",
    "build_temporal",
    "cut_time",
    "need_of",
    "passed_in_blocks",
    "snapshot_in",
    "snapshots_in",
    "span_alone",
]
