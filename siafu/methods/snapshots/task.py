"""Temporal tasks: what the samples of a dynamic graph predict, and their scores. A sample is a step and its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph
from siafu.training import metrics

SPLITS = ("train", "val", "test")


class SampleEvaluator(Protocol):
    """Evaluates the samples of a pass."""

    @property
    def num_counts(self) -> int:
        """The number of counts of a sample, besides the last number, its loss."""

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """Evaluate one sample of a split: (num_counts + 1,) float64."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalTask:
    """A task on samples; the same on every rank.

    Attributes:
        graph: the dynamic graph; its steps are samples.
        samples: the steps of each split.
        count: number of predictions of each split: samples, or nodes.
        comm: the ranks, which share the steps.
        seed: seed of everything random.
        kind: what is predicted.
        metric: the score that selects the best weights.
        num_outputs: width of the head's output.
        num_counts: number of counts of a sample; scores follow from the counts of all samples.
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
        """True if a larger score is better."""
        return self.metric != "mae"

    def sample_loss(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean loss of one training sample, whose outputs are ``h``, (N, H)."""
        raise NotImplementedError

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """The counts of one sample of a split, and its loss: (num_counts + 1,) float64."""
        raise NotImplementedError

    def scores_from_counts(self, counts: Tensor) -> dict[str, float | None]:
        """The scores of some samples, given (samples, num_counts + 1)."""
        raise NotImplementedError

    def scores(self, counts: Tensor, split: str) -> dict[str, float | None]:
        """The scores of a split, given the counts of validation and test samples; none for training samples."""
        return self.scores_from_counts(self._of_split(counts, split))

    def confusion(self, counts: Tensor, split: str) -> Tensor:
        """The confusion matrix of a class task: (C, C) int64, rows true, columns predicted."""
        return self._of_split(counts, split)[:, :-1].sum(0).view(self.num_outputs, -1).long()

    def scores_by_sample(self, counts: Tensor) -> dict[str, list[Any]]:
        """Split, step and score of each validation and test sample, given their counts."""
        samples = [(split, step) for split in SPLITS[1:] for step in self.samples[split]]
        scores = [self.scores_from_counts(row[None])[self.metric] for row in counts]
        return {
            "split": [each[0] for each in samples],
            "step": [each[1] for each in samples],
            "score": scores,
        }

    def further_results(self, counts: Tensor) -> dict[str, dict[str, Any]]:
        """The score of each sample, for the report."""
        return {"samples": self.scores_by_sample(counts)}

    def metrics(self) -> dict[str, Any]:
        """Further figures of this task in the metrics of a run."""
        return {}

    def _of_split(self, counts: Tensor, split: str) -> Tensor:
        val = len(self.samples["val"])
        return counts[{"train": slice(0, 0), "val": slice(0, val), "test": slice(val, None)}[split]]


def split_steps(graph: DynamicGraph, *, window: int, ahead: bool) -> dict[str, range]:
    """Split the steps by time; samples with fewer steps before them than the window are left out.

    With ``ahead``, samples predict the step after their own, so the last step is no sample.
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


def count_confusion(out: Tensor, y: Tensor, loss: Tensor) -> Tensor:
    """The confusion matrix of a sample, flattened, and its loss: (C * C + 1,) float64."""
    matrix = metrics.confusion(out.argmax(1), y, out.shape[1])
    return torch.cat([matrix.reshape(-1).double(), loss.double()[None]])


def class_scores(counts: Tensor, num_classes: int) -> dict[str, float | None]:
    """Scores of classes, from the sum of the confusion matrices of all samples."""
    matrix = counts[:, :-1].sum(0).view(num_classes, num_classes)
    if not bool(matrix.any()):
        return {"accuracy": None, "micro_f1": None, "macro_f1": None}
    return metrics.of_classes(torch.stack([matrix.diag(), matrix.sum(1), matrix.sum(0)]))


def is_labelled(values: Tensor) -> Tensor:
    """A mask of the labels that are present: classes from 0 on, and numbers other than NaN."""
    return ~values.isnan() if values.is_floating_point() else values >= 0
