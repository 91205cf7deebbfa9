"""The graph work of layers. Each kind of aggregate is written once, forward and backward, by ranges of rows."""

from siafu.nn.aggregates.aggregate import Aggregate, AggregatePass, Allocate, aggregate, aggregate_static
from siafu.nn.aggregates.attention import Attention
from siafu.nn.aggregates.attention_v2 import AttentionV2
from siafu.nn.aggregates.halo import check_rows, gather_halo, widened, with_halo
from siafu.nn.aggregates.identity import IDENTITY
from siafu.nn.aggregates.maximum import MAXIMUM, max_in
from siafu.nn.aggregates.weighted_sum import (
    GCN_SUM,
    MEAN,
    SUM,
    Scales,
    edge_weights,
    gcn_in,
    gcn_scales,
    mean_in,
    sum_in,
)

__all__ = [
    "GCN_SUM",
    "IDENTITY",
    "MAXIMUM",
    "MEAN",
    "SUM",
    "Aggregate",
    "AggregatePass",
    "Allocate",
    "Attention",
    "AttentionV2",
    "Scales",
    "aggregate",
    "aggregate_static",
    "check_rows",
    "edge_weights",
    "gather_halo",
    "gcn_in",
    "gcn_scales",
    "max_in",
    "mean_in",
    "sum_in",
    "widened",
    "with_halo",
]
