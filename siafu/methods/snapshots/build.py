"""What a run on snapshots is made of: its timeline, its task, its model."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.links import LinkTask
from siafu.methods.snapshots.task import SPLITS, TemporalTask, known, split_steps
from siafu.methods.snapshots.timeline import Timeline
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.link import LinkHead
from siafu.nn.temporal import TemporalLayer, TemporalModel, build_temporal
from siafu.sampling.permutation import KeyedPermutation
from siafu.training.link.config import LinkConfig
from siafu.training.link.memory import Memory
from siafu.training.link.recency import Recency
from siafu.training.link.scores import check_all_pairs
from siafu.training.task import balanced_weight

_SHARES = (0.6, 0.8)  # of nodes whose labels hold for all time: where validation and test begin


class Predictor(nn.Module):
    """A model over time, and a head that reads its rows."""

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
    """The model over time of a configuration, with the head that the task needs."""
    temporal = build_temporal(model, in_features=in_features)
    width = link.width or model.hidden
    head: LinkHead | Dense
    match task:
        case "link":
            head = LinkHead(
                temporal.out_features + link.known_of_nodes,
                width,
                kind="dot" if link.head == "dot" else "mlp",
                recencies=link.known_of_pairs,
            )
        case "edge":
            head = LinkHead(temporal.out_features, width, classes=out_features)
        case _:
            head = Dense(temporal.out_features, out_features)
    return Predictor(temporal, head)


def build_timeline(graph: DynamicGraph, config: SnapshotsConfig, model: ModelConfig) -> Timeline:
    """The steps of a graph as a model reads them; tm-gcn averages them itself."""
    assert config.edge_life is not None
    return Timeline(
        graph,
        edge_life=config.edge_life,
        band=model.band if model.kind == "tm-gcn" else None,
        weighted=config.weighted,
    )


def samples_of(graph: DynamicGraph, wanted: Wanted) -> dict[str, range]:
    """The steps of each split; labels that hold for all time are predicted by the last."""
    if wanted.task == "node" and graph.y is not None and graph.y.ndim == 1:
        return dict.fromkeys(SPLITS, range(graph.num_steps - 1, graph.num_steps))
    return split_steps(graph, window=wanted.snapshots.window or 0, ahead=wanted.task == "link")


def lately_of(wanted: Wanted) -> int:
    """Of how many steps the ends of events count where negatives are drawn among them."""
    return max(1, wanted.snapshots.window or wanted.snapshots.edge_life or 1)


def num_classes(graph: DynamicGraph, wanted: Wanted) -> int:
    """How many classes there are to learn, of events or of nodes; 0 where something else is learned."""
    y = {"edge": graph.edge_y, "node": graph.y}.get(wanted.task)
    if y is None or y.is_floating_point():
        return 0
    found = int(y.max()) + 1 if y.numel() else 0
    return max(2, found, len(graph.class_names or ()))


def build_task(graph: DynamicGraph, wanted: Wanted, comm: Comm) -> TemporalTask:
    """The task that a graph poses; refuses one that it does not."""
    samples = samples_of(graph, wanted)
    common: dict[str, Any] = {"graph": graph, "comm": comm, "seed": wanted.seed, "samples": samples}
    common["count"] = {split: len(steps) for split, steps in samples.items()}
    match wanted.task:
        case "link":
            return _link_task(graph, wanted, common)
        case "edge":
            return _edge_task(graph, wanted, common)
        case _:
            return _node_task(graph, wanted, common)


def _link_task(graph: DynamicGraph, wanted: Wanted, common: dict[str, Any]) -> LinkTask:
    link = wanted.link
    if link.evaluation == "all":
        judged = len(common["samples"]["val"]) + len(common["samples"]["test"])
        check_all_pairs(graph.num_nodes, steps=judged, most=link.most_pairs)
    how: dict[str, Any] = {
        "config": link,
        "memory": build_link_memory(graph, wanted),
        "lately": lately_of(wanted),
    }
    if wanted.class_weights != "none":
        raise ValueError("train.class_weights is for classes; with task link leave it at none")
    metric = _metric(wanted, "map", "mrr")
    return LinkTask(**common, **how, kind="link", metric=metric, num_outputs=1, num_counts=4)


def build_link_memory(graph: DynamicGraph, wanted: Wanted) -> Memory:
    """What the head reads of how lately and how often nodes and pairs met."""
    link, pairs = wanted.link, None
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
            steps_too=True,
        )
    return Memory(graph, pairs, link.decay if link.activity else (), lately_of(wanted))


def _edge_task(graph: DynamicGraph, wanted: Wanted, common: dict[str, Any]) -> EdgeTask:
    if graph.edge_y is None:
        raise ValueError(
            f"{graph.name}: its events have no classes to learn; give edge_y, or use --task link"
        )
    classes = num_classes(graph, wanted)
    common |= {"metric": _metric(wanted, "micro_f1", "macro_f1", "accuracy")}
    if wanted.class_weights == "balanced":
        steps, edge_y = common["samples"]["train"], graph.edge_y
        events = (edge_y[graph.events(step, step + 1)] for step in steps)
        common |= {"class_weight": _class_weight(events, classes, common["comm"])}
    return EdgeTask(**common, kind="edge", num_outputs=classes, num_counts=classes**2)


def _node_task(graph: DynamicGraph, wanted: Wanted, common: dict[str, Any]) -> NodeTask:
    y = graph.y
    if y is None:
        raise ValueError(f"{graph.name}: its nodes have no labels to learn; give y, or use --task link")
    rows = None
    if y.ndim == 1:
        rows = _split_nodes(y)
        common |= {"count": {split: each.numel() for split, each in rows.items()}}
    if y.is_floating_point():
        if wanted.class_weights != "none":
            raise ValueError(
                "train.class_weights is balanced, but the labels are numbers, not classes; set it to none"
            )
        metric, outputs = _metric(wanted, "mae"), 1 if y.ndim == 2 else y.shape[2]
        return NodeTask(
            **common, kind="regression", metric=metric, num_outputs=outputs, num_counts=2, rows=rows
        )
    outputs = num_classes(graph, wanted)
    common |= {"metric": _metric(wanted, "accuracy", "macro_f1", "micro_f1")}
    if wanted.class_weights == "balanced":
        labels = [y[step] for step in common["samples"]["train"]] if rows is None else [y[rows["train"]]]
        common |= {"class_weight": _class_weight(labels, outputs, common["comm"])}
    return NodeTask(**common, kind="class", num_outputs=outputs, num_counts=outputs**2, rows=rows)


def _metric(wanted: Wanted, *fits: str) -> str:
    """The score that selects the best weights: the first of those that fit, unless a run asks for another."""
    if wanted.metric == "auto":
        return fits[0]
    if wanted.metric not in fits:
        raise ValueError(
            f"train.metric is {wanted.metric}, which task {wanted.task} over time does not have here; expected one of "
            f"{', '.join(fits)}"
        )
    return wanted.metric


def _class_weight(labels: Iterable[Tensor], classes: int, comm: Comm) -> Tensor:
    """The weight of each class, by the labels of all training samples. Collective.

    Rank 0 counts, since others may hold only a part of the log, and must not read more of it.
    """
    y = torch.cat(list(labels)) if comm.rank == 0 else torch.empty(0, dtype=torch.int64)
    return balanced_weight("class", y[known(y)], classes, comm)


def _split_nodes(y: Tensor) -> dict[str, Tensor]:
    """Labelled nodes in an order of no meaning, always the same, cut in three."""
    labelled = (y >= 0).nonzero()[:, 0]
    order = labelled[KeyedPermutation(labelled.numel(), key=0).at(torch.arange(labelled.numel()))]
    first_val, first_test = (int(share * order.numel()) for share in _SHARES)
    parts = order[:first_val], order[first_val:first_test], order[first_test:]
    return {split: part.sort().values for split, part in zip(SPLITS, parts, strict=True)}
