"""Warnings about a graph whose scores would mislead: one class, one node, or nothing to test on.

Of a federation the coordinator knows the numbers of nodes, and each site its own classes.
"""

import torch
from torch import Tensor

from siafu.comm import single_rank_comm
from siafu.config import Config
from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.methods.snapshots.build import build_task
from siafu.methods.snapshots.config import task_config_of
from siafu.methods.snapshots.labels import TemporalEdgeTask, TemporalNodeTask
from siafu.training.link.split import split_edges
from siafu.training.task import task_of


def data_warnings(graph: Graph | DynamicGraph, tree: Config) -> tuple[str, ...]:
    """A sentence for each reason why a run on the whole graph learns or shows little; most graphs have none."""
    if isinstance(graph, DynamicGraph):
        return _over_time(graph, tree)
    if tree.task == "link":
        split = split_edges(graph, shares=tree.link.split, fold=tree.data.fold)
        return _untested(graph.name, "pair", split.pairs["test"].shape[1])
    task = task_of(graph, tree.train)
    y_train = task.y[task.rows["train"]] if task.kind == "class" else None
    few = _one(graph.name, "node", task.count["train"], y_train)
    return few + _untested(graph.name, "node with a label", task.count["test"])


def count_warnings(name: str, *, train: int, test: int) -> tuple[str, ...]:
    """The same of sites together, from the numbers of their training and test nodes alone."""
    return _one(name, "node", train, None) + _untested(name, "node", test)


def site_warnings(graph: Graph) -> tuple[str, ...]:
    """The same of the nodes of one site, for its own log: what the other sites hold is not known here."""
    if graph.y is None or graph.train_mask is None or graph.y.dtype != torch.int64:
        return ()
    y_train = graph.y[graph.train_mask]
    only = _only_class(y_train[y_train >= 0])
    if only is None:
        return ()
    return (
        f"{graph.name}: every training label of this site is class {only}; a run learns other classes only if "
        "other sites have labels of them",
    )


def _over_time(graph: DynamicGraph, tree: Config) -> tuple[str, ...]:
    task = build_task(graph, task_config_of(tree), single_rank_comm())
    steps, y_train = task.samples["train"], None
    things, trained = "step", len(steps)
    if isinstance(task, TemporalEdgeTask) and graph.edge_y is not None:
        y_train = graph.edge_y[graph.events(steps.start, steps.stop)]
    elif isinstance(task, TemporalNodeTask) and graph.y is not None:
        things = "step" if task.rows is None else "node with a label"
        labels = graph.y[steps.start : steps.stop] if task.rows is None else graph.y[task.rows["train"]]
        y_train, trained = (labels if task.kind == "class" else None), task.count["train"]
    known = None if y_train is None else y_train[y_train >= 0]
    return _one(graph.name, things.split()[0], trained, known) + _untested(
        graph.name, things, task.count["test"]
    )


def _one(name: str, thing: str, count: int, y_train: Tensor | None) -> tuple[str, ...]:
    """Of a training split with one member or one class."""
    if count == 1:
        return (f"{name}: trains on one {thing} alone; give more training {thing}s",)
    only = None if y_train is None else _only_class(y_train)
    if only is None:
        return ()
    return (
        f"{name}: every training label is class {only}, so no other class is learned; give labels of others",
    )


def _only_class(y: Tensor) -> int | None:
    """The one class that all labels are, or None."""
    classes = y.unique().tolist()
    return classes[0] if len(classes) == 1 else None


def _untested(name: str, thing: str, count: int) -> tuple[str, ...]:
    return () if count else (f"{name}: no {thing} to test on, so there is no test score",)
