"""Temporal tasks on labels: classes of events, and classes or numbers of nodes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from siafu.methods.snapshots.task import TemporalTask, class_scores, count_confusion, is_labelled
from siafu.nn.dense import Dense
from siafu.nn.loss import Kind, sum_of_losses
from siafu.nn.product import product


def node_outputs(head: nn.Module, h: Tensor) -> Tensor:
    """Apply a linear head to each node: (N, H) -> (N, C)."""
    assert isinstance(head, Dense)
    return product(h, head.weight) + head.bias


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalEdgeTask(TemporalTask):
    """Predicts the class of each event of a step.

    Attributes:
        class_weight: (C,) float32, or None.
    """

    class_weight: Tensor | None = None

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
        return count_confusion(out, y, self._loss(out, y))

    def scores_from_counts(self, counts: Tensor) -> dict[str, float | None]:
        """Scores over the events of all samples."""
        return class_scores(counts, self.num_outputs)

    def _loss(self, out: Tensor, y: Tensor) -> Tensor:
        weight = None if self.class_weight is None else self.class_weight.to(out.dtype)
        return nn.functional.cross_entropy(out, y, weight=weight)

    def _events(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, targets and classes of the events that have a class."""
        graph = self.graph
        assert graph.edge_y is not None
        events = graph.events(step, step + 1)
        y = graph.edge_y[events]
        labelled = is_labelled(y)
        return graph.src[events][labelled].long(), graph.dst[events][labelled].long(), y[labelled]


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalNodeTask(TemporalTask):
    """Predicts classes or numbers of nodes: labels by step in each step, static labels in the last step.

    Attributes:
        rows: the nodes of each split, if labels are static; else None.
        class_weight: (C,) float32, or None.
    """

    rows: Mapping[str, Tensor] | None
    class_weight: Tensor | None = None

    def sample_loss(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean loss of the labelled nodes of the step, or of the training nodes."""
        return self._loss(node_outputs(head, h), *self._labelled(step, "train"))

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """The counts of the labelled nodes, and the loss."""
        (rows, y), out = self._labelled(step, split), node_outputs(head, h)
        loss = self._loss(out, rows, y)
        if self.kind == "class":
            return count_confusion(out[rows], y, loss)
        off = (out[rows] - y).abs()
        counted = torch.stack([off.nansum(dtype=torch.float64), is_labelled(off).sum().double()])
        return torch.cat([counted, loss.double()[None]])

    def scores_from_counts(self, counts: Tensor) -> dict[str, float | None]:
        """Scores over the nodes of all samples."""
        if self.kind == "class":
            return class_scores(counts, self.num_outputs)
        total, number = counts[:, :2].sum(0).tolist()
        return {"mae": total / number if number else None}

    def _loss(self, out: Tensor, rows: Tensor, y: Tensor) -> Tensor:
        if not rows.numel():
            return 0 * out.sum()
        kind: Kind = "class" if self.kind == "class" else "regression"
        if self.class_weight is None:
            return sum_of_losses(kind, out[rows], y, None) / int(is_labelled(y).sum())
        weight = self.class_weight.to(out.dtype)
        return sum_of_losses(kind, out[rows], y, weight) / weight[y].sum()

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
