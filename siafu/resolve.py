"""What settings mean for the graph at hand, and what a person is told of both before a run begins."""

from pathlib import Path
from typing import Any

from torch import nn

from siafu.comm import single_rank_comm
from siafu.config import Config, build
from siafu.convert import as_graph
from siafu.data.loading import is_store
from siafu.dynamic import DynamicGraph
from siafu.event_log import Progress
from siafu.graph import Graph
from siafu.inference.trained_run import AnyGraph, load, model_of
from siafu.machine import usable_memory_bytes
from siafu.methods import METHODS
from siafu.methods.snapshots.build import build_task
from siafu.methods.snapshots.config import task_config_of
from siafu.nn.config import TEMPORAL
from siafu.nn.link import get_link_head
from siafu.partition.assign import resolve
from siafu.training import inputs
from siafu.training.link.scores import check_all_pairs
from siafu.training.link.split import split_edges
from siafu.training.link.task import build_link_task
from siafu.training.task import SPLITS, task_of


def settle(graph: AnyGraph | str | Path, tree: Config, progress: Progress) -> tuple[AnyGraph, Config]:
    """The graph, and the settings with all that depends on it."""
    source = ""
    if not isinstance(graph, str | Path):
        graph = as_graph(graph, fold=tree.data.fold)
    else:
        source, path = str(graph), Path(graph).expanduser()
        graph = load(graph, fold=tree.data.fold, step=tree.snapshots.step, progress=progress)
        if path.is_file() or is_store(path):
            source = str(path.absolute())  # so that the run can be resumed from elsewhere
    known = {"source": source, "fingerprint": fingerprint(graph), "class_names": graph.class_names or ()}
    if isinstance(graph, DynamicGraph):
        return graph, _as_it_changes(tree, graph).model_copy(update=known)
    if METHODS[tree.method].over_time:
        raise ValueError(
            f"{graph.name}: method snapshots trains on graphs that change over time, and this one does not; use method "
            "full, or import events with a time each (siafu import --events)"
        )
    return graph, tree.model_copy(
        update={
            "data": inputs.resolve(tree.data, graph, memory_bytes=_memory_bytes(tree), ranks=tree.ranks),
            "partition": resolve(tree.partition, graph, parts=tree.ranks),
            **known,
        }
    )


def fingerprint(graph: AnyGraph) -> str:
    """A checksum of everything a run reads of a graph."""
    return graph.fingerprint if isinstance(graph, DynamicGraph) else inputs.fingerprint(graph)


def about(graph: AnyGraph, tree: Config, custom: nn.Module | None) -> str:
    """What is trained on, for a person to read; refuses what cannot be."""
    if isinstance(graph, DynamicGraph):
        return _about_changing(graph, tree, custom)
    if tree.task != "node":
        return _about_pairs(graph, tree, custom)
    task, outputs = (
        task_of(graph, tree.train),
        {"class": "classes", "labels": "labels", "regression": "targets"},
    )
    width = 0 if graph.x is None else graph.x.shape[1]
    if custom is None:  # whether such a model can be made at all
        model_of(tree, in_features=width, out_features=task.num_outputs, num_nodes=1)
    train, val, test = (task.count[split] for split in SPLITS)
    features = f"{width:,} features" if width else "no features (a row is learned for each node)"
    return (
        f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {features}, "
        f"{task.num_outputs} {outputs[task.kind]}; {train:,} nodes train, {val:,} validate, {test:,} test"
    )


def _about_pairs(graph: Graph, tree: Config, custom: nn.Module | None) -> str:
    """The same of tasks on pairs."""
    _check_pairs(tree, custom)
    split = split_edges(graph, shares=tree.link.split, fold=tree.data.fold)
    width = 0 if graph.x is None else graph.x.shape[1]
    model = model_of(tree, in_features=width, out_features=tree.model.hidden, num_nodes=1)
    how: dict[str, Any] = {"config": tree.train, "link": tree.link, "seed": tree.seed, "fold": tree.data.fold}
    task = build_link_task(graph, split, get_link_head(model), **how)
    if tree.link.evaluation == "all":
        check_all_pairs(graph.num_nodes, most=tree.link.most_pairs)
    train, val, test = (task.count[name] for name in SPLITS)
    features = f"{width:,} features" if width else "no features (a row is learned for each node)"
    return (
        f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {features}; of pairs {train:,} train, "
        f"{val:,} validate, {test:,} test, ranked among {tree.link.protocol}"
    )


def _check_pairs(tree: Config, custom: nn.Module | None) -> None:
    """Refuse what cannot learn pairs."""
    if tree.task == "edge":
        raise ValueError(
            "task edge tells classes of events apart, so it needs a graph that changes over time"
        )
    if custom is not None:
        raise ValueError("task link trains siafu's own models; a module of your own trains with task node")
    if "link" not in METHODS[tree.method].tasks:
        raise ValueError(f"method {tree.method} learns nodes; use method full or sampled with task link")
    if tree.ranks > 1:
        raise ValueError(
            f"ranks is {tree.ranks}, but task link on a graph that does not change trains on one; use --ranks 1"
        )


def _as_it_changes(tree: Config, graph: DynamicGraph) -> Config:
    """The settings for a graph that changes over time: what is not given is as its protocol says."""
    given = tree.model_dump(exclude_unset=True)
    if given.get("method", "snapshots") != "snapshots":
        raise ValueError(
            f"{graph.name}: changes over time, which method {tree.method} does not know of; use method snapshots"
        )
    protocol = graph.protocol
    usual = {
        "method": "snapshots",
        "task": _usual_task(graph),
        "snapshots": {
            "step": protocol.step,
            "edge_life": protocol.edge_life,
            "window": protocol.window,
        },
        "link": {"negatives": protocol.negatives},
    }
    found = build(METHODS["snapshots"].defaults, usual, given)
    if found.model.kind not in TEMPORAL:
        raise ValueError(
            f"model.kind is {found.model.kind}, which knows no time; {graph.name} changes over time: choose one of "
            f"{', '.join(TEMPORAL)}"
        )
    return found


def _usual_task(graph: DynamicGraph) -> str:
    """The task that the protocol names, else the one that the graph has labels for."""
    task = graph.protocol.task or ("link" if graph.y is None else "node")
    return "node" if task == "regression" else task


def _about_changing(graph: DynamicGraph, tree: Config, custom: nn.Module | None) -> str:
    if custom is not None:
        raise ValueError("method snapshots trains siafu's own models over time, not a module of your own")
    task = build_task(graph, task_config_of(tree), single_rank_comm())
    train, val, test = (len(task.samples[split]) for split in SPLITS)
    features = f"{graph.num_features:,} features" if graph.num_features else "degrees as features"
    size = f"{graph.num_nodes:,} nodes, {graph.num_events:,} events in {graph.num_steps:,} steps"
    return (
        f"{graph.name}: {size}, {features}; task {tree.task}; an edge lives for {tree.snapshots.edge_life} steps; "
        f"{train:,} steps train, {val:,} validate, {test:,} test"
    )


def _memory_bytes(tree: Config) -> int | None:
    """The memory that inputs should fit into; None for models that can't do without them there."""
    return usable_memory_bytes() if METHODS[tree.method].streams_inputs(tree) else None
