"""What is to be learned: one class a node, many labels a node, or numbers; its loss and its scores."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from siafu.graph import Graph
from siafu.training import metrics
from siafu.training.config import Metric, TrainConfig

SPLITS = ("train", "val", "test")
_PLAUSIBLE_CLASSES = 1000  # even of a graph with fewer nodes
METRICS = {
    "class": ("accuracy", "macro_f1", "micro_f1", "roc_auc"),
    "labels": ("micro_f1", "macro_f1", "roc_auc"),
    "regression": ("mae",),
}


@dataclass(frozen=True)
class Task:
    """A node task.

    Attributes:
        kind: one class a node, many labels a node, or regression.
        num_outputs: C, the width of the model's output.
        metric: the score that selects the best weights and is called ``score``.
        rows: the labelled rows of each split, int64.
        y: (N,) int64, or (N, C) float32; in regression NaN where there is no target.
        class_weight: (C,) float32, or None.
    """

    kind: Literal["class", "labels", "regression"]
    num_outputs: int
    metric: str
    rows: dict[str, Tensor]
    y: Tensor
    class_weight: Tensor | None = None

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self.metric != "mae"

    def loss(self, out: Tensor, split: str = "train") -> Tensor:
        """Mean loss over the labelled rows of a split."""
        rows = self.rows[split]
        out, y = out.index_select(0, rows), self.y[rows]
        match self.kind:
            case "class":
                return functional.cross_entropy(out, y, weight=self.class_weight)
            case "labels":
                loss = functional.binary_cross_entropy_with_logits(out, y, pos_weight=self.class_weight)
                return (
                    loss * self.num_outputs
                )  # summed over labels, so that many of them don't each count for little
            case "regression":
                known = ~y.isnan()
                return functional.mse_loss(out[known], y[known])

    def scores(self, out: Tensor, split: str) -> dict[str, float | None]:
        """Every metric that fits the task, on the labelled rows of a split; None where it cannot be told."""
        rows = self.rows[split]
        if not rows.numel():
            return dict.fromkeys(METRICS[self.kind])
        out, y = out[rows], self.y[rows]
        match self.kind:
            case "class":
                return metrics.of_classes(out, y)
            case "labels":
                return metrics.of_labels(out, y)
            case "regression":
                mae = float((out - y).abs().nanmean())
                return {"mae": mae if isfinite(mae) else None}

    def score(self, out: Tensor, split: str) -> float | None:
        """The chosen metric alone."""
        rows = self.rows[split]
        if self.kind == "class" and self.metric == "accuracy" and rows.numel():
            return float((out[rows].argmax(1) == self.y[rows]).double().mean())
        return self.scores(out, split).get(self.metric)


def task_of(graph: Graph, config: TrainConfig) -> Task:
    """The task that a graph's labels pose; refuses a graph that poses none."""
    if graph.y is None:
        raise ValueError(f"{graph.name}: no labels to train on; give y (in Python) or --labels (on import)")
    y = graph.y
    kind: Literal["class", "labels", "regression"]
    if y.dtype == torch.int64:
        kind, labelled = "class", y >= 0
    elif y.is_floating_point():
        y = y[:, None] if y.ndim == 1 else y
        _refuse(y.isinf(), y, f"{graph.name}: y", "a number, or NaN for none")
        kind, labelled = "regression", ~y.isnan().all(1)
    else:
        _refuse(y > 1, y, f"{graph.name}: y", "0 or 1 for each label")
        kind, labelled, y = "labels", torch.ones(y.shape[0], dtype=torch.bool), y.float()
    rows = {split: _rows(graph, split, labelled) for split in SPLITS}
    if not rows["train"].numel():
        raise ValueError(
            f"{graph.name}: no training node has a label; give train_mask (in Python) or --split (on import)"
        )
    num_outputs = _num_classes(graph, y) if kind == "class" else y.shape[1]
    weight = (
        _class_weight(kind, y, rows["train"], num_outputs) if config.class_weights == "balanced" else None
    )
    return Task(kind, num_outputs, _metric(kind, config.metric), rows, y, weight)


def _refuse(bad: Tensor, y: Tensor, what: str, expected: str) -> None:
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(f"{what}[{row}, {column}] is {y[row, column].item()}; expected {expected}")


def _num_classes(graph: Graph, y: Tensor) -> int:
    found, row, names = int(y.max()) + 1, int(y.argmax()), graph.class_names
    if names is not None and found > len(names):
        raise ValueError(
            f"{graph.name}: y[{row}] is {found - 1}, outside of the {len(names)} classes; expected 0 to "
            f"{len(names) - 1}, or -1 for none"
        )
    if found > max(graph.num_nodes, _PLAUSIBLE_CLASSES):
        raise ValueError(
            f"{graph.name}: y[{row}] is {found - 1}, more than there are nodes; number the classes from 0"
        )
    return max(found, 2) if names is None else len(names)


def _rows(graph: Graph, split: str, labelled: Tensor) -> Tensor:
    mask: Tensor | None = getattr(graph, f"{split}_mask")
    return (mask & labelled).nonzero()[:, 0] if mask is not None else torch.empty(0, dtype=torch.int64)


def _class_weight(kind: str, y: Tensor, rows: Tensor, num_classes: int) -> Tensor:
    match kind:
        case "class":
            count = torch.bincount(y[rows], minlength=num_classes).float()
            return rows.numel() / (num_classes * count.clamp(min=1))
        case "labels":
            positive = y[rows].sum(0)
            return (rows.numel() - positive) / positive.clamp(min=1)
    raise ValueError(
        "train.class_weights is balanced, but the labels are numbers, not classes; set it to none"
    )


def _metric(kind: str, asked: Metric) -> str:
    fits = METRICS[kind]
    if asked == "auto":
        return fits[0]
    if asked not in fits:
        raise ValueError(
            f"train.metric is {asked}, which does not fit these labels; expected one of {', '.join(fits)}"
        )
    return asked
