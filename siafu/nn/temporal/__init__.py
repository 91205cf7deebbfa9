"""Models over graphs that change over time: a part within each step, a part along time. No rank, no file, no clock."""

from siafu.nn.temporal.checkpointing import checkpointed_backward
from siafu.nn.temporal.layer import Span, State, TemporalLayer, span_alone
from siafu.nn.temporal.model import TemporalModel, build_temporal
from siafu.nn.temporal.segment_plan import Need, cut_time, estimate_memory
from siafu.nn.temporal.step import Step, snapshot_in, snapshots_in
from siafu.nn.temporal.temporal_comm import Turn, alone

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
    "estimate_memory",
    "checkpointed_backward",
    "snapshot_in",
    "snapshots_in",
    "span_alone",
]
