"""Which steps of a graph that changes over time each rank reads, as its plan says before anything is trained."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.build import build_timeline, lately_of, num_classes, samples_of
from siafu.methods.snapshots.plan import Plan, plan_passes
from siafu.nn.config import ModelConfig
from siafu.nn.temporal import TemporalModel, build_temporal
from siafu.nn.temporal.recurrent import Recurrent
from siafu.partition.log_shard import LogShard

_Steps = set[int]


def plan_shards(graph: DynamicGraph, model: ModelConfig, wanted: Wanted, *, ranks: int) -> list[LogShard]:
    """What each rank reads of a graph in all passes of a run: of its own steps the events that live then.

    Where it has a sample that predicts links, it reads the events of the next step too, those of late, which say
    how busy nodes are, and with a memory of pairs all that were before. Classes of events are learned in the order of
    the log, so that events come as they were given then.
    """
    line, samples = build_timeline(graph, wanted.snapshots, model), samples_of(graph, wanted)
    temporal = build_temporal(model, in_features=line.in_features)
    plan = plan_passes(temporal, line, wanted.snapshots, train=samples["train"], ranks=ranks)
    passed = list(_passed(samples, live=wanted.task == "link" and wanted.link.live > 0))
    by_step = graph.y is not None and graph.y.ndim > 1
    classes, shares = num_classes(graph, wanted), []
    for rank in range(ranks):
        own, mine = _owned(plan, passed, rank)
        lives = chain(*(range(step + 1 - line.life, step + 1) for step in own))
        read = {step for step in chain(lives, _linked(wanted, mine)) if 0 <= step < graph.num_steps}
        shares.append(
            LogShard(
                tuple(sorted(read)),
                _features(graph, temporal, own, ranks),
                tuple(sorted(mine)) if by_step else None,
                weighted=wanted.snapshots.weighted,
                as_given=wanted.task == "edge",
                classes=classes,
            )
        )
    return shares


def _passed(samples: Mapping[str, Sequence[int]], *, live: bool) -> Iterator[list[int]]:
    """The samples that passes are made for together: to learn, to validate, to judge."""
    train, val, test = (list(samples[split]) for split in ("train", "val", "test"))
    yield from (each for each in (train, val, val + test) if each)
    for sample in val + test if live else ():  # each is scored after the one before was learned from
        yield from ([sample - 1], [sample])


def _owned(plan: Plan, passed: list[list[int]], rank: int) -> tuple[_Steps, _Steps]:
    """The steps that a rank owns in any pass, and those of them that are samples of the pass."""
    if plan.last_alone:  # who has which sample depends on the order that an epoch draws
        steps = set(chain(*passed))
        return steps, steps
    own: _Steps = set()
    mine: _Steps = set()
    for samples in passed:
        for cuts, of in plan.passes(samples):
            steps = set(chain(*(cut.steps_of(rank) for cut in cuts)))
            own |= steps
            mine |= steps & of
    return own, mine


def _linked(wanted: Wanted, mine: _Steps) -> Iterator[int]:
    """The steps whose events samples of a rank read where they predict links."""
    if wanted.task != "link" or not mine:
        return
    for step in mine:
        yield step + 1
        if wanted.link.sampling != "uniform" or wanted.link.activity:
            yield from range(step + 1 - lately_of(wanted), step + 1)
    if wanted.link.recency:
        yield from range(max(mine) + 1)


def _features(graph: DynamicGraph, model: TemporalModel, own: _Steps, ranks: int) -> tuple[int, ...] | None:
    """The steps whose features a rank reads; all, where the part along time of the first layer reads them too."""
    if graph.x is None or graph.x.ndim == 2:
        return None
    first = model.layers[0]
    by_nodes = isinstance(first, Recurrent) and first.reads_inputs and ranks > 1
    return None if by_nodes else tuple(sorted(own))
