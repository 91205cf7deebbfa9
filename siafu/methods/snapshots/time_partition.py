"""Who owns which steps of a block of time, and which nodes. Pure arithmetic, the same on every rank."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class Cut:
    """A block of time, cut over ranks.

    Attributes:
        start: number of the block's first step.
        steps: P + 1 bounds, from 0: rank p owns the steps ``start + steps[p]`` up to ``start + steps[p + 1]``.
        nodes: P + 1 bounds: rank p owns the nodes ``nodes[p]`` up to ``nodes[p + 1]``.
    """

    start: int
    steps: tuple[int, ...]
    nodes: tuple[int, ...]

    @property
    def stop(self) -> int:
        """The number after the block's last step."""
        return self.start + self.steps[-1]

    @cached_property
    def num_steps(self) -> tuple[int, ...]:
        """How many steps each rank owns."""
        return tuple(end - begin for begin, end in pairwise(self.steps))

    @cached_property
    def num_nodes(self) -> tuple[int, ...]:
        """How many nodes each rank owns."""
        return tuple(end - begin for begin, end in pairwise(self.nodes))

    def steps_of(self, rank: int) -> range:
        """The steps that a rank owns, by their numbers."""
        return range(self.start + self.steps[rank], self.start + self.steps[rank + 1])

    def nodes_of(self, rank: int) -> slice:
        """The nodes that a rank owns."""
        return slice(self.nodes[rank], self.nodes[rank + 1])


def cut_blocks(
    costs: Sequence[float], lengths: Sequence[int], *, ranks: int, num_nodes: int, start: int = 0
) -> list[Cut]:
    """Cut the steps from ``start`` on, one a cost, into blocks of time of such lengths, and these over ranks.

    The steps of a block are contiguous on each rank and balanced by their costs. Some ranks have none where there are
    fewer steps than ranks.
    """
    nodes = _evenly(num_nodes, ranks)
    bounds = (0, *accumulate(lengths))
    assert bounds[-1] == len(costs), (lengths, len(costs))
    return [Cut(start + begin, _balanced(costs[begin:end], ranks), nodes) for begin, end in pairwise(bounds)]


def even_lengths(num_steps: int, blocks: int) -> list[int]:
    """How many steps each of some blocks has, where they are as alike as can be."""
    bounds = _evenly(num_steps, max(1, min(blocks, num_steps)))
    return [end - begin for begin, end in pairwise(bounds)]


def _evenly(count: int, parts: int) -> tuple[int, ...]:
    return tuple(count * part // parts for part in range(parts + 1))


def _balanced(costs: Sequence[float], ranks: int) -> tuple[int, ...]:
    """Bounds of contiguous ranges, so that each begins where its share of all costs does, to half a step."""
    if len(costs) <= ranks:
        return tuple(min(rank, len(costs)) for rank in range(ranks + 1))
    middle = [total - cost / 2 for total, cost in zip(accumulate(costs), costs, strict=True)]
    share = sum(costs) / ranks
    bounds = [0]
    for rank in range(1, ranks):
        wanted = bisect_right(middle, rank * share)
        bounds.append(min(max(wanted, bounds[-1] + 1), len(costs) - (ranks - rank)))
    return (*bounds, len(costs))
