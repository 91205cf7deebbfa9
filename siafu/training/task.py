"""What is to be learned: one class a node, many labels a node, or numbers; its loss and its scores."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from siafu.comm import Comm, alone
from siafu.graph import Graph
from siafu.nn.loss import sum_of_losses
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
    """A node task, of whose nodes each rank has some.

    Attributes:
        kind: one class a node, many labels a node, or regression; of tasks on pairs, link.
        num_outputs: C, the width of the model's output.
        metric: the score that selects the best weights and is called ``score``.
        rows: the labelled rows of each split here, int64.
        count: the labelled nodes of each split on all ranks.
        weight: what the losses of each split are divided by: the weight of its labels on all ranks.
        y: (D,) int64, or (D, C) float32; in regression NaN where there is no target.
        class_weight: (C,) float32, or None.
        comm: those who share the nodes.
    """

    kind: Literal["class", "labels", "regression", "link"]
    num_outputs: int
    metric: str
    rows: dict[str, Tensor]
    count: dict[str, int]
    weight: dict[str, float]
    y: Tensor
    class_weight: Tensor | None
    comm: Comm

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self.metric != "mae"

    def loss(self, out: Tensor, split: str = "train") -> Tensor:
        """The share of this rank in the mean loss over the labelled rows of a split; the shares add up to it."""
        rows = self.rows[split]
        return self.loss_of(out.index_select(0, rows), rows) / self.weight[split]

    def loss_of(self, out: Tensor, rows: Tensor) -> Tensor:
        """The sum of the losses of some labelled rows: (R, C), (R,) -> ()."""
        assert self.kind != "link"
        return sum_of_losses(self.kind, out, self.y[rows], self.class_weight)

    def weight_of(self, rows: Tensor) -> float:
        """What the losses of some labelled rows are to be divided by for their mean."""
        return _weight(self.kind, self.y[rows], self.class_weight)

    def evaluate(self, out: Tensor) -> tuple[dict[str, float | None], float]:
        """The chosen metric of each split, and the loss on the validation nodes. Collective.

        An output that is not finite anywhere makes the loss so.
        """
        val_loss = self.loss(out, "val") if self.count["val"] else out.new_zeros(())
        loss = val_loss.double() + 0 * out.sum(dtype=torch.float64)
        shares = [self._count(out, split).reshape(-1) for split in SPLITS]
        *counts, total = self.comm.all_reduce(torch.cat([*shares, loss[None]]), label="scores").split(
            [*(share.numel() for share in shares), 1]
        )
        scores = {
            split: self._scores(count, out, split).get(self.metric)
            for split, count in zip(SPLITS, counts, strict=True)
        }
        return scores, float(total)

    def scores(self, out: Tensor, split: str) -> dict[str, float | None]:
        """Every metric that fits the task, on the labelled rows of a split; None where it cannot be told. Collective.

        The area under the ROC curve needs all rows in one place, so on several ranks it is told only where it is the
        chosen metric.
        """
        return self._scores(self.comm.all_reduce(self._count(out, split), label="scores"), out, split)

    def score(self, out: Tensor, split: str) -> float | None:
        """The chosen metric alone. Collective."""
        return self.scores(out, split).get(self.metric)

    def confusion(self, out: Tensor, split: str) -> Tensor:
        """Counts of classes, (C, C) int64: rows true, columns predicted. Collective."""
        rows = self.rows[split]
        matrix = metrics.confusion(out[rows].argmax(1), self.y[rows], self.num_outputs)
        return self.comm.all_reduce(matrix, label="scores")

    def _count(self, out: Tensor, split: str) -> Tensor:
        """What adds up to the scores, float64."""
        assert self.kind != "link"
        rows = self.rows[split]
        out, y = out[rows], self.y[rows]
        match self.kind:
            case "class":
                return metrics.count_classes(out, y)
            case "labels":
                return metrics.count_labels(out, y)
            case "regression":
                off = (out - y).abs()
                return torch.stack([off.nansum(dtype=torch.float64), (~off.isnan()).sum().double()])

    def _scores(self, count: Tensor, out: Tensor, split: str) -> dict[str, float | None]:
        assert self.kind != "link"
        if not self.count[split]:
            return dict.fromkeys(METRICS[self.kind])
        match self.kind:
            case "class":
                return metrics.of_classes(count.view(3, -1)) | {"roc_auc": self._area(out, split)}
            case "labels":
                return metrics.of_labels(count.view(2, -1)) | {"roc_auc": self._area(out, split)}
            case "regression":
                mae = float(count[0] / count[1])
                return {"mae": mae if isfinite(mae) else None}

    def _area(self, out: Tensor, split: str) -> float | None:
        if self.comm.world_size > 1 and self.metric != "roc_auc":
            return None
        rows = self.rows[split]
        out, y = (torch.cat(self.comm.all_gather(values[rows], label="labels")) for values in (out, self.y))
        if self.kind == "class":
            return metrics.roc_auc(out.softmax(1), functional.one_hot(y, self.num_outputs))
        return metrics.roc_auc(out, y.long())


def task_of(graph: Graph, config: TrainConfig, comm: Comm | None = None) -> Task:
    """The task that the labels of a graph, or of each rank's part of one, pose; refuses a graph that poses none.

    Collective.
    """
    comm = alone() if comm is None else comm
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
        kind, labelled, y = "labels", torch.ones(y.shape[0], dtype=torch.bool), y.float()
    rows = {split: _rows(graph, split, labelled) for split in SPLITS}
    here = torch.tensor([rows[split].numel() for split in SPLITS])
    count = dict(zip(SPLITS, comm.all_reduce(here, label="task").tolist(), strict=True))
    if not count["train"]:
        raise ValueError(
            f"{graph.name}: no training node has a label; give train_mask (in Python) or --split (on import)"
        )
    num_outputs = _num_classes(graph, y, comm) if kind == "class" else y.shape[1]
    class_weight = None
    if config.class_weights == "balanced":
        class_weight = _class_weight(kind, y[rows["train"]], num_outputs, comm)
    weight = _weights(kind, y, rows, class_weight, comm)
    metric = _metric(kind, config.metric)
    return Task(kind, num_outputs, metric, rows, count, weight, y, class_weight, comm)


def _weights(
    kind: str, y: Tensor, rows: dict[str, Tensor], class_weight: Tensor | None, comm: Comm
) -> dict[str, float]:
    """What the losses of each split are divided by."""
    here = [_weight(kind, y[rows[split]], class_weight) for split in SPLITS]
    total = comm.all_reduce(torch.tensor(here, dtype=torch.float64), label="task")
    return dict(zip(SPLITS, total.tolist(), strict=True))


def _weight(kind: str, y: Tensor, class_weight: Tensor | None) -> float:
    if kind == "class" and class_weight is not None:
        return float(class_weight[y].sum(dtype=torch.float64))
    return float((~y.isnan()).sum() if kind == "regression" else y.shape[0])


def _refuse(bad: Tensor, y: Tensor, what: str, expected: str) -> None:
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(f"{what}[{row}, {column}] is {y[row, column].item()}; expected {expected}")


def _num_classes(graph: Graph, y: Tensor, comm: Comm) -> int:
    found, names = int(y.max()) + 1 if y.numel() else 0, graph.class_names
    row = int(y.argmax()) if y.numel() else 0
    sizes = comm.all_gather(torch.tensor([found, graph.num_nodes]), label="task")
    if found > max(sum(int(size[1]) for size in sizes), _PLAUSIBLE_CLASSES):
        raise ValueError(
            f"{graph.name}: y[{row}] is {found - 1}, more than there are nodes; number the classes from 0"
        )
    return max(2, *(int(size[0]) for size in sizes)) if names is None else len(names)


def _rows(graph: Graph, split: str, labelled: Tensor) -> Tensor:
    mask: Tensor | None = getattr(graph, f"{split}_mask")
    return (mask & labelled).nonzero()[:, 0] if mask is not None else torch.empty(0, dtype=torch.int64)


def _class_weight(kind: str, y_train: Tensor, num_classes: int, comm: Comm) -> Tensor:
    if kind == "regression":
        raise ValueError(
            "train.class_weights is balanced, but the labels are numbers, not classes; set it to none"
        )
    here = torch.bincount(y_train, minlength=num_classes) if kind == "class" else y_train.sum(0).long()
    *count, rows = comm.all_reduce(torch.cat([here, torch.tensor([y_train.shape[0]])]), label="task")
    each = torch.stack(count).float()
    if kind == "class":
        return rows / (num_classes * each.clamp(min=1))
    return (rows - each) / each.clamp(min=1)


def _metric(kind: str, asked: Metric) -> str:
    fits = METRICS[kind]
    if asked == "auto":
        return fits[0]
    if asked not in fits:
        raise ValueError(
            f"train.metric is {asked}, which does not fit these labels; expected one of {', '.join(fits)}"
        )
    return asked
