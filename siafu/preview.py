"""Check before a run is written that its model can be trained on its graph, and describe both in one line.

The task is built here on the whole graph, for the description and for warnings; ranks build theirs on their parts.
"""

from typing import Any

from torch import nn

from siafu.comm import single_rank_comm
from siafu.config import Config
from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.load_graph import AnyGraph
from siafu.methods import METHODS
from siafu.methods.snapshots.config import task_config_of
from siafu.methods.snapshots.labels import TemporalLabelTask
from siafu.methods.snapshots.task import TemporalTask
from siafu.nn.link import get_link_head
from siafu.results.format import fmt_metric
from siafu.training.classes import imbalance
from siafu.training.link.scores import check_all_pairs
from siafu.training.link.split import split_edges
from siafu.training.link.task import build_link_task
from siafu.training.task import SPLITS, Task, task_of

AnyTask = Task | TemporalTask
_OUTPUTS = {"class": "classes", "labels": "labels", "regression": "targets"}


def preview_task(graph: AnyGraph, config: Config, module: nn.Module | None) -> AnyTask:
    """Build the task of a run on the whole graph; a graph, task and model that do not fit together are refused."""
    _check_ensemble(graph, config, module)
    if isinstance(graph, DynamicGraph):
        _refuse_smoothing(config, f"{graph.name} changes over time")
        if module is not None:
            raise ValueError("method snapshots trains siafu's own models over time, not a module of your own")
        from siafu.methods.snapshots.build import build_task

        return build_task(graph, task_config_of(config), single_rank_comm())
    if config.task != "node":
        return _preview_link_task(graph, config, module)
    task = task_of(graph, config.train)
    if task.kind == "regression":
        _refuse_smoothing(config, "the labels are numbers")
    if module is None:  # refuses what no model can be built of
        METHODS[config.method].build_model(
            config, in_features=_width(graph), out_features=task.num_outputs, num_nodes=1
        )
    return task


def _check_ensemble(graph: AnyGraph, config: Config, module: nn.Module | None) -> None:
    """Refuse an ensemble where there are no outputs of nodes to average, or where members would start alike."""
    if config.train.ensemble == 1:
        return
    reason = ""
    if isinstance(graph, DynamicGraph):
        reason = f"{graph.name} changes over time, and outputs are averaged on static graphs alone"
    elif config.task != "node":
        reason = f"the outputs of task {config.task} are embeddings, which differ between members and have no average"
    elif module is not None:
        reason = "a module of your own starts from the weights it has, whatever the seed"
    if reason:
        raise ValueError(
            f"train.ensemble is {config.train.ensemble}, but {reason}; set it to 1 (seeds trains several runs)"
        )


def _refuse_smoothing(config: Config, reason: str) -> None:
    if config.correct_and_smooth.enabled:
        raise ValueError(
            f"correct_and_smooth.enabled is true, but {reason}, and it smooths classes of nodes on static graphs; set "
            "it to false"
        )


def _preview_link_task(graph: Graph, config: Config, module: nn.Module | None) -> Task:
    _check_link(config, module)
    _refuse_smoothing(config, "task link learns pairs of nodes")
    split = split_edges(graph, shares=config.link.split, fold=config.data.fold)
    model = METHODS[config.method].build_model(
        config, in_features=_width(graph), out_features=config.model.hidden, num_nodes=1
    )
    how: dict[str, Any] = {
        "config": config.train,
        "link": config.link,
        "seed": config.seed,
        "fold": config.data.fold,
    }
    task = build_link_task(graph, split, get_link_head(model), **how)
    if config.link.evaluation == "all":
        check_all_pairs(graph.num_nodes, most=config.link.most_pairs)
    return task


def _check_link(config: Config, module: nn.Module | None) -> None:
    """Refuse what cannot learn pairs of nodes."""
    if config.task == "edge":
        raise ValueError(
            "task edge tells classes of events apart, so it needs a graph that changes over time"
        )
    if module is not None:
        raise ValueError("task link trains siafu's own models; a module of your own trains with task node")
    if "link" not in METHODS[config.method].tasks:
        raise ValueError(f"method {config.method} learns nodes; use method full or sampled with task link")
    if config.ranks > 1:
        raise ValueError(
            f"ranks is {config.ranks}, but task link on a graph that does not change trains on one; use --ranks 1"
        )


def describe(graph: AnyGraph, config: Config, task: AnyTask) -> str:
    """Describe the graph and the task of a run in one line."""
    if isinstance(graph, DynamicGraph):
        assert isinstance(task, TemporalTask)
        return _describe_dynamic(graph, config, task)
    assert isinstance(task, Task)
    width = _width(graph)
    features = f"{width:,} features" if width else "no features (a row is learned for each node)"
    size = f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {features}"
    train, val, test = (task.count[split] for split in SPLITS)
    if config.task == "link":
        return (
            f"{size}; of pairs {train:,} train, {val:,} validate, {test:,} test, "
            f"ranked among {config.link.protocol}"
        )
    return (
        f"{size}, {task.num_outputs} {_OUTPUTS[task.kind]}; "
        f"{train:,} nodes train, {val:,} validate, {test:,} test{_describe_rare(task)}"
    )


def _describe_dynamic(graph: DynamicGraph, config: Config, task: TemporalTask) -> str:
    train, val, test = (len(task.samples[split]) for split in SPLITS)
    features = f"{graph.num_features:,} features" if graph.num_features else "degrees as features"
    size = f"{graph.num_nodes:,} nodes, {graph.num_events:,} events in {graph.num_steps:,} steps"
    return (
        f"{graph.name}: {size}, {features}; task {config.task}; "
        f"an edge lives for {config.snapshots.edge_life} steps; "
        f"{train:,} steps train, {val:,} validate, {test:,} test"
        f"{_describe_rare(task) if isinstance(task, TemporalLabelTask) else ''}"
    )


def _describe_rare(task: Task | TemporalLabelTask) -> str:
    """Name the rarer of two classes if it is rare, and the metric."""
    found = imbalance(task.train_count)
    if found is None or not found.is_rare:
        return ""
    share = f"{100 * found.share:.2g} % of the training labels are class {task.labels.name(found.rare)}"
    return f"; {share}; scored by {fmt_metric(task.metric)}"


def _width(graph: Graph) -> int:
    return 0 if graph.x is None else graph.x.shape[1]
