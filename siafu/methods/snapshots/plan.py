"""Which passes over time serve which samples, and how ranks share them. Pure arithmetic, the same on every rank."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.time_partition import Cut, cut_blocks, even_lengths
from siafu.methods.snapshots.timeline import Timeline
from siafu.nn.temporal import TemporalModel
from siafu.nn.temporal.evolve import EvolveGcnO
from siafu.nn.temporal.segment_plan import Need, cut_time, estimate_memory


@dataclass(frozen=True, eq=False)
class Plan:
    """How time is passed.

    Attributes:
        costs: what each of some steps costs.
        num_nodes: N.
        ranks: those who share the steps of a block.
        window: steps before its own that a sample sees; 0: all there are, and one pass serves all samples.
        lengths: how many steps each block of a pass has.
        need: what a rank needs for a step of a block, and for a state between blocks.
        keep_bytes: what of the room that is left may hold graphs and their aggregated inputs.
        last_alone: whether a sample needs no other step than its own: it sees a window, and weights evolve by
            themselves. A pass is one rank's alone then.
    """

    costs: Callable[[range], list[float]]
    num_nodes: int
    ranks: int
    window: int
    lengths: list[int]
    need: Need
    keep_bytes: int
    last_alone: bool

    def passes(self, samples: Sequence[int]) -> Iterator[tuple[list[Cut], frozenset[int]]]:
        """The passes over time that serve some samples, and the samples of each."""
        if not self.window:
            yield self.cuts(0, max(samples) + 1), frozenset(samples)
            return
        for sample in samples:
            yield self.cuts(sample - self.window, sample + 1), frozenset([sample])

    def cuts(self, start: int, stop: int) -> list[Cut]:
        """Blocks of the steps from ``start`` to before ``stop``: those that are trained on, and more like them.

        No block has fewer steps than there are ranks.
        """
        lengths = list(self.lengths)
        more = stop - start - sum(lengths)
        if more >= self.ranks:
            lengths += even_lengths(more, max(1, more // max(*lengths, self.ranks)))
        else:
            lengths[-1] += more
        costs = self.costs(range(start, stop))
        return cut_blocks(costs, lengths, ranks=self.ranks, num_nodes=self.num_nodes, start=start)


def plan_passes(
    model: TemporalModel, timeline: Timeline, config: SnapshotsConfig, *, train: range, ranks: int
) -> Plan:
    """The plan of a run that learns from the samples ``train``: as many blocks as were asked for, or as few as fit."""
    window, nodes = config.window or 0, timeline.graph.num_nodes
    last_alone = window > 0 and all(type(layer) is EvolveGcnO for layer in model.layers)
    need = estimate_memory(model, nodes, own_nodes=-(-nodes // ranks))
    need = need._replace(step=-(-need.step // ranks))
    steps = window + 1 if window else train.stop
    lengths = [steps] if last_alone else _lengths(steps, need, config, ranks)
    left = config.room_mb * 10**6 - need.peak([1] if last_alone else lengths)
    return Plan(timeline.costs, nodes, ranks, window, lengths, need, max(0, left), last_alone)


def _lengths(steps: int, need: Need, config: SnapshotsConfig, ranks: int) -> list[int]:
    """How many steps each block of a pass over so many has."""
    if ranks > steps:
        what = f"snapshots.window is {config.window}" if config.window else f"{steps} steps are trained on"
        raise ValueError(f"{ranks} ranks, but {what}, and ranks share steps; give at most {steps}")
    if config.blocks:
        return even_lengths(steps, min(config.blocks, steps // ranks))
    lengths = cut_time(steps, need, budget=config.room_mb * 10**6 // 2)
    return lengths if min(lengths) >= ranks else even_lengths(steps, min(len(lengths), steps // ranks))
