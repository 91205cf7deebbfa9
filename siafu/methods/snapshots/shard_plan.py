"""The shard plan: the steps of a dynamic graph that each rank reads, known from the plan before training."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.build import build_timeline, num_classes, num_recent_steps, split_samples
from siafu.methods.snapshots.config import TaskConfig
from siafu.methods.snapshots.plan import PassPlan, plan_passes
from siafu.nn.config import ModelConfig
from siafu.nn.temporal import TemporalModel, build_temporal
from siafu.nn.temporal.recurrent import Recurrent
from siafu.partition.log_shard import LogShard

_Steps = set[int]


def plan_shards(graph: DynamicGraph, model: ModelConfig, target: TaskConfig, *, ranks: int) -> list[LogShard]:
    """Plan what each rank reads of a graph in all passes of a run.

    A rank reads the events that live in its own steps. For a sample that predicts links it also reads the events of the
    next step, those of recent steps (activity of nodes), and with a memory of pairs all earlier events. Event classes
    are learned in the order of the log, so events are then sent as they were given.
    """
    timeline, samples = build_timeline(graph, target.snapshots, model), split_samples(graph, target)
    temporal = build_temporal(model, in_features=timeline.in_features)
    plan = plan_passes(temporal, timeline, target.snapshots, train=samples["train"], ranks=ranks)
    groups = list(_sample_groups(samples, live=target.task == "link" and target.link.live > 0))
    by_step = graph.y is not None and graph.y.ndim > 1
    classes, shares = num_classes(graph, target), []
    for rank in range(ranks):
        own_steps, own_samples = _owned_steps(plan, groups, rank)
        lives = chain(*(range(step + 1 - timeline.life, step + 1) for step in own_steps))
        steps = {
            step for step in chain(lives, _link_steps(target, own_samples)) if 0 <= step < graph.num_steps
        }
        shares.append(
            LogShard(
                tuple(sorted(steps)),
                _feature_steps(graph, temporal, own_steps, ranks),
                tuple(sorted(own_samples)) if by_step else None,
                weighted=target.snapshots.weighted,
                as_given=target.task == "edge",
                classes=classes,
            )
        )
    return shares


def _sample_groups(samples: Mapping[str, Sequence[int]], *, live: bool) -> Iterator[list[int]]:
    """The groups of samples that share passes: training, validation, final evaluation, and each live update."""
    train, val, test = (list(samples[split]) for split in ("train", "val", "test"))
    yield from (each for each in (train, val, val + test) if each)
    for sample in val + test if live else ():  # fine-tuned on the sample before, then scored
        yield from ([sample - 1], [sample])


def _owned_steps(plan: PassPlan, groups: list[list[int]], rank: int) -> tuple[_Steps, _Steps]:
    """The steps that a rank owns in any pass, and those of them that are samples of that pass."""
    if plan.sample_parallel:  # the owner of a sample depends on the order that an epoch draws
        steps = set(chain(*groups))
        return steps, steps
    own_steps: _Steps = set()
    own_samples: _Steps = set()
    for group in groups:
        for segments, samples in plan.passes(group):
            steps = set(chain(*(segment.steps_of(rank) for segment in segments)))
            own_steps |= steps
            own_samples |= steps & samples
    return own_steps, own_samples


def _link_steps(target: TaskConfig, own_samples: _Steps) -> Iterator[int]:
    """The further steps whose events a rank reads to predict links."""
    if target.task != "link" or not own_samples:
        return
    for step in own_samples:
        yield step + 1
        if target.link.sampling != "uniform" or target.link.activity:
            yield from range(step + 1 - num_recent_steps(target), step + 1)
    if target.link.recency:
        yield from range(max(own_samples) + 1)


def _feature_steps(
    graph: DynamicGraph, model: TemporalModel, own_steps: _Steps, ranks: int
) -> tuple[int, ...] | None:
    """The steps whose features a rank reads; None (all) if the recurrence of the first layer reads inputs too."""
    if graph.x is None or graph.x.ndim == 2:
        return None
    first = model.layers[0]
    by_nodes = isinstance(first, Recurrent) and first.reads_inputs and ranks > 1
    return None if by_nodes else tuple(sorted(own_steps))
