"""Temporal tasks: what the samples of a dynamic graph predict, and their scores. A sample is a step and its outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph
from siafu.training.final_results import FinalResults
from siafu.training.scorer import LOWER_IS_BETTER

SPLITS = ("train", "val", "test")


class SampleEvaluator(Protocol):
    """Evaluates the samples of a pass."""

    @property
    def num_counts(self) -> int:
        """The number of counts of a sample, besides the last number, its loss."""

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """Evaluate one sample of a split: (num_counts + 1,) float64."""


class LabelledRows(NamedTuple):
    """Outputs of the labelled rows, nodes or events, of some samples on this rank.

    Attributes:
        out: (R, C).
        y: (R,) int64.
        step: (R,) int64, the sample of each row.
    """

    out: Tensor
    y: Tensor
    step: Tensor


class SampleResults(NamedTuple):
    """The results of samples of some splits.

    Attributes:
        counts: (samples, num_counts + 1) float64, the counts of each sample and its loss, of all ranks.
        rows: for metrics that need the outputs of single rows: those of each split on this rank.
    """

    counts: Tensor
    rows: Mapping[str, LabelledRows]


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
        return self.metric not in LOWER_IS_BETTER

    @property
    def needs_rows(self) -> bool:
        """True if the chosen metric needs the outputs of single rows."""
        return False

    def labelled_rows(self, head: nn.Module, step: int, h: Tensor, split: str) -> LabelledRows | None:
        """The outputs and classes of the labelled rows of one sample; None for a task without classes."""
        return None

    def sample_loss(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean loss of one training sample, whose outputs are ``h``, (N, H)."""
        raise NotImplementedError

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """The counts of one sample of a split, and its loss: (num_counts + 1,) float64."""
        raise NotImplementedError

    def scores_from_counts(self, counts: Tensor) -> dict[str, float | None]:
        """The scores of some samples, given (samples, num_counts + 1)."""
        raise NotImplementedError

    def scores(self, results: SampleResults, split: str) -> dict[str, float | None]:
        """The scores of a split, given validation and test samples; none for training samples. Collective."""
        return self.scores_from_counts(self._of_split(results.counts, split))

    def score(self, results: SampleResults, split: str) -> float | None:
        """The chosen metric of a split alone; ``results`` are of this split alone. Collective."""
        return self.scores_from_counts(results.counts)[self.metric]

    def confusion(self, results: SampleResults, split: str) -> Tensor:
        """The confusion matrix of a class task: (C, C) int64, rows true, columns predicted."""
        counts = self._of_split(results.counts, split)[:, : self.num_outputs**2]
        return counts.sum(0).view(self.num_outputs, -1).long()

    def scores_by_sample(self, results: SampleResults) -> dict[str, list[Any]]:
        """Split, step and score of each validation and test sample. Collective."""
        samples = [(split, step) for split in SPLITS[1:] for step in self.samples[split]]
        return {
            "split": [each[0] for each in samples],
            "step": [each[1] for each in samples],
            "score": self.sample_scores(results, samples),
        }

    def sample_scores(self, results: SampleResults, samples: Sequence[tuple[str, int]]) -> list[float | None]:
        """The chosen metric of each sample. Collective."""
        return [self.scores_from_counts(row[None])[self.metric] for row in results.counts]

    def further_results(self, results: SampleResults) -> dict[str, dict[str, Any]]:
        """The score of each sample, for the report. Collective."""
        return {"samples": self.scores_by_sample(results)}

    def final_results(self, results: SampleResults, selecting: SampleResults) -> FinalResults:
        """Further results; none without classes. Collective."""
        return FinalResults({}, {})

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


def is_labelled(values: Tensor) -> Tensor:
    """A mask of the labels that are present: classes from 0 on, and numbers other than NaN."""
    return ~values.isnan() if values.is_floating_point() else values >= 0
