"""Tasks on nodes: one class a node, many labels a node, or numbers; their losses and scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm, single_rank_comm
from siafu.graph import Graph
from siafu.native.splitmix import splitmix64
from siafu.nn.dropout import mix
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


@dataclass(frozen=True, eq=False)
class SeedBatch:
    """The seeds of one minibatch that a rank owns.

    Attributes:
        rows: (B,) int64, own rows.
        weight: the weight of the labels of all ranks' seeds, by which losses are divided.
    """

    rows: Tensor
    weight: float


@dataclass(frozen=True)
class Task:
    """A node task; each rank has some of the nodes.

    Attributes:
        kind: one class a node, many labels a node, or regression; of tasks on pairs, link.
        num_outputs: C, the width of the model's output.
        metric: the score that selects the best weights and is called ``score``.
        rows: the labelled rows of each split here, int64.
        count: the labelled nodes of each split on all ranks.
        weight: the divisor of the losses of each split: the weight of its labels on all ranks.
        y: (D,) int64, or (D, C) float32; in regression NaN where there is no target.
        class_weight: (C,) float32, or None.
        comm: the ranks that share the nodes.
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
        """True if a larger score is a better one."""
        return self.metric != "mae"

    def loss(self, out: Tensor, split: str = "train") -> Tensor:
        """The share of this rank in the mean loss over the labelled rows of a split; the shares add up to it."""
        rows = self.rows[split]
        return self.loss_of(out.index_select(0, rows), rows) / self.weight[split]

    def training_loss(self, out: Tensor, epoch: int) -> Tensor:
        """The share of this rank in the loss of an epoch over the whole graph: (D, C) -> ()."""
        return self.loss(out)

    def seed_batches(
        self, epoch: int, *, batch_size: int, seed: int, node_id: Tensor | None
    ) -> Sequence["SeedBatch"]:
        """Shuffle the training nodes of all ranks into minibatches; gives this rank's part of each. Collective.

        Nodes stand in the order of a hash of their ids, so it is the same for any number of ranks.
        """
        rows, num_batches = self.rows["train"], -(-self.count["train"] // batch_size)
        hashes = _hashes(rows if node_id is None else node_id[rows], mix(mix(seed) ^ (epoch << 1)))
        ordered = torch.cat(self.comm.all_gather(hashes, label="sample")).sort().values
        number = torch.searchsorted(ordered, hashes) // batch_size
        order = (number * (1 << 40) + rows).argsort()  # by minibatch, then by row
        count = torch.bincount(number, minlength=num_batches)
        batches = rows[order].split(count.tolist())
        here = torch.tensor([self.weight_of(each) for each in batches], dtype=torch.float64)
        weights = self.comm.all_reduce(here, label="sample").tolist()
        return [SeedBatch(each, weight) for each, weight in zip(batches, weights, strict=True)]

    def batch_loss(self, out: Tensor, batch: "SeedBatch") -> Tensor:
        """The share of this rank in the mean loss of a minibatch, whose seeds' outputs are ``out``: (B, C) -> ()."""
        return self.loss_of(out, batch.rows) / batch.weight

    def loss_of(self, out: Tensor, rows: Tensor) -> Tensor:
        """The sum of the losses of some labelled rows: (R, C), (R,) -> ()."""
        assert self.kind != "link"
        return sum_of_losses(self.kind, out, self.y[rows], self.class_weight)

    def weight_of(self, rows: Tensor) -> float:
        """The divisor that makes the sum of some rows' losses their mean."""
        return _weight(self.kind, self.y[rows], self.class_weight)

    def evaluate(self, out: Tensor) -> tuple[dict[str, float | None], float]:
        """The chosen metric of each split, and the loss on the validation nodes. Collective.

        An output that is not finite anywhere makes the loss so.
        """
        val_loss = self.loss(out, "val") if self.count["val"] else out.new_zeros(())
        loss = val_loss.double() + zero_if_finite(out)
        shares = [self._count(out, split).reshape(-1) for split in SPLITS]
        *counts, total = self.comm.all_reduce(torch.cat([*shares, loss[None]]), label="scores").split(
            [*(share.numel() for share in shares), 1]
        )
        scores = {split: self._chosen(count, out, split) for split, count in zip(SPLITS, counts, strict=True)}
        return scores, float(total)

    def scores(self, out: Tensor, split: str) -> dict[str, float | None]:
        """Every metric that fits the task, on the labelled rows of a split; None where it cannot be told. Collective.

        The area under the ROC curve needs all rows in one place, so on several ranks it is told only where it is the
        chosen metric.
        """
        count = self._sum_of_counts(out, split)
        if not self.count[split]:
            return dict.fromkeys(METRICS[self.kind])
        area = {"roc_auc": self._area(out, split)} if "roc_auc" in METRICS[self.kind] else {}
        return self._of_counts(count) | area

    def score(self, out: Tensor, split: str) -> float | None:
        """The chosen metric alone; no other is computed that costs more than the counts. Collective."""
        return self._chosen(self._sum_of_counts(out, split), out, split)

    def confusion(self, out: Tensor, split: str) -> Tensor:
        """Counts of classes, (C, C) int64: rows true, columns predicted. Collective."""
        rows = self.rows[split]
        matrix = metrics.confusion(native.argmax_rows(out, rows), self.y[rows], self.num_outputs)
        return self.comm.all_reduce(matrix, label="scores")

    def further_results(self, out: Tensor) -> dict[str, dict[str, Any]]:
        """Further events about the final outputs, by phase."""
        return {}

    def metrics(self) -> dict[str, Any]:
        """Further figures of this task in the metrics of a run."""
        return {}

    def _sum_of_counts(self, out: Tensor, split: str) -> Tensor:
        """The counts of all ranks. Collective."""
        return self.comm.all_reduce(self._count(out, split), label="scores")

    def _count(self, out: Tensor, split: str) -> Tensor:
        """Count what the scores are computed of, float64; counts of ranks add up."""
        assert self.kind != "link"
        rows = self.rows[split]
        y = self.y[rows]
        if self.kind == "class":
            return metrics.count_classes(native.argmax_rows(out, rows), y, self.num_outputs)
        out = out[rows]
        match self.kind:
            case "labels":
                return metrics.count_labels(out, y)
            case "regression":
                off = (out - y).abs()
                return torch.stack([off.nansum(dtype=torch.float64), (~off.isnan()).sum().double()])

    def _chosen(self, count: Tensor, out: Tensor, split: str) -> float | None:
        """The chosen metric, from the counts of all ranks. Collective where it is the area under the ROC curve."""
        if not self.count[split]:
            return None
        return self._area(out, split) if self.metric == "roc_auc" else self._of_counts(count)[self.metric]

    def _of_counts(self, count: Tensor) -> dict[str, float | None]:
        """The metrics that follow from the counts of all ranks, at next to no cost."""
        assert self.kind != "link"
        match self.kind:
            case "class":
                return metrics.of_classes(count.view(3, -1))
            case "labels":
                return metrics.of_labels(count.view(2, -1))
            case "regression":
                mae = float(count[0] / count[1])
                return {"mae": mae if isfinite(mae) else None}

    def _area(self, out: Tensor, split: str) -> float | None:
        if self.comm.world_size > 1 and self.metric != "roc_auc":
            return None
        rows = self.rows[split]
        out, y = (torch.cat(self.comm.all_gather(values[rows], label="labels")) for values in (out, self.y))
        if self.kind == "class":
            return metrics.roc_auc(out.softmax(1), y[:, None] == torch.arange(self.num_outputs))
        return metrics.roc_auc(out, y > 0)


def task_of(graph: Graph, config: TrainConfig, comm: Comm | None = None) -> Task:
    """The task that the labels of a graph, or of each rank's part of one, pose; refuses a graph that poses none.

    Collective.
    """
    comm = single_rank_comm() if comm is None else comm
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
        class_weight = balanced_weight(kind, y[rows["train"]], num_outputs, comm)
    weight = _weights(kind, y, rows, class_weight, comm)
    metric = _metric(kind, config.metric)
    return Task(kind, num_outputs, metric, rows, count, weight, y, class_weight, comm)


def zero_if_finite(out: Tensor) -> Tensor:
    """0; NaN where any output is not finite."""
    return (
        0 * torch.stack(out.aminmax()).double().sum()
        if out.numel()
        else out.new_zeros((), dtype=torch.float64)
    )


def _weights(
    kind: str, y: Tensor, rows: dict[str, Tensor], class_weight: Tensor | None, comm: Comm
) -> dict[str, float]:
    """The divisor of the losses of each split."""
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


def balanced_weight(kind: str, y_train: Tensor, num_classes: int, comm: Comm) -> Tensor:
    """The weight of each class, (C,) float32: the rarer among training labels of all ranks, the more. Collective."""
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


def _hashes(node_id: Tensor, key: int) -> Tensor:
    """Hash each node's id with a key to 63 bits, (R,) int64."""
    mixed = splitmix64(splitmix64(node_id.numpy().astype(np.uint64)) ^ np.uint64(key))
    return torch.from_numpy((mixed >> np.uint64(1)).astype(np.int64))


def _metric(kind: str, asked: Metric) -> str:
    fits = METRICS[kind]
    if asked == "auto":
        return fits[0]
    if asked not in fits:
        raise ValueError(
            f"train.metric is {asked}, which does not fit these labels; expected one of {', '.join(fits)}"
        )
    return asked
