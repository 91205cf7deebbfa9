"""Build the parts of a run on snapshots: timeline, task and model."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.labels import TemporalEdgeTask, TemporalNodeTask, num_class_counts
from siafu.methods.snapshots.links import TemporalLinkTask
from siafu.methods.snapshots.task import SPLITS, TemporalTask, is_labelled, split_steps
from siafu.methods.snapshots.timeline import Timeline
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.link import LinkHead
from siafu.nn.temporal import TemporalLayer, TemporalModel, build_temporal
from siafu.sampling.permutation import KeyedPermutation
from siafu.training.classes import (
    Imbalance,
    LabelNames,
    check_loss,
    check_no_classes,
    chosen_metric,
    class_counts,
    class_weight,
    imbalance,
    positive_class,
    threshold_rule,
)
from siafu.training.link.config import LinkConfig
from siafu.training.link.memory import LinkMemory
from siafu.training.link.recency import Recency
from siafu.training.link.scores import check_all_pairs
from siafu.training.scorer import Scorer

_SPLIT_BOUNDS = (0.6, 0.8)  # shares of nodes with static labels at which validation and test begin


class Predictor(nn.Module):
    """A temporal model and a head that reads its outputs."""

    def __init__(self, temporal: TemporalModel, head: LinkHead | Dense) -> None:
        super().__init__()
        self.temporal, self.head = temporal, head

    @property
    def in_features(self) -> int:
        """The width of the inputs."""
        first = self.temporal.layers[0]
        assert isinstance(first, TemporalLayer)
        return first.in_features

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        self.temporal.reset(generator)
        self.head.reset(generator)


def build_predictor(
    model: ModelConfig, link: LinkConfig, *, task: str, in_features: int, out_features: int
) -> Predictor:
    """Build the temporal model of a config, with the head that the task needs."""
    temporal = build_temporal(model, in_features=in_features)
    width = link.width or model.hidden
    head: LinkHead | Dense
    match task:
        case "link":
            head = LinkHead(
                temporal.out_features + link.node_memory_width,
                width,
                kind="dot" if link.head == "dot" else "mlp",
                memory_columns=link.pair_memory_width,
            )
        case "edge":
            head = LinkHead(temporal.out_features, width, classes=out_features)
        case _:
            head = Dense(temporal.out_features, out_features)
    return Predictor(temporal, head)


def build_timeline(graph: DynamicGraph, config: SnapshotsConfig, model: ModelConfig) -> Timeline:
    """Build the timeline that a model reads; TM-GCN replaces the edge life by its band."""
    assert config.edge_life is not None
    return Timeline(
        graph,
        edge_life=config.edge_life,
        band=model.band if model.kind == "tm-gcn" else None,
        weighted=config.weighted,
    )


def split_samples(graph: DynamicGraph, target: TaskConfig) -> dict[str, range]:
    """The steps of each split; static node labels are predicted by the last step alone."""
    if target.task == "node" and graph.y is not None and graph.y.ndim == 1:
        return dict.fromkeys(SPLITS, range(graph.num_steps - 1, graph.num_steps))
    return split_steps(graph, window=target.snapshots.window or 0, ahead=target.task == "link")


def num_recent_steps(target: TaskConfig) -> int:
    """The number of steps before a sample whose events count as recent: for negatives and for the activity of nodes."""
    return max(1, target.snapshots.window or target.snapshots.edge_life or 1)


def num_classes(graph: DynamicGraph, target: TaskConfig) -> int:
    """The number of classes of events or nodes; 0 if the task has none."""
    y = {"edge": graph.edge_y, "node": graph.y}.get(target.task)
    if y is None or y.is_floating_point():
        return 0
    found = int(y.max()) + 1 if y.numel() else 0
    return max(2, found, len(graph.class_names or ()))


def build_task(graph: DynamicGraph, target: TaskConfig, comm: Comm) -> TemporalTask:
    """Build the task of a graph; raises ValueError if the graph does not have what the task needs."""
    samples = split_samples(graph, target)
    common: dict[str, Any] = {"graph": graph, "comm": comm, "seed": target.seed, "samples": samples}
    common["count"] = {split: len(steps) for split, steps in samples.items()}
    match target.task:
        case "link":
            return _link_task(graph, target, common)
        case "edge":
            return _edge_task(graph, target, common)
        case _:
            return _node_task(graph, target, common)


def _link_task(graph: DynamicGraph, target: TaskConfig, common: dict[str, Any]) -> TemporalLinkTask:
    link = target.link
    if link.evaluation == "all":
        num_samples = len(common["samples"]["val"]) + len(common["samples"]["test"])
        check_all_pairs(graph.num_nodes, steps=num_samples, most=link.most_pairs)
    how: dict[str, Any] = {
        "config": link,
        "memory": build_link_memory(graph, target),
        "num_recent_steps": num_recent_steps(target),
    }
    check_no_classes(target.train)
    metric = _metric(target, "map", "mrr")
    return TemporalLinkTask(**common, **how, kind="link", metric=metric, num_outputs=1, num_counts=4)


def build_link_memory(graph: DynamicGraph, target: TaskConfig) -> LinkMemory:
    """Build the memory that the head reads: recency and frequency of contacts of nodes and pairs."""
    link, pairs = target.link, None
    if link.recency:
        step = torch.arange(graph.num_steps).repeat_interleave(graph.step_ptr.diff())
        pairs = Recency.from_events(
            graph.src,
            graph.dst,
            step,
            num_nodes=graph.num_nodes,
            num_steps=graph.num_steps,
            undirected=graph.undirected,
            decays=link.decay,
            count_steps=True,
        )
    return LinkMemory(graph, pairs, link.decay if link.activity else (), num_recent_steps(target))


def _edge_task(graph: DynamicGraph, target: TaskConfig, common: dict[str, Any]) -> TemporalEdgeTask:
    if graph.edge_y is None:
        raise ValueError(
            f"{graph.name}: its events have no classes to learn; give edge_y, or use --task link"
        )
    steps, edge_y = common["samples"]["train"], graph.edge_y
    y_train = (edge_y[graph.events(step, step + 1)] for step in steps)
    common |= _class_settings(graph, target, y_train, common, fits_first="micro_f1")
    return TemporalEdgeTask(**common, kind="edge")


def _node_task(graph: DynamicGraph, target: TaskConfig, common: dict[str, Any]) -> TemporalNodeTask:
    y = graph.y
    if y is None:
        raise ValueError(f"{graph.name}: its nodes have no labels to learn; give y, or use --task link")
    rows = None
    if y.ndim == 1:
        rows = _split_nodes(y)
        common |= {"count": {split: each.numel() for split, each in rows.items()}}
    if y.is_floating_point():
        outputs = 1 if y.ndim == 2 else y.shape[2]
        labels, scorer = LabelNames("regression", outputs), Scorer("regression", outputs)
        check_loss(labels, target.train)
        class_weight(labels, target.train.class_weights, y[:0], common["comm"])
        positive_class(labels, target.train, ())
        threshold_rule(labels, target.train, (), has_val=True, shares_labels=True)
        common |= {"metric": _metric(target, *scorer.names), "scorer": scorer, "labels": labels}
        return TemporalNodeTask(**common, kind="regression", num_outputs=outputs, num_counts=2, rows=rows)
    steps = common["samples"]["train"]
    y_train = (y[step] for step in steps) if rows is None else iter([y[rows["train"]]])
    common |= _class_settings(graph, target, y_train, common, fits_first="accuracy")
    return TemporalNodeTask(**common, kind="class", rows=rows)


def _class_settings(
    graph: DynamicGraph,
    target: TaskConfig,
    y_train: Iterable[Tensor],
    common: dict[str, Any],
    *,
    fits_first: str,
) -> dict[str, Any]:
    """The fields of a task of classes that follow from its training labels. Collective.

    Rank 0 counts, because other ranks may hold only a shard of the log.
    """
    comm, config = common["comm"], target.train
    y = torch.cat(list(y_train)) if comm.rank == 0 else torch.empty(0, dtype=torch.int64)
    y = y[is_labelled(y)]
    labels = LabelNames("class", num_classes(graph, target), graph.class_names)
    train_count = class_counts(labels, y, comm)
    scorer = Scorer("class", labels.number, positive_class(labels, config, train_count), config.at_k)
    fits = (fits_first, *(name for name in scorer.names if name != fits_first))
    return {
        "num_outputs": labels.number,
        "num_counts": num_class_counts(labels.number),
        "metric": _metric(target, *fits, found=imbalance(train_count)),
        "scorer": scorer,
        "labels": labels,
        "gamma": config.gamma,
        "class_weight": class_weight(labels, config.class_weights, y, comm),
        "train_count": train_count,
        "rule": threshold_rule(
            labels, config, train_count, has_val=common["count"]["val"] > 0, shares_labels=True
        ),
    }


def _metric(target: TaskConfig, *fits: str, found: Imbalance | None = None) -> str:
    """The metric that selects the best weights: the first of ``fits``, unless the config asks for another of them."""
    try:
        return chosen_metric(target.train.metric, fits, found, shares_labels=True)
    except ValueError as error:
        raise ValueError(f"task {target.task} over time: {error}") from None


def _split_nodes(y: Tensor) -> dict[str, Tensor]:
    """Split the labelled nodes into three parts, in a fixed pseudo-random order."""
    labelled = (y >= 0).nonzero()[:, 0]
    order = labelled[KeyedPermutation(labelled.numel(), key=0).at(torch.arange(labelled.numel()))]
    first_val, first_test = (int(share * order.numel()) for share in _SPLIT_BOUNDS)
    parts = order[:first_val], order[first_val:first_test], order[first_test:]
    return {split: part.sort().values for split, part in zip(SPLITS, parts, strict=True)}
