"""Temporal models, over graphs that change: a spatial part within each step, and a part along time.

They know no rank, no file, no clock.
"""

from siafu.nn.temporal.checkpointing import checkpointed_backward
from siafu.nn.temporal.layer import Span, State, TemporalLayer, span_alone
from siafu.nn.temporal.model import TemporalModel, build_temporal
from siafu.nn.temporal.segment_plan import MemoryEstimate, estimate_memory, plan_segments
from siafu.nn.temporal.step import Step, aggregate_step, aggregate_steps
from siafu.nn.temporal.temporal_comm import TemporalComm, single_rank

__all__ = [
    "MemoryEstimate",
    "Span",
    "State",
    "Step",
    "TemporalComm",
    "TemporalLayer",
    "TemporalModel",
    "aggregate_step",
    "aggregate_steps",
    "build_temporal",
    "checkpointed_backward",
    "estimate_memory",
    "plan_segments",
    "single_rank",
    "span_alone",
]
