"""The partition of a segment (consecutive steps) over ranks, by steps and by nodes. Pure arithmetic."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class SegmentPartition:
    """A segment, partitioned over ranks.

    Attributes:
        start: number of the segment's first step.
        steps: P + 1 bounds, from 0: rank p owns the steps ``start + steps[p]`` up to ``start + steps[p + 1]``.
        nodes: P + 1 bounds: rank p owns the nodes ``nodes[p]`` up to ``nodes[p + 1]``.
    """

    start: int
    steps: tuple[int, ...]
    nodes: tuple[int, ...]

    @property
    def stop(self) -> int:
        """The number after the segment's last step."""
        return self.start + self.steps[-1]

    @cached_property
    def num_steps(self) -> tuple[int, ...]:
        """The number of steps of each rank."""
        return tuple(end - begin for begin, end in pairwise(self.steps))

    @cached_property
    def num_nodes(self) -> tuple[int, ...]:
        """The number of nodes of each rank."""
        return tuple(end - begin for begin, end in pairwise(self.nodes))

    def steps_of(self, rank: int) -> range:
        """The numbers of the steps that a rank owns."""
        return range(self.start + self.steps[rank], self.start + self.steps[rank + 1])

    def nodes_of(self, rank: int) -> slice:
        """The nodes that a rank owns."""
        return slice(self.nodes[rank], self.nodes[rank + 1])


def partition_segments(
    costs: Sequence[float], lengths: Sequence[int], *, ranks: int, num_nodes: int, start: int = 0
) -> list[SegmentPartition]:
    """Cut the steps from ``start`` on, one for each cost, into segments of such lengths; partition each over ranks.

    Each rank owns consecutive steps of a segment, balanced by cost. If there are fewer steps than ranks, some ranks own
    none.
    """
    nodes = _even_bounds(num_nodes, ranks)
    bounds = (0, *accumulate(lengths))
    assert bounds[-1] == len(costs), (lengths, len(costs))
    return [
        SegmentPartition(start + begin, _balanced_bounds(costs[begin:end], ranks), nodes)
        for begin, end in pairwise(bounds)
    ]


def even_lengths(num_steps: int, segments: int) -> list[int]:
    """The lengths of ``segments`` segments of nearly equal length."""
    bounds = _even_bounds(num_steps, max(1, min(segments, num_steps)))
    return [end - begin for begin, end in pairwise(bounds)]


def _even_bounds(count: int, parts: int) -> tuple[int, ...]:
    return tuple(count * part // parts for part in range(parts + 1))


def _balanced_bounds(costs: Sequence[float], ranks: int) -> tuple[int, ...]:
    """Bounds of consecutive ranges of about equal cost, to within half a step."""
    if len(costs) <= ranks:
        return tuple(min(rank, len(costs)) for rank in range(ranks + 1))
    middle = [total - cost / 2 for total, cost in zip(accumulate(costs), costs, strict=True)]
    share = sum(costs) / ranks
    bounds = [0]
    for rank in range(1, ranks):
        wanted = bisect_right(middle, rank * share)
        bounds.append(min(max(wanted, bounds[-1] + 1), len(costs) - (ranks - rank)))
    return (*bounds, len(costs))
