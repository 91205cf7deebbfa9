"""What samples of a graph that changes over time predict, and how well. A sample is a step and its nodes' rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph
from siafu.training import metrics

SPLITS = ("train", "val", "test")


class Judge(Protocol):
    """Who tells something of samples."""

    @property
    def num_counts(self) -> int:
        """How many numbers it tells of a sample, besides the last, its loss."""

    def judged(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """What it tells of one sample of a split: (num_counts + 1,) float64."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalTask:
    """What samples predict; known to every rank alike.

    Attributes:
        graph: whose steps are samples.
        samples: the steps of each split.
        count: how many things each split predicts: samples, or nodes.
        comm: those who share the steps.
        seed: of everything random.
        kind: of what is predicted.
        metric: the score that selects the best weights.
        num_outputs: the width of what the head gives.
        num_counts: how many numbers of a sample add up to its scores.
    """

    graph: DynamicGraph
    samples: Mapping[str, range]
    count: Mapping[str, int]
    comm: Comm
    seed: int
    kind: str
    metric: str
    num_outputs: int
    num_counts: int

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return self.metric != "mae"

    def loss_of(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean loss of one training sample, whose rows are ``h``, (N, H)."""
        raise NotImplementedError

    def judged(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """What adds up to the scores of one sample of a split, and its loss: (num_counts + 1,) float64."""
        raise NotImplementedError

    def scores_of(self, judged: Tensor) -> dict[str, float | None]:
        """The scores of some samples, (samples, num_counts + 1)."""
        raise NotImplementedError

    def scores(self, judged: Tensor, split: str) -> dict[str, float | None]:
        """The scores of a split, of what was judged of validation and test; training samples are not judged."""
        return self.scores_of(self._of_split(judged, split))

    def confusion(self, judged: Tensor, split: str) -> Tensor:
        """Of tasks that tell classes apart: (C, C) int64, rows true, columns predicted."""
        return self._of_split(judged, split)[:, :-1].sum(0).view(self.num_outputs, -1).long()

    def by_sample(self, judged: Tensor) -> dict[str, list[Any]]:
        """Split, step and score of each validation and test sample, of what was judged of them."""
        asked = [(split, step) for split in SPLITS[1:] for step in self.samples[split]]
        scores = [self.scores_of(row[None])[self.metric] for row in judged]
        return {"split": [each[0] for each in asked], "step": [each[1] for each in asked], "score": scores}

    def further_results(self, judged: Tensor) -> dict[str, dict[str, Any]]:
        """The score of each sample, for the report."""
        return {"samples": self.by_sample(judged)}

    def metrics(self) -> dict[str, Any]:
        """Further figures of this task in the metrics of a run."""
        return {}

    def _of_split(self, judged: Tensor, split: str) -> Tensor:
        val = len(self.samples["val"])
        return judged[{"train": slice(0, 0), "val": slice(0, val), "test": slice(val, None)}[split]]


def split_steps(graph: DynamicGraph, *, window: int, ahead: bool) -> dict[str, range]:
    """The samples of each split, in the order of time; those that would see less than their window are left out.

    Where samples look ``ahead`` they predict the step after their own, which the last step does not have.
    """
    ends = graph.num_steps - 1 if ahead else graph.num_steps
    first_val, first_test = graph.protocol.bounds(ends + 1)
    samples = {
        "train": range(min(window, first_val), first_val),
        "val": range(first_val, first_test),
        "test": range(first_test, ends),
    }
    if not samples["train"]:
        raise ValueError(
            f"{graph.name}: {graph.num_steps} steps leave none to train on, since a sample sees {window} steps before "
            f"its own and validation begins with step {first_val}; set snapshots.window or snapshots.step lower"
        )
    return samples


def count_taken(out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """How often each class was taken for which, and the loss: (C * C + 1,) float64."""
    taken = metrics.confusion(out.argmax(1), y, out.shape[1])
    return torch.cat([taken.reshape(-1).double(), loss.double()[None]])


def of_classes(judged: Tensor, num_classes: int) -> dict[str, float | None]:
    """Scores of classes, of what :func:`count_taken` counted of all samples."""
    taken = judged[:, :-1].sum(0).view(num_classes, num_classes)
    if not bool(taken.any()):
        return {"accuracy": None, "micro_f1": None, "macro_f1": None}
    return metrics.of_classes(torch.stack([taken.diag(), taken.sum(1), taken.sum(0)]))


def known(values: Tensor) -> Tensor:
    """Which labels are there, a mask: classes from 0 on, and numbers."""
    return ~values.isnan() if values.is_floating_point() else values >= 0
