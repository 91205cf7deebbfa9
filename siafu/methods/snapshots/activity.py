"""What ranks tell each other of nodes in steps that are not their own, in a byte a node and step, once."""

from itertools import groupby

import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.methods.snapshots.time_partition import Cut
from siafu.methods.snapshots.timeline import Timeline

LABEL = "marks"
_FEW = 0.125  # of the rows of a block: leaving out so few costs more than sending them


class Marks:
    """Whether own nodes have an edge in a step, and the column of their degree, as the owners of the steps tell it.

    A mark is 0 for a node without an edge, else 1 and the column of its degree where inputs are made of degrees. What
    was told is kept, a byte for each own node and step.
    """

    def __init__(self, comm: Comm, timeline: Timeline) -> None:
        self._comm, self._timeline = comm, timeline
        self._told: dict[int, Tensor] = {}
        self._idle: dict[tuple[int, int], float] = {}

    def of(self, cut: Cut) -> Tensor:
        """The marks of a block's steps for own nodes: (steps, own nodes) uint8. Collective."""
        lacking = [step for step in range(cut.start, cut.stop) if step not in self._told]
        if lacking:
            self._tell(cut, set(lacking))
        return torch.stack([self._told[step] for step in range(cut.start, cut.stop)])

    def few_idle(self, cut: Cut) -> bool:
        """Whether nearly all nodes have an edge in the steps of a block: all rows may be sent then. Collective."""
        key = cut.start, cut.stop
        if key not in self._idle:
            marks = self.of(cut)
            counts = torch.tensor([int((marks == 0).sum()), marks.numel()], dtype=torch.float64)
            idle, rows = self._comm.all_reduce(counts, label=LABEL).tolist()
            self._idle[key] = idle / max(1, rows)
        return self._idle[key] < _FEW

    def _tell(self, cut: Cut, lacking: set[int]) -> None:
        """Have each rank tell of those of its steps of a block that nobody told of before."""
        rank, ranks = self._comm.rank, range(self._comm.world_size)
        asked = [[step for step in cut.steps_of(peer) if step in lacking] for peer in ranks]
        rows = self._of_own(asked[rank])
        sent = torch.cat([rows[:, cut.nodes_of(peer)].reshape(-1) for peer in ranks])
        mine = cut.num_nodes[rank]
        send = [len(asked[rank]) * nodes for nodes in cut.num_nodes]
        came = self._comm.all_to_all(sent, send, [len(steps) * mine for steps in asked], label=LABEL)
        steps = [step for peer in ranks for step in asked[peer]]
        self._told |= zip(steps, came.view(-1, mine).unbind(), strict=True)

    def _of_own(self, steps: list[int]) -> Tensor:
        """The marks of some own steps for all nodes, (steps, N) uint8."""
        runs = [list(run) for _, run in groupby(enumerate(steps), lambda each: each[1] - each[0])]
        found = [self._timeline.marks(range(run[0][1], run[-1][1] + 1)) for run in runs]
        return torch.cat([torch.empty(0, self._timeline.graph.num_nodes, dtype=torch.uint8), *found])
