"""The plan of a run: passes over time, their segments, and memory. Pure arithmetic, the same on every rank."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.time_partition import SegmentPartition, even_lengths, partition_segments
from siafu.methods.snapshots.timeline import Timeline
from siafu.nn.temporal import TemporalModel
from siafu.nn.temporal.evolve import EvolveGcnO
from siafu.nn.temporal.segment_plan import MemoryEstimate, estimate_memory, plan_segments


@dataclass(frozen=True, eq=False)
class PassPlan:
    """The passes over time of a run, their segments and their memory.

    Attributes:
        costs: returns the cost of each of some steps.
        num_nodes: N.
        ranks: number of ranks, which share the steps of a segment.
        window: steps before its own that a sample sees; 0: all, and one pass serves all samples.
        lengths: number of steps of each segment of a pass.
        memory: the memory of a rank for a step of a segment, and for a state between segments.
        cache_bytes: memory that is left to cache graphs and their aggregated inputs.
        sample_parallel: whether each sample is computed by one rank alone. So it is for EvolveGCN-O with a window: a
            sample needs no rows of other steps, because weights evolve without inputs.
    """

    costs: Callable[[range], list[float]]
    num_nodes: int
    ranks: int
    window: int
    lengths: list[int]
    memory: MemoryEstimate
    cache_bytes: int
    sample_parallel: bool

    def passes(self, samples: Sequence[int]) -> Iterator[tuple[list[SegmentPartition], frozenset[int]]]:
        """The passes over time that serve some samples: the segments and the samples of each."""
        if not self.window:
            yield self.segments(0, max(samples) + 1), frozenset(samples)
            return
        for sample in samples:
            yield self.segments(sample - self.window, sample + 1), frozenset([sample])

    def segments(self, start: int, stop: int) -> list[SegmentPartition]:
        """The segments of the steps from ``start`` to before ``stop``: those of training, and more of that size.

        No segment has fewer steps than there are ranks.
        """
        lengths = list(self.lengths)
        more = stop - start - sum(lengths)
        if more >= self.ranks:
            lengths += even_lengths(more, max(1, more // max(*lengths, self.ranks)))
        else:
            lengths[-1] += more
        costs = self.costs(range(start, stop))
        return partition_segments(costs, lengths, ranks=self.ranks, num_nodes=self.num_nodes, start=start)


def plan_passes(
    model: TemporalModel, timeline: Timeline, config: SnapshotsConfig, *, train: range, ranks: int
) -> PassPlan:
    """Plan a run that trains on the samples ``train``: ``snapshots.blocks`` segments, or as few as fit the memory."""
    window, nodes = config.window or 0, timeline.graph.num_nodes
    sample_parallel = window > 0 and all(type(layer) is EvolveGcnO for layer in model.layers)
    memory = estimate_memory(model, nodes, own_nodes=-(-nodes // ranks))
    memory = memory._replace(step=-(-memory.step // ranks))
    steps = window + 1 if window else train.stop
    lengths = [steps] if sample_parallel else _lengths(steps, memory, config, ranks)
    left = config.room_mb * 10**6 - memory.peak([1] if sample_parallel else lengths)
    return PassPlan(timeline.costs, nodes, ranks, window, lengths, memory, max(0, left), sample_parallel)


def _lengths(steps: int, memory: MemoryEstimate, config: SnapshotsConfig, ranks: int) -> list[int]:
    """The number of steps of each segment of a pass."""
    if ranks > steps:
        what = f"snapshots.window is {config.window}" if config.window else f"{steps} steps are trained on"
        raise ValueError(f"{ranks} ranks, but {what}, and ranks share steps; give at most {steps}")
    if config.blocks:
        return even_lengths(steps, min(config.blocks, steps // ranks))
    lengths = plan_segments(steps, memory, budget=config.room_mb * 10**6 // 2)
    return lengths if min(lengths) >= ranks else even_lengths(steps, min(len(lengths), steps // ranks))
