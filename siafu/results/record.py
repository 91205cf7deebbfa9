"""The record of a run, as values; :mod:`siafu.results.read` reads them from its folder."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.results.format import LOWER_IS_BETTER

Event = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Epochs:
    """A table of all epochs, with T rows; NaN where a value was not measured.

    Attributes:
        epoch: (T,) int64, ascending.
        time: (T,) float64, seconds since 1970 at the epoch's end.
        loss, lr, seconds, train_score, val_score, test_score, rss_bytes: (T,) float64.
        dollars: (T,) float64, cost of each epoch, over all ranks and workers.
        value: (T,) float64, V = 1 / (seconds x dollars).
    """

    epoch: NDArray[np.int64]
    time: NDArray[np.float64]
    loss: NDArray[np.float64]
    lr: NDArray[np.float64]
    seconds: NDArray[np.float64]
    train_score: NDArray[np.float64]
    val_score: NDArray[np.float64]
    test_score: NDArray[np.float64]
    rss_bytes: NDArray[np.float64]
    dollars: NDArray[np.float64]
    value: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.epoch)


@dataclass(frozen=True, eq=False)
class ConfusionMatrix:
    """The confusion matrix of the test nodes.

    Attributes:
        confusion: (C, C) int64, true classes as rows, predicted classes as columns.
        class_names: the C names of the classes.
    """

    confusion: NDArray[np.int64]
    class_names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The contents of a run's folder.

    Attributes:
        path: the folder.
        config: ``config.toml``.
        events: all events except the tasks of a pipeline, in the order of writing.
        metrics: ``metrics.json``; empty while the run is unfinished.
        epochs: one row per epoch; of an epoch that was trained twice, the later one.
        result: the confusion matrix; None if the task has no classes or the run has not ended.
        notes: remarks on the files, such as a line that was cut off.
        damage: a sentence for each damaged part, which is left out here.
        traced: the number of recorded tasks of a pipeline; :mod:`siafu.results.trace` reads them.
    """

    path: Path
    config: dict[str, Any]
    events: tuple[Event, ...]
    metrics: dict[str, Any]
    epochs: Epochs
    result: ConfusionMatrix | None
    notes: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    traced: int = 0

    @property
    def name(self) -> str:
        """The name of the folder; for one of several seeds or members, with the name of the folder above."""
        path = self.path.resolve()
        return f"{path.parent.name}/{path.name}" if self.is_one_of_several else path.name

    @property
    def is_one_of_several(self) -> bool:
        """Whether this run is one of several seeds, or members of an ensemble, that were trained together."""
        return re.fullmatch(r"(seed|member)-\d+", self.path.resolve().name) is not None

    def last(self, phase: str) -> Event:
        """Return the last event of a phase, or an empty one."""
        return next((event for event in reversed(self.events) if event["phase"] == phase), {})

    @property
    def metric(self) -> str:
        """The name of the metric of the scores."""
        return str(self.metrics.get("metric") or "accuracy")

    @property
    def data_name(self) -> str:
        """The name of the graph, or an empty text."""
        graph = self.last("start").get("graph")
        name = graph.get("name") if isinstance(graph, dict) else graph
        return str(name or "")

    @property
    def model_name(self) -> str:
        """The kind of the model, or "model"."""
        config = flatten(self.config)
        named = self.metrics.get("model") or config.get("model.kind") or config.get("model.name")
        return str(named or "model")

    @cached_property
    def best_epoch(self) -> int | None:
        """The epoch whose weights were selected, else that of the best validation score so far, else None."""
        if isinstance(self.metrics.get("best_epoch"), int):
            return int(self.metrics["best_epoch"])
        score = self.epochs.val_score
        if not np.isfinite(score).any():
            return None
        pick = np.nanargmin if self.metric in LOWER_IS_BETTER else np.nanargmax
        return int(self.epochs.epoch[int(pick(score))])

    @property
    def stopped(self) -> str:
        """The reason why the run stopped, one of those in :mod:`siafu.event_log`; empty if unknown."""
        stop, resume = self.last("stop"), self.last("resume")
        return str(stop.get("reason", "")) if stop.get("time", 0) >= resume.get("time", 0) else ""


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to one, with keys such as ``model.hidden``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
