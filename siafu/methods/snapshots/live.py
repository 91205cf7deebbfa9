"""Live updates, the evaluation protocol of ROLAND (https://arxiv.org/abs/2208.07239).

When the links of a step are known, the model is fine-tuned on the sample that had to predict them; then the next sample
is scored. So every sample is scored by weights that have seen nothing later than the sample's own inputs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from siafu.methods.snapshots.links import TemporalLinkTask

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class LossEvaluator:
    """A ``SampleEvaluator`` that computes the loss alone."""

    task: TemporalLinkTask
    num_counts: int = 0

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """The loss of one sample, (1,) float64."""
        return self.task.sample_loss(head, step, h, epoch=0).double()[None]


@dataclass(frozen=True)
class TuningPasses:
    """The collective functions of a procedure that fine-tuning calls.

    Attributes:
        train_step: makes one step of the optimiser on a sample: (task, sample, number of the step).
        loss: computes the loss of a sample.
    """

    train_step: Callable[[TemporalLinkTask, int, int], None]
    loss: Callable[[TemporalLinkTask, int], float]


def fine_tune(
    model: nn.Module, task: TemporalLinkTask, sample: int, passes: TuningPasses, *, steps: int
) -> int:
    """Fine-tune on a sample whose links are known; returns how many optimiser steps were kept. Collective.

    A tenth of the links is held out. The model ends with the weights of the least held-out loss, which may be those
    before the first step. It stops early when that loss has not improved twice in a row.
    """
    learned, held_out = task.for_part("learned"), task.for_part("held")
    best, least, kept, waited = _copy_weights(model), passes.loss(held_out, sample), 0, 0
    for step in range(1, steps + 1):
        passes.train_step(learned, sample, step)
        loss = passes.loss(held_out, sample)
        waited = 0 if loss < least else waited + 1
        if loss < least:
            best, least, kept = _copy_weights(model), loss, step
        if waited == 2:
            break
    model.load_state_dict(best)
    return kept


@contextmanager
def restore_weights(model: nn.Module) -> Iterator[None]:
    """Restore the weights of the model on exit."""
    before = _copy_weights(model)
    try:
        yield
    finally:
        model.load_state_dict(before)


def _copy_weights(model: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
