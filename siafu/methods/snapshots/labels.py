"""Classes of events, and classes or numbers of nodes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from siafu.methods.snapshots.task import TemporalTask, count_taken, known, of_classes
from siafu.nn.dense import Dense
from siafu.nn.loss import Kind, sum_of_losses
from siafu.nn.product import product


def by_node(head: nn.Module, h: Tensor) -> Tensor:
    """What a linear head says of each node: (N, H) -> (N, C)."""
    assert isinstance(head, Dense)
    return product(h, head.weight) + head.bias


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeTask(TemporalTask):
    """Which class each event of a step is of.

    Attributes:
        class_weight: (C,) float32, or None.
    """

    class_weight: Tensor | None = None

    def loss_of(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean cross-entropy of the events of the step."""
        src, dst, y = self._events(step)
        return self._loss(head(h, src, dst), y) if y.numel() else 0 * h.sum()

    def judged(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """How often each class was taken for which, and the loss."""
        src, dst, y = self._events(step)
        if not y.numel():
            return torch.zeros(self.num_counts + 1, dtype=torch.float64)
        out = head(h, src, dst)
        return count_taken(out, y, self._loss(out, y))

    def scores_of(self, judged: Tensor) -> dict[str, float | None]:
        """Over all events of all samples."""
        return of_classes(judged, self.num_outputs)

    def _loss(self, out: Tensor, y: Tensor) -> Tensor:
        weight = None if self.class_weight is None else self.class_weight.to(out.dtype)
        return nn.functional.cross_entropy(out, y, weight=weight)

    def _events(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, targets and classes of the events that have one."""
        graph = self.graph
        assert graph.edge_y is not None
        events = graph.events(step, step + 1)
        y = graph.edge_y[events]
        there = known(y)
        return graph.src[events][there].long(), graph.dst[events][there].long(), y[there]


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeTask(TemporalTask):
    """Classes or numbers of nodes: in each step, or for all time, which the last step then predicts.

    Attributes:
        rows: the nodes of each split, where what is predicted holds for all time; else None.
        class_weight: (C,) float32, or None.
    """

    rows: Mapping[str, Tensor] | None
    class_weight: Tensor | None = None

    def loss_of(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean loss of the labelled nodes of the step, or of those that are trained on."""
        return self._loss(by_node(head, h), *self._labelled(step, "train"))

    def judged(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """What adds up to the scores of the labelled nodes, and the loss."""
        (rows, y), out = self._labelled(step, split), by_node(head, h)
        loss = self._loss(out, rows, y)
        if self.kind == "class":
            return count_taken(out[rows], y, loss)
        off = (out[rows] - y).abs()
        counted = torch.stack([off.nansum(dtype=torch.float64), known(off).sum().double()])
        return torch.cat([counted, loss.double()[None]])

    def scores_of(self, judged: Tensor) -> dict[str, float | None]:
        """Over all nodes of all samples."""
        if self.kind == "class":
            return of_classes(judged, self.num_outputs)
        total, number = judged[:, :2].sum(0).tolist()
        return {"mae": total / number if number else None}

    def _loss(self, out: Tensor, rows: Tensor, y: Tensor) -> Tensor:
        if not rows.numel():
            return 0 * out.sum()
        kind: Kind = "class" if self.kind == "class" else "regression"
        if self.class_weight is None:
            return sum_of_losses(kind, out[rows], y, None) / int(known(y).sum())
        weight = self.class_weight.to(out.dtype)
        return sum_of_losses(kind, out[rows], y, weight) / weight[y].sum()

    def _labelled(self, step: int, split: str) -> tuple[Tensor, Tensor]:
        """The rows that are to be predicted and what is true of them."""
        y = self.graph.y
        assert y is not None
        if self.rows is not None:
            return self.rows[split], y[self.rows[split]]
        y = y[step]
        y = y[:, None] if y.is_floating_point() and y.ndim == 1 else y
        there = known(y).any(1) if y.ndim == 2 else known(y)
        return there.nonzero()[:, 0], y[there]
