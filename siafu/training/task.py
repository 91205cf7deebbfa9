"""Tasks on nodes: one class a node, many labels a node, or numbers; their losses and scores."""

from collections.abc import Sequence
from dataclasses import dataclass
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
from siafu.training import classes, metrics
from siafu.training.classes import LabelNames, imbalance
from siafu.training.config import TrainConfig
from siafu.training.final_results import FinalResults, final_results
from siafu.training.scorer import LOWER_IS_BETTER, NEED_ALL_ROWS, OF_PROBABILITIES, Scorer, Scores
from siafu.training.thresholds import ThresholdRule, confusion_at

SPLITS = ("train", "val", "test")
_PLAUSIBLE_CLASSES = 1000  # even of a graph with fewer nodes
_MOST_AT_ONCE = 1 << 22  # probabilities in memory, float64
_MOST_GATHERED = 1 << 24  # rows of a split whose scores all ranks exchange for a metric that selects nothing


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
        scorer: computes the metrics.
        labels: the names of the classes or labels.
        gamma: of the focal loss; 0: cross entropy.
        train_count: the training labels of each class on all ranks; empty unless a node has one class.
        rule: how the threshold between two classes is found; None: the more probable class is predicted.
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
    scorer: Scorer
    labels: LabelNames
    gamma: float
    train_count: tuple[int, ...]
    rule: ThresholdRule | None

    @property
    def higher_is_better(self) -> bool:
        """True if a larger score is a better one."""
        return self.metric not in LOWER_IS_BETTER

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
        return sum_of_losses(self.kind, out, self.y[rows], self.class_weight, self.gamma)

    def weight_of(self, rows: Tensor) -> float:
        """The divisor that makes the sum of some rows' losses their mean."""
        return _weight(self.kind, self.y[rows], self.class_weight)

    def evaluate(self, out: Tensor) -> tuple[dict[str, float | None], float]:
        """The chosen metric of each split, and the loss on the validation nodes. Collective.

        An output that is not finite anywhere makes the loss so.
        """
        val_loss = self.loss(out, "val") if self.count["val"] else out.new_zeros(())
        loss = val_loss.double() + zero_if_finite(out)
        shares = [self._share(out, split) for split in SPLITS]
        *counts, total = self.comm.all_reduce(torch.cat([*shares, loss[None]]), label="scores").split(
            [*(share.numel() for share in shares), 1]
        )
        scores = {split: self._chosen(count, out, split) for split, count in zip(SPLITS, counts, strict=True)}
        return scores, float(total)

    def scores(self, out: Tensor, split: str) -> Scores:
        """Every metric that fits the task, on the labelled rows of a split; None where it cannot be told. Collective.

        Ranked metrics need all rows in one place. On several ranks the chosen one is told, and those of validation and
        test rows where one class is singled out, unless there are very many rows or they belong to organisations.
        """
        if not self.count[split]:
            return dict.fromkeys(self.scorer.names)
        found = self.scorer.of_counts(self._sum(self._count(out, split)))
        if self.kind == "regression":
            return found
        found |= self.scorer.of_sums(self._sum(self._add_up(out, split)))
        told: tuple[str, ...] = NEED_ALL_ROWS
        if not self._may_gather(split):
            told = (self.metric,) if self.metric in NEED_ALL_ROWS else ()
        found |= self._ranked(out, split, told) if told else {}
        return {name: found.get(name) for name in self.scorer.names}

    def score(self, out: Tensor, split: str) -> float | None:
        """The chosen metric alone; no other is computed that costs more than the counts. Collective."""
        return self._chosen(self._sum(self._share(out, split)), out, split)

    def confusion(self, out: Tensor, split: str) -> Tensor:
        """Counts of classes, (C, C) int64: rows true, columns predicted. Collective."""
        rows = self.rows[split]
        matrix = metrics.confusion(native.argmax_rows(out, rows), self.y[rows], self.num_outputs)
        return self.comm.all_reduce(matrix, label="scores")

    def further_results(self, out: Tensor) -> dict[str, dict[str, Any]]:
        """Further events about the final outputs, by phase."""
        return {}

    def final_results(self, out: Tensor, selecting: Tensor) -> FinalResults:
        """The threshold with its scores, the score of the majority class, and curves. Collective.

        ``selecting`` are outputs that saw no label of validation nodes; a threshold is chosen by them.
        """
        return final_results(self, out, selecting) if self.kind == "class" else FinalResults({}, {})

    def test_classes(self, out: Tensor) -> Tensor | None:
        """The test rows of each class, (C,); None without any. Collective."""
        return self._sum(self._count(out, "test")).view(3, -1)[1] if self.count["test"] else None

    def positive_rows(self, out: Tensor, split: str) -> tuple[Tensor, Tensor] | None:
        """The log-odds and outcomes of all rows of a split, where ranks may exchange them. Collective."""
        if not self.count[split] or not self._may_gather(split):
            return None
        columns, outcomes = self._gathered(out, split)
        return columns[:, 0], outcomes[:, 0]

    def confusion_at(self, out: Tensor, split: str, threshold: float) -> Tensor:
        """Counts of others and positives as a threshold predicts them, (2, 2) int64. Collective."""
        rows = self.rows[split]
        positive = self.scorer.outcomes(self.y[rows])[:, 0]
        return self._sum(confusion_at(self.scorer.log_odds(out[rows]), positive, threshold))

    def calibration(self, out: Tensor) -> Tensor:
        """The counts of test rows by the bin of their probability, (3, BINS). Collective."""
        return self._sum(self._add_up(out, "test"))[2:].view(3, -1)

    def metrics(self) -> dict[str, Any]:
        """Further figures of this task in the metrics of a run."""
        return {}

    def _sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks. Collective."""
        return self.comm.all_reduce(values, label="scores")

    def _share(self, out: Tensor, split: str) -> Tensor:
        """The share of this rank in what the chosen metric follows from, flat; ranked metrics need none."""
        if self.metric in NEED_ALL_ROWS:
            return torch.zeros(0, dtype=torch.float64)
        return self._add_up(out, split) if self.metric in OF_PROBABILITIES else self._count(out, split)

    def _count(self, out: Tensor, split: str) -> Tensor:
        """Count right and wrong predictions, float64, flat; counts of ranks add up."""
        rows = self.rows[split]
        return self.scorer.count(out, self.y[rows], rows)

    def _add_up(self, out: Tensor, split: str) -> Tensor:
        """Add up what the scores of probabilities follow from, float64, flat."""
        chunks = self.rows[split].split(max(1, _MOST_AT_ONCE // self.num_outputs))
        return torch.stack([self.scorer.add_up(out[rows], self.y[rows]) for rows in chunks]).sum(0)

    def _chosen(self, share: Tensor, out: Tensor, split: str) -> float | None:
        """The chosen metric, from the sums over all ranks. Collective where the metric is ranked."""
        if not self.count[split]:
            return None
        if self.metric in NEED_ALL_ROWS:
            return self._ranked(out, split, (self.metric,))[self.metric]
        of_sums = self.metric in OF_PROBABILITIES
        return (self.scorer.of_sums(share) if of_sums else self.scorer.of_counts(share))[self.metric]

    def _may_gather(self, split: str) -> bool:
        """Whether ranks exchange the scores of a split for metrics that select nothing."""
        if self.comm.world_size == 1:
            return True
        single = self.scorer.positive is not None and split != "train"
        return single and self.comm.shares_labels and self.count[split] <= _MOST_GATHERED

    def _ranked(self, out: Tensor, split: str, names: tuple[str, ...]) -> Scores:
        """Ranked metrics of the rows of all ranks. Collective."""
        return self.scorer.ranked(*self._gathered(out, split), names)

    def _gathered(self, out: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """The ranked columns and their outcomes of all ranks. Collective."""
        rows = self.rows[split]
        here = self.scorer.columns(out[rows]), self.scorer.outcomes(self.y[rows])
        columns, outcomes = (torch.cat(self.comm.all_gather(each, label="labels")) for each in here)
        return columns, outcomes


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
    labels, y_train = LabelNames(kind, num_outputs, graph.class_names), y[rows["train"]]
    classes.check_loss(labels, config)
    train_count = classes.class_counts(labels, y_train, comm)
    class_weight = classes.class_weight(labels, config.class_weights, y_train, comm)
    scorer = Scorer(kind, num_outputs, classes.positive_class(labels, config, train_count), config.at_k)
    rule = classes.threshold_rule(
        labels, config, train_count, has_val=count["val"] > 0, shares_labels=comm.shares_labels
    )
    return Task(
        kind=kind,
        num_outputs=num_outputs,
        metric=classes.chosen_metric(
            config.metric, scorer.names, imbalance(train_count), shares_labels=comm.shares_labels
        ),
        rows=rows,
        count=count,
        weight=_weights(kind, y, rows, class_weight, comm),
        y=y,
        class_weight=class_weight,
        comm=comm,
        scorer=scorer,
        labels=labels,
        gamma=config.gamma,
        train_count=train_count,
        rule=rule,
    )


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


def _hashes(node_id: Tensor, key: int) -> Tensor:
    """Hash each node's id with a key to 63 bits, (R,) int64."""
    mixed = splitmix64(splitmix64(node_id.numpy().astype(np.uint64)) ^ np.uint64(key))
    return torch.from_numpy((mixed >> np.uint64(1)).astype(np.int64))
