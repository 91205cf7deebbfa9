"""Temporal tasks on labels: classes of events, and classes or numbers of nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from siafu.methods.snapshots.task import LabelledRows, SampleResults, TemporalTask, is_labelled
from siafu.nn.dense import Dense
from siafu.nn.loss import Kind, sum_of_losses
from siafu.nn.product import product
from siafu.training import metrics
from siafu.training.classes import LabelNames
from siafu.training.final_results import FinalResults, final_results
from siafu.training.scorer import NEED_ALL_ROWS, Scorer, Scores
from siafu.training.thresholds import ThresholdRule, confusion_at

_NUM_SUMS = 2 + 3 * metrics.BINS  # of Scorer.add_up


def node_outputs(head: nn.Module, h: Tensor) -> Tensor:
    """Apply a linear head to each node: (N, H) -> (N, C)."""
    assert isinstance(head, Dense)
    return product(h, head.weight) + head.bias


def num_class_counts(num_classes: int) -> int:
    """The number of counts of a sample with classes: its confusion matrix, and the sums about probabilities."""
    return num_classes**2 + _NUM_SUMS


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalLabelTask(TemporalTask):
    """Predicts labels.

    Attributes:
        scorer: computes the metrics.
        labels: the names of the classes.
        gamma: of the focal loss; 0: cross entropy.
        class_weight: (C,) float32, or None.
        train_count: the training labels of each class.
        rule: how the threshold between two classes is found; None: the more probable class is predicted.
    """

    scorer: Scorer
    labels: LabelNames
    gamma: float = 0.0
    class_weight: Tensor | None = None
    train_count: tuple[int, ...] = ()
    rule: ThresholdRule | None = None

    @property
    def needs_rows(self) -> bool:
        """True if the chosen metric is ranked."""
        return self.metric in NEED_ALL_ROWS

    def scores_from_counts(self, counts: Tensor) -> Scores:
        """Scores over the rows of all samples, except ranked ones."""
        total = counts[:, :-1].sum(0)
        if self.scorer.kind == "regression":
            return self.scorer.of_counts(total) if float(total[1]) else {"mae": None}
        matrix = total[:-_NUM_SUMS].view(self.num_outputs, -1)
        by_class = torch.stack([matrix.diag(), matrix.sum(1), matrix.sum(0)]).reshape(-1)
        found = self.scorer.of_counts(by_class) | self.scorer.of_sums(total[-_NUM_SUMS:])
        return {name: found.get(name) for name in self.scorer.names}

    def scores(self, results: SampleResults, split: str) -> Scores:
        """Every score of a split. Collective."""
        found = super().scores(results, split)
        if self.scorer.kind == "class" and split in results.rows:
            found |= self._ranked(results, split)
        return found

    def score(self, results: SampleResults, split: str) -> float | None:
        """The chosen metric of a split alone. Collective."""
        return self._ranked(results, split)[self.metric] if self.needs_rows else super().score(results, split)

    def sample_scores(self, results: SampleResults, samples: Sequence[tuple[str, int]]) -> list[float | None]:
        """The chosen metric of each sample. Collective."""
        if not self.needs_rows:
            return super().sample_scores(results, samples)
        rows = {
            split: self._gathered(results, split) for split in dict.fromkeys(split for split, _ in samples)
        }
        found = list[float | None]()
        for split, step in samples:
            out, y, steps = rows[split]
            found.append(self._ranked_of(out[steps == step], y[steps == step])[self.metric])
        return found

    def final_results(self, results: SampleResults, selecting: SampleResults) -> FinalResults:
        """The threshold with its scores, the score of the majority class, and curves. Collective."""
        return (
            final_results(self, results, selecting) if self.scorer.kind == "class" else FinalResults({}, {})
        )

    def test_classes(self, results: SampleResults) -> Tensor | None:
        """The test rows of each class, (C,); None without any."""
        count = self.confusion(results, "test").sum(1)
        return count if bool(count.any()) else None

    def positive_rows(self, results: SampleResults, split: str) -> tuple[Tensor, Tensor] | None:
        """The log-odds and outcomes of all rows of a split. Collective."""
        out, y, _ = self._gathered(results, split)
        return self.scorer.log_odds(out), self.scorer.outcomes(y)[:, 0]

    def confusion_at(self, results: SampleResults, split: str, threshold: float) -> Tensor:
        """Counts of others and positives as a threshold predicts them, (2, 2) int64. Collective."""
        rows = self.positive_rows(results, split)
        assert rows is not None
        return confusion_at(*rows, threshold)

    def calibration(self, results: SampleResults) -> Tensor:
        """The counts of test rows by the bin of their probability, (3, BINS)."""
        return self._of_split(results.counts, "test")[:, -1 - 3 * metrics.BINS : -1].sum(0).view(3, -1)

    def _counts(self, out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
        """The counts of a sample with classes, and its loss."""
        matrix = metrics.confusion(out.argmax(1), y, out.shape[1]).reshape(-1).double()
        return torch.cat([matrix, self.scorer.add_up(out, y), loss.double()[None]])

    def _ranked(self, results: SampleResults, split: str) -> Scores:
        """Ranked metrics of all rows of a split. Collective."""
        out, y, _ = self._gathered(results, split)
        return self._ranked_of(out, y)

    def _ranked_of(self, out: Tensor, y: Tensor) -> Scores:
        return self.scorer.ranked(self.scorer.columns(out), self.scorer.outcomes(y))

    def _gathered(self, results: SampleResults, split: str) -> LabelledRows:
        """The rows of all ranks. Collective."""
        columns = (torch.cat(self.comm.all_gather(each, label="labels")) for each in results.rows[split])
        return LabelledRows(*columns)


class RowCollector:
    """Collects the labelled rows of the samples that this rank evaluates."""

    def __init__(self, task: TemporalLabelTask, splits: Sequence[str]) -> None:
        self._task = task
        self._found: dict[str, list[LabelledRows]] = {split: [] for split in splits}

    def add(self, head: nn.Module, step: int, h: Tensor, split: str) -> None:
        """Add the rows of one sample, whose outputs are ``h``, (N, H)."""
        rows = self._task.labelled_rows(head, step, h, split)
        if rows is not None:
            self._found[split].append(rows)

    def rows(self) -> dict[str, LabelledRows]:
        """The rows of each split."""
        none = torch.empty(0, dtype=torch.int64)
        return {
            split: LabelledRows(*map(torch.cat, zip(*found, strict=True)))
            if found
            else LabelledRows(torch.empty(0, self._task.num_outputs), none, none)
            for split, found in self._found.items()
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalEdgeTask(TemporalLabelTask):
    """Predicts the class of each event of a step."""

    def sample_loss(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean cross-entropy of the events of the step."""
        src, dst, y = self._events(step)
        return self._loss(head(h, src, dst), y) if y.numel() else 0 * h.sum()

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """The confusion matrix of the events, and the loss."""
        src, dst, y = self._events(step)
        if not y.numel():
            return torch.zeros(self.num_counts + 1, dtype=torch.float64)
        out = head(h, src, dst)
        return self._counts(out, y, self._loss(out, y))

    def labelled_rows(self, head: nn.Module, step: int, h: Tensor, split: str) -> LabelledRows:
        """The outputs and classes of the events of the step."""
        src, dst, y = self._events(step)
        return LabelledRows(head(h, src, dst), y, torch.full_like(y, step))

    def _loss(self, out: Tensor, y: Tensor) -> Tensor:
        if self.class_weight is None:
            return sum_of_losses("class", out, y, None, self.gamma) / y.numel()
        weight = self.class_weight.to(out.dtype)
        return sum_of_losses("class", out, y, weight, self.gamma) / weight[y].sum()

    def _events(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, targets and classes of the events that have a class."""
        graph = self.graph
        assert graph.edge_y is not None
        events = graph.events(step, step + 1)
        y = graph.edge_y[events]
        labelled = is_labelled(y)
        return graph.src[events][labelled].long(), graph.dst[events][labelled].long(), y[labelled]


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalNodeTask(TemporalLabelTask):
    """Predicts classes or numbers of nodes: labels by step in each step, static labels in the last step.

    Attributes:
        rows: the nodes of each split, if labels are static; else None.
    """

    rows: Mapping[str, Tensor] | None

    def sample_loss(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean loss of the labelled nodes of the step, or of the training nodes."""
        return self._loss(node_outputs(head, h), *self._labelled(step, "train"))

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """The counts of the labelled nodes, and the loss."""
        (rows, y), out = self._labelled(step, split), node_outputs(head, h)
        loss = self._loss(out, rows, y)
        if self.kind == "class":
            return self._counts(out[rows], y, loss)
        off = (out[rows] - y).abs()
        counted = torch.stack([off.nansum(dtype=torch.float64), is_labelled(off).sum().double()])
        return torch.cat([counted, loss.double()[None]])

    def labelled_rows(self, head: nn.Module, step: int, h: Tensor, split: str) -> LabelledRows | None:
        """The outputs and classes of the labelled nodes."""
        if self.kind != "class":
            return None
        rows, y = self._labelled(step, split)
        return LabelledRows(node_outputs(head, h)[rows], y, torch.full_like(y, step))

    def _loss(self, out: Tensor, rows: Tensor, y: Tensor) -> Tensor:
        if not rows.numel():
            return 0 * out.sum()
        kind: Kind = "class" if self.kind == "class" else "regression"
        if self.class_weight is None:
            return sum_of_losses(kind, out[rows], y, None, self.gamma) / int(is_labelled(y).sum())
        weight = self.class_weight.to(out.dtype)
        return sum_of_losses(kind, out[rows], y, weight, self.gamma) / weight[y].sum()

    def _labelled(self, step: int, split: str) -> tuple[Tensor, Tensor]:
        """The rows to predict and their labels."""
        y = self.graph.y
        assert y is not None
        if self.rows is not None:
            return self.rows[split], y[self.rows[split]]
        y = y[step]
        y = y[:, None] if y.is_floating_point() and y.ndim == 1 else y
        labelled = is_labelled(y).any(1) if y.ndim == 2 else is_labelled(y)
        return labelled.nonzero()[:, 0], y[labelled]
