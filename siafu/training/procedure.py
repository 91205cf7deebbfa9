"""``Procedure``: the part of training that differs by method. The epoch loop (``loop.py``) calls it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from siafu.comm import Comm
from siafu.event_log import EventLog, NullEventLog, Progress, no_progress
from siafu.training.byte_counter import ByteCounter
from siafu.training.optimizer import DistributedOptimizer

Scores = dict[str, float | None]


class EpochCallback(Protocol):
    """Called after each epoch with its loss, validation score, duration and, if metered, cost."""

    def __call__(
        self,
        epoch: int,
        total: int,
        *,
        loss: float,
        val_score: float | None,
        seconds: float,
        dollars: float | None = None,
        value: float | None = None,
    ) -> None:
        """Receive the figures of ``epoch``, one of at most ``total``."""


def _ignore(*_: Any, **__: Any) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Callbacks:
    """Functions of the caller that a run calls.

    Attributes:
        on_epoch: called after each epoch.
        should_stop: called after each epoch; returns a reason to stop, or None.
        progress: called while data are downloaded or imported.
        say: called with a line for a person to read.
        on_training: called before the first epoch; from then on ``should_stop`` is called.
        on_start: called once before training, with the folder of the run and its config.
        on_end: called once after training, with the run.
    """

    on_epoch: EpochCallback = _ignore
    should_stop: Callable[[], str | None] = lambda: None
    progress: Progress = no_progress
    say: Callable[[str], None] = lambda _: None
    on_training: Callable[[], None] = lambda: None
    on_start: Callable[[Path, Any], None] = _ignore
    on_end: Callable[[Any], None] = _ignore


@dataclass(frozen=True)
class Monitor:
    """The outputs of a training loop on one rank.

    Attributes:
        events: the log of the run; ranks other than 0 write none.
        checkpoint: the file of the checkpoint; None on ranks other than 0.
        callbacks: functions of the caller.
    """

    events: EventLog | NullEventLog
    checkpoint: Path | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)


class EpochStats(NamedTuple):
    """The figures of one trained epoch.

    Attributes:
        loss: the mean training loss.
        seconds, bytes_sent: its duration and this rank's traffic; None where the loop is to measure them.
        cost: dollars and value, where they are metered.
    """

    loss: float
    seconds: float | None = None
    bytes_sent: int | None = None
    cost: Mapping[str, float] = MappingProxyType({})


class Evaluation(NamedTuple):
    """The chosen metric of each split that was scored, and the mean loss over the validation split."""

    scores: Scores
    val_loss: float


class Selection(NamedTuple):
    """The epoch whose weights a model keeps, and its validation score."""

    epoch: int
    score: float | None


class State(NamedTuple):
    """The state of a procedure in a checkpoint.

    Attributes:
        values: plain JSON values, the same on all ranks.
        tensors: state of this rank alone, such as residuals of error feedback.
    """

    values: dict[str, Any]
    tensors: dict[str, Tensor]


class Stage(NamedTuple):
    """A stage of training that has ended.

    Attributes:
        number: its number, from 0.
        epochs: the number of epochs that it took.
        last_epoch: its last epoch.
        best_epoch: the epoch with the best validation score; 0 without one.
        best: the weights of that epoch; empty without one.
    """

    number: int
    epochs: int
    last_epoch: int
    best_epoch: int
    best: dict[str, Tensor]


class EpochPosition(Protocol):
    """The position within an epoch of several minibatches, as the loop knows it.

    Attributes:
        minibatch: minibatches of this epoch that are done; above 0 where a run was resumed within an epoch.
        loss: the sum of their losses.
    """

    minibatch: int
    loss: float

    def advance(self, minibatch: int, loss: float) -> None:
        """Record that so many minibatches are done; the loop may save a checkpoint or stop here. Collective."""


class Procedure:
    """One method of training on one rank. Every call is collective.

    Attributes:
        model: the model that is trained.
        task: the task, which has losses and scores.
        comm: the group of ranks.
        optimizer: its state is saved in checkpoints.
        in_features: the width of the model's inputs.
        sent: counts the bytes of all ranks.
        num_stages: training has so many stages, each with its own epochs, patience and best weights; 0 where
            ``begin`` fits the model without any epoch.
        checkpoint_at_once: whether the first epoch is followed by a checkpoint.
        score_untrained: whether the model is scored before the first epoch, too.
        traced: whether it writes events of single tasks, for a trace.
    """

    num_stages: int = 1
    checkpoint_at_once: ClassVar[bool] = True
    score_untrained: bool = False
    traced: ClassVar[bool] = False
    model: nn.Module
    task: Any
    comm: Comm
    optimizer: DistributedOptimizer
    in_features: int
    sent: ByteCounter

    def step(self, epochs: range, position: EpochPosition) -> Sequence[EpochStats]:
        """Train the first of ``epochs``, or several in one go; the last of them is the next that is scored."""
        raise NotImplementedError

    def outputs(self) -> Any:
        """Compute the outputs that the task scores, without dropout: ordinarily those of every row of this rank."""
        raise NotImplementedError

    def outputs_of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Load the weights of a model that has been trained, and compute its outputs as :meth:`outputs` does."""
        self.model.load_state_dict(weights)
        return self.outputs()

    def evaluate(self, epoch: int) -> Evaluation:
        """Score the model after an epoch."""
        return Evaluation(*self.task.evaluate(self.outputs()))

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights that ``evaluate`` has scored."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def begin(self, monitor: Monitor, *, epoch: int) -> None:
        """Prepare training; ``epoch`` epochs are done."""

    def begin_stage(self, number: int, *, epoch: int) -> None:
        """Start or resume a stage, before which ``epoch`` epochs were done."""

    def after_epochs(self, epoch: int, monitor: Monitor) -> None:
        """Write further events after the epochs of a step, the last of which is ``epoch``."""

    def end_stage(self, stage: Stage, monitor: Monitor) -> Selection | None:
        """End a stage with its best weights; returns the selected epoch where it is not that of the stage."""
        if stage.best:
            self.model.load_state_dict(stage.best)
        return None

    def close(self, monitor: Monitor) -> None:
        """Release what ``begin`` acquired; called in every case."""

    def state(self) -> State:
        """The state that resumes training exactly, besides weights and optimiser."""
        return State({}, {})

    def load_state(self, state: State) -> None:
        """Take a state back; its tensors are missing where other ranks wrote the checkpoint."""

    def metrics(self, seconds: float) -> dict[str, Any]:
        """The figures that this method alone measures, after so many seconds of training."""
        return {}


class StartOfEpoch:
    """The position of an epoch that is trained from its start, without a loop."""

    minibatch, loss = 0, 0.0

    def advance(self, minibatch: int, loss: float) -> None:
        """Go on."""


def train_epoch(procedure: Procedure, epoch: int) -> float:
    """Train one epoch without a loop, so without scores, checkpoints and events; returns its loss. Collective."""
    return procedure.step(range(epoch, epoch + 1), StartOfEpoch())[-1].loss
