"""The evaluation protocol of a dynamic data set, so that results can be compared with published ones."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """The usual protocol of a data set; a run's settings override it.

    Attributes:
        step: the length of a step in units of the events' times; None where each distinct time is a step.
        window: how many steps back a sample sees, besides its own.
        edge_life: over how many steps an event stays in the snapshot.
        negatives: pairs that are no edges, for each edge, in training.
        split: the shares of steps for training, validation and test, in the order of time.
        task: what is usually predicted: ``link`` of the next step, class of an ``edge`` or of a ``node``, or a number
            of each node (``regression``); None: of nodes where they have labels, else ``link``.
    """

    step: float | None = None
    window: int = 10
    edge_life: int = 10
    negatives: int = 100
    split: tuple[float, float, float] = (0.7, 0.1, 0.2)
    task: str | None = None

    def __post_init__(self) -> None:
        if len(self.split) != 3 or min(self.split) < 0 or abs(sum(self.split) - 1) > 1e-6:
            raise ValueError(f"split is {self.split}; expected three shares that add up to 1")

    def bounds(self, num_steps: int) -> tuple[int, int]:
        """Return the first validation step and the first test step, of samples that predict the next step.

        As IBM/EvolveGCN splits them: shares of ``num_steps - 1``, the samples that have a next step, rounded down.
        Training has the steps before the first bound; test ends with step ``num_steps - 2``, which predicts the last.
        """
        samples = num_steps - 1
        train = math.floor(samples * self.split[0] + 1e-9)
        return train, math.floor(samples * (self.split[0] + self.split[1]) + 1e-9)
