"""Build the parts of a run on snapshots: timeline, task and model."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.labels import TemporalEdgeTask, TemporalNodeTask
from siafu.methods.snapshots.links import TemporalLinkTask
from siafu.methods.snapshots.task import SPLITS, TemporalTask, is_labelled, split_steps
from siafu.methods.snapshots.timeline import Timeline
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.link import LinkHead
from siafu.nn.temporal import TemporalLayer, TemporalModel, build_temporal
from siafu.sampling.permutation import KeyedPermutation
from siafu.training.link.config import LinkConfig
from siafu.training.link.memory import LinkMemory
from siafu.training.link.recency import Recency
from siafu.training.link.scores import check_all_pairs
from siafu.training.task import balanced_weight

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
    if target.class_weights != "none":
        raise ValueError("train.class_weights is for classes; with task link leave it at none")
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
    classes = num_classes(graph, target)
    common |= {"metric": _metric(target, "micro_f1", "macro_f1", "accuracy")}
    if target.class_weights == "balanced":
        steps, edge_y = common["samples"]["train"], graph.edge_y
        events = (edge_y[graph.events(step, step + 1)] for step in steps)
        common |= {"class_weight": _class_weight(events, classes, common["comm"])}
    return TemporalEdgeTask(**common, kind="edge", num_outputs=classes, num_counts=classes**2)


def _node_task(graph: DynamicGraph, target: TaskConfig, common: dict[str, Any]) -> TemporalNodeTask:
    y = graph.y
    if y is None:
        raise ValueError(f"{graph.name}: its nodes have no labels to learn; give y, or use --task link")
    rows = None
    if y.ndim == 1:
        rows = _split_nodes(y)
        common |= {"count": {split: each.numel() for split, each in rows.items()}}
    if y.is_floating_point():
        if target.class_weights != "none":
            raise ValueError(
                "train.class_weights is balanced, but the labels are numbers, not classes; set it to none"
            )
        metric, outputs = _metric(target, "mae"), 1 if y.ndim == 2 else y.shape[2]
        return TemporalNodeTask(
            **common, kind="regression", metric=metric, num_outputs=outputs, num_counts=2, rows=rows
        )
    outputs = num_classes(graph, target)
    common |= {"metric": _metric(target, "accuracy", "macro_f1", "micro_f1")}
    if target.class_weights == "balanced":
        labels = [y[step] for step in common["samples"]["train"]] if rows is None else [y[rows["train"]]]
        common |= {"class_weight": _class_weight(labels, outputs, common["comm"])}
    return TemporalNodeTask(**common, kind="class", num_outputs=outputs, num_counts=outputs**2, rows=rows)


def _metric(target: TaskConfig, *fits: str) -> str:
    """The metric that selects the best weights: the first of ``fits``, unless the config asks for another of them."""
    if target.metric == "auto":
        return fits[0]
    if target.metric not in fits:
        raise ValueError(
            f"train.metric is {target.metric}, which task {target.task} over time does not have here; expected one of "
            f"{', '.join(fits)}"
        )
    return target.metric


def _class_weight(labels: Iterable[Tensor], classes: int, comm: Comm) -> Tensor:
    """The weight of each class, from the labels of all training samples. Collective.

    Rank 0 counts, because other ranks may hold only a shard of the log.
    """
    y = torch.cat(list(labels)) if comm.rank == 0 else torch.empty(0, dtype=torch.int64)
    return balanced_weight("class", y[is_labelled(y)], classes, comm)


def _split_nodes(y: Tensor) -> dict[str, Tensor]:
    """Split the labelled nodes into three parts, in a fixed pseudo-random order."""
    labelled = (y >= 0).nonzero()[:, 0]
    order = labelled[KeyedPermutation(labelled.numel(), key=0).at(torch.arange(labelled.numel()))]
    first_val, first_test = (int(share * order.numel()) for share in _SPLIT_BOUNDS)
    parts = order[:first_val], order[first_val:first_test], order[first_test:]
    return {split: part.sort().values for split, part in zip(SPLITS, parts, strict=True)}
