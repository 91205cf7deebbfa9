"""Where the intervals of a rank wait for each other and for other ranks."""

from collections.abc import Mapping

import numpy as np

from siafu.methods.pipeline.intervals import Intervals
from siafu.methods.pipeline.staleness_gate import Gate
from siafu.nn.aggregates import AggregatePass


class Gates:
    """Where intervals wait, by layer.

    Attributes:
        peers: those that this rank gives gradients back to.
        rows: for what they aggregate.
        grads: for the gradients of those that read them.
        to_peers: where gradients for each peer wait for those that read its rows.
        collected: for the gradients of all that they read, where these leave something for them.
        arrivals: for gradients from other ranks.
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
        of_peers = np.stack([intervals.reads_peer(peer) for peer in self.peers], 1) if self.peers else None
        collects = reads[:, :count] if of_peers is None else np.concatenate([reads[:, :count], of_peers], 1)
        returned = np.stack([intervals.returned(peer) for peer in range(ranks)], 1)
        self.rows: dict[int, Gate] = {}
        self.grads: dict[int, Gate] = {}
        self.to_peers: dict[int, Gate] = {}
        self.collected: dict[int, Gate] = {}
        self.arrivals: dict[int, Gate] = {}
        for layer, aggregate in aggregates.items():
            self.rows[layer] = Gate(reads if aggregate.sent else _alone(reads), slack=slack, first=first)
            own = reads[:, :count] if aggregate.sent else _alone(reads)[:, :count]
            self.grads[layer] = Gate(np.ascontiguousarray(own.T), first=first)
            self.to_peers[layer] = Gate(
                np.zeros((0, count), bool) if of_peers is None else of_peers.T, first=first
            )
            self.collected[layer] = Gate(collects, first=first)
            back = np.full(returned.shape[1], staleness, dtype=np.int64)
            self.arrivals[layer] = Gate(
                returned if aggregate.sent else np.zeros_like(returned), slack=back, first=first
            )


def _alone(reads: np.ndarray) -> np.ndarray:
    """Each reads itself and nobody else."""
    return np.eye(*reads.shape, dtype=bool)
