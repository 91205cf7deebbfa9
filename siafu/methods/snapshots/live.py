"""Live updates, as ROLAND scores (https://arxiv.org/abs/2208.07239): links are learned as they become known.

When the links of a step become known, the model is tuned to the sample that had to predict them; then the next sample
is scored. Every sample is scored by weights that have seen nothing later than what it is given itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from siafu.methods.snapshots.links import LinkTask

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Losses:
    """Tells of a sample nothing but its loss."""

    task: LinkTask
    num_counts: int = 0

    def judged(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """The loss of one sample, (1,) float64."""
        return self.task.loss_of(head, step, h, epoch=0).double()[None]


@dataclass(frozen=True)
class Passes:
    """What a trainer does with one sample by a task; both are collective.

    Attributes:
        move: make a step of the optimiser, which is counted, on a sample.
        loss: of a sample.
    """

    move: Callable[[LinkTask, int, int], None]
    loss: Callable[[LinkTask, int], float]


def tune(model: nn.Module, task: LinkTask, sample: int, passes: Passes, *, steps: int) -> int:
    """Learn from a sample whose links are known, a tenth of them held back; returns how many steps were kept.

    The weights are then those with the least loss on what was held back, those before the first step among them; it
    stops as soon as that has risen twice in turn. Collective.
    """
    learned, held = task.of_part("learned"), task.of_part("held")
    best, least, kept, waited = _weights(model), passes.loss(held, sample), 0, 0
    for step in range(1, steps + 1):
        passes.move(learned, sample, step)
        loss = passes.loss(held, sample)
        waited = 0 if loss < least else waited + 1
        if loss < least:
            best, least, kept = _weights(model), loss, step
        if waited == 2:
            break
    model.load_state_dict(best)
    return kept


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """The weights are afterwards what they were before."""
    before = _weights(model)
    try:
        yield
    finally:
        model.load_state_dict(before)


def _weights(model: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
