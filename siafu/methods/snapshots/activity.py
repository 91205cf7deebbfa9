"""The activity of nodes by step, which owners of steps send to owners of nodes: a byte a node and step, once a run."""

from itertools import groupby

import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.methods.snapshots.time_partition import SegmentPartition
from siafu.methods.snapshots.timeline import Timeline

LABEL = "marks"
_MIN_INACTIVE = (
    0.125  # share of the rows of a segment; selecting the others costs more than sending fewer than these
)


class ActivityCache:
    """The activity codes of own nodes in all steps, received from the owners of the steps and cached.

    A code is 0 for a node without an edge in the step. Otherwise it is 1, plus the column of the node's degree where
    inputs are made of degrees.
    """

    def __init__(self, comm: Comm, timeline: Timeline) -> None:
        self._comm, self._timeline = comm, timeline
        self._codes: dict[int, Tensor] = {}
        self._inactive: dict[tuple[int, int], float] = {}

    def codes(self, segment: SegmentPartition) -> Tensor:
        """The codes of own nodes in the steps of a segment: (steps, own nodes) uint8. Collective."""
        missing = [step for step in range(segment.start, segment.stop) if step not in self._codes]
        if missing:
            self._exchange(segment, set(missing))
        return torch.stack([self._codes[step] for step in range(segment.start, segment.stop)])

    def mostly_active(self, segment: SegmentPartition) -> bool:
        """True if so few nodes of a segment are inactive that all rows should be sent. Collective."""
        key = segment.start, segment.stop
        if key not in self._inactive:
            codes = self.codes(segment)
            counts = torch.tensor([int((codes == 0).sum()), codes.numel()], dtype=torch.float64)
            inactive, rows = self._comm.all_reduce(counts, label=LABEL).tolist()
            self._inactive[key] = inactive / max(1, rows)
        return self._inactive[key] < _MIN_INACTIVE

    def _exchange(self, segment: SegmentPartition, missing: set[int]) -> None:
        """Exchange the codes of missing steps: from the owners of the steps to the owners of the nodes."""
        rank, ranks = self._comm.rank, range(self._comm.world_size)
        steps_by_rank = [[step for step in segment.steps_of(peer) if step in missing] for peer in ranks]
        rows = self._own_codes(steps_by_rank[rank])
        sent = torch.cat([rows[:, segment.nodes_of(peer)].reshape(-1) for peer in ranks])
        mine = segment.num_nodes[rank]
        send = [len(steps_by_rank[rank]) * nodes for nodes in segment.num_nodes]
        recv = [len(steps) * mine for steps in steps_by_rank]
        received = self._comm.all_to_all(sent, send, recv, label=LABEL)
        steps = [step for peer in ranks for step in steps_by_rank[peer]]
        self._codes |= zip(steps, received.view(-1, mine).unbind(), strict=True)

    def _own_codes(self, steps: list[int]) -> Tensor:
        """The codes of all nodes in some own steps, (steps, N) uint8."""
        runs = [list(run) for _, run in groupby(enumerate(steps), lambda each: each[1] - each[0])]
        found = [self._timeline.activity_codes(range(run[0][1], run[-1][1] + 1)) for run in runs]
        return torch.cat([torch.empty(0, self._timeline.graph.num_nodes, dtype=torch.uint8), *found])
