"""The staleness gates at which the intervals of a rank wait for each other and for other ranks."""

from collections.abc import Mapping

import numpy as np

from siafu.methods.pipeline.intervals import Intervals
from siafu.methods.pipeline.staleness_gate import StalenessGate
from siafu.nn.aggregates import AggregatePass


class IntervalGates:
    """The gates of each layer.

    Attributes:
        peers: the ranks to which this rank returns gradients.
        rows: intervals wait for the rows that they aggregate.
        grads: intervals wait for the gradients of intervals that read them.
        to_peers: gradients for a peer wait for the intervals that read its rows.
        collected: intervals wait for the gradients of all that they read, if the aggregate collects parts of them.
        arrivals: intervals wait for gradients from other ranks.
    """

    def __init__(
        self,
        intervals: Intervals,
        aggregates: Mapping[int, AggregatePass],
        *,
        ranks: int,
        staleness: int,
        first: int,
    ) -> None:
        count, reads = intervals.count, intervals.reads
        self.peers = list(intervals.halo_of)
        slack = np.zeros(reads.shape[1], dtype=np.int64)
        slack[count:] = staleness
        reads_peers = np.stack([intervals.reads_peer(peer) for peer in self.peers], 1) if self.peers else None
        collects = reads[:, :count]
        if reads_peers is not None:
            collects = np.concatenate([collects, reads_peers], 1)
        returned = np.stack([intervals.returned(peer) for peer in range(ranks)], 1)
        self.rows: dict[int, StalenessGate] = {}
        self.grads: dict[int, StalenessGate] = {}
        self.to_peers: dict[int, StalenessGate] = {}
        self.collected: dict[int, StalenessGate] = {}
        self.arrivals: dict[int, StalenessGate] = {}
        for layer, aggregate in aggregates.items():
            self.rows[layer] = StalenessGate(
                reads if aggregate.sent else _only_itself(reads), slack=slack, first=first
            )
            own = reads[:, :count] if aggregate.sent else _only_itself(reads)[:, :count]
            self.grads[layer] = StalenessGate(np.ascontiguousarray(own.T), first=first)
            self.to_peers[layer] = StalenessGate(
                np.zeros((0, count), bool) if reads_peers is None else reads_peers.T, first=first
            )
            self.collected[layer] = StalenessGate(collects, first=first)
            back = np.full(returned.shape[1], staleness, dtype=np.int64)
            self.arrivals[layer] = StalenessGate(
                returned if aggregate.sent else np.zeros_like(returned), slack=back, first=first
            )


def _only_itself(reads: np.ndarray) -> np.ndarray:
    """Return a mask in which each interval reads itself alone."""
    return np.eye(*reads.shape, dtype=bool)
