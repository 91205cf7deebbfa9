"""Warnings about a graph whose scores would mislead: one class, one training node, or nothing to test on.

The coordinator of a federation knows counts of nodes; each site knows its own classes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.load_graph import AnyGraph
from siafu.methods.snapshots.labels import TemporalEdgeTask, TemporalNodeTask
from siafu.methods.snapshots.task import TemporalTask
from siafu.preview import AnyTask
from siafu.results.format import fmt_metric, fmt_score
from siafu.training.scorer import NEED_ALL_ROWS, RANKED
from siafu.training.task import Task


def data_warnings(graph: AnyGraph, task: AnyTask) -> tuple[str, ...]:
    """Return a warning for each reason why a run on this graph learns or shows little; most graphs have none."""
    if isinstance(graph, DynamicGraph):
        assert isinstance(task, TemporalTask)
        return _dynamic_warnings(graph, task)
    assert isinstance(task, Task)
    if task.kind == "link":
        return _warn_untested(graph.name, "pair", task.count["test"])
    y_train = task.y[task.rows["train"]] if task.kind == "class" else None
    few = _warn_narrow(graph.name, "node", task.count["train"], y_train)
    return (
        few
        + _warn_undefined(graph.name, task)
        + _warn_untested(graph.name, "node with a label", task.count["test"])
    )


def count_warnings(name: str, *, train: int, test: int) -> tuple[str, ...]:
    """Return the warnings of a federation, from its counts of training and test nodes."""
    return _warn_narrow(name, "node", train, None) + _warn_untested(name, "node", test)


def site_warnings(graph: Graph) -> tuple[str, ...]:
    """Return the warnings of one site, for its own log; the labels of other sites are not known here."""
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


def score_warnings(metrics: Mapping[str, Any], say: Callable[[str], None]) -> tuple[str, ...]:
    """Say and return a warning if a finished run scores no better than its majority class alone."""
    score, alone, metric = (metrics.get(key) for key in ("test_score", "test_majority_score", "metric"))
    if not metrics["finished"] or score is None or alone is None or score > alone:
        return ()
    rare, share, always = (
        1 - metrics["majority_share"],
        metrics["majority_share"],
        metrics["majority_class"],
    )
    labels = f"{100 * share:.3g} % of the training labels are class {always}"
    if "positive_class" in metrics and metrics["positive_class"] != always and "threshold" in metrics:
        labels = f"{100 * rare:.2g} % of the training labels are class {metrics['positive_class']}"
    guessing = "a random order" if metric in NEED_ALL_ROWS else f"always answering {always}"
    better = "" if metric == "average_precision" else " judge it by train.metric=average_precision, or"
    text = (
        f"{labels}; the test {fmt_metric(str(metric))} of {guessing} is "
        f"{fmt_score(alone, str(metric))}, and the model's is {fmt_score(score, str(metric))}:{better} give rare "
        "classes more weight (train.class_weights), or give other features"
    )
    say(f"warning: {text}")
    return (text,)


def _dynamic_warnings(graph: DynamicGraph, task: TemporalTask) -> tuple[str, ...]:
    steps, y_train = task.samples["train"], None
    things, trained = "step", len(steps)
    if isinstance(task, TemporalEdgeTask) and graph.edge_y is not None:
        y_train = graph.edge_y[graph.events(steps.start, steps.stop)]
    elif isinstance(task, TemporalNodeTask) and graph.y is not None:
        things = "step" if task.rows is None else "node with a label"
        labels = graph.y[steps.start : steps.stop] if task.rows is None else graph.y[task.rows["train"]]
        y_train, trained = (labels if task.kind == "class" else None), task.count["train"]
    labelled = None if y_train is None else y_train[y_train >= 0]
    return _warn_narrow(graph.name, things.split()[0], trained, labelled) + _warn_untested(
        graph.name, things, task.count["test"]
    )


def _warn_narrow(name: str, thing: str, count: int, y_train: Tensor | None) -> tuple[str, ...]:
    """Warn of a training split with one member or one class."""
    if count == 1:
        return (f"{name}: trains on one {thing} alone; give more training {thing}s",)
    only = None if y_train is None else _only_class(y_train)
    if only is None:
        return ()
    return (
        f"{name}: every training label is class {only}, so no other class is learned; give labels of others",
    )


def _only_class(y: Tensor) -> int | None:
    """Return the class of all labels if there is only one, else None."""
    classes = y.unique().tolist()
    return classes[0] if len(classes) == 1 else None


def _warn_undefined(name: str, task: Task) -> tuple[str, ...]:
    """Warn of a metric that the labels of validation or test nodes leave undefined."""
    if task.metric not in RANKED:
        return ()
    effects = {
        "val": ("validation", "their loss selects the best weights"),
        "test": ("test", "there is no test score"),
    }
    return tuple(
        f"{name}: no class has both members and others among the {nodes} nodes, so {task.metric} is undefined there "
        f"and {effect}; choose another train.metric or another split"
        for split, (nodes, effect) in effects.items()
        if task.count[split] and not _has_both(task.y[task.rows[split]])
    )


def _has_both(y: Tensor) -> bool:
    """Return whether any class has both members and others: (R,) classes or (R, C) labels."""
    if y.ndim == 1:
        return _only_class(y) is None
    return bool(((y > 0).any(0) & (y <= 0).any(0)).any())


def _warn_untested(name: str, thing: str, count: int) -> tuple[str, ...]:
    return () if count else (f"{name}: no {thing} to test on, so there is no test score",)
