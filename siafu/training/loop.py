"""The epoch loop: when to score, best weights, early stopping, checkpoints, events, stopping and resuming.

It knows no method: a :class:`~siafu.training.procedure.Procedure` trains an epoch and gives outputs to score. Training
has one stage, or several with patience and best weights of their own. Every call is collective.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf, isfinite
from pathlib import Path

import psutil
import torch

from siafu import native
from siafu.comm.all_gather import all_gather_texts, gather_tensors
from siafu.comm.tensor_bytes import tensor_from_bytes
from siafu.training.checkpoint import LoopState, load_checkpoint, save_checkpoint
from siafu.training.config import TrainConfig
from siafu.training.procedure import EpochStats, Monitor, Procedure, Stage, State

ENDS = ("done", "patience")  # reasons with which training is complete
PAUSED = "paused"  # the reason where training stops at a given epoch


class StopRequested(Exception):
    """Training is to stop within an epoch; its state is saved."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DivergedError(ValueError):
    """A loss or a score is not finite. All ranks raise it alike."""


class Position:
    """The position within the current epoch; see :class:`~siafu.training.procedure.EpochPosition`."""

    def __init__(self, state: LoopState, pause: Callable[[], None]) -> None:
        self._state, self._pause = state, pause
        self.minibatch, self.loss = state.minibatch, state.minibatch_loss

    def advance(self, minibatch: int, loss: float) -> None:
        """Record that so many minibatches are done; a checkpoint or the end of training may follow. Collective."""
        self._state.minibatch, self._state.minibatch_loss = minibatch, loss
        self._pause()


class Loop:
    """Trains one procedure from its first epoch, or a checkpoint, to its end.

    Attributes:
        procedure: the method.
        config: the settings of training.
        state: how far training has come.
    """

    def __init__(self, procedure: Procedure, config: TrainConfig, *, run: str = "") -> None:
        self.procedure, self.config = procedure, config
        self.comm = procedure.comm
        self.state = LoopState(run=run)

    def resume(self, checkpoint: Path | None, *, same_ranks: bool = True) -> None:
        """Go on from a checkpoint of the same run, which rank 0 reads. Collective.

        Unless the ``same_ranks`` wrote it, state of a single rank is left out.
        """
        text = None if checkpoint is None else tensor_from_bytes(checkpoint.read_bytes())
        data = self.comm.broadcast(text, label="checkpoint").numpy().tobytes()
        name = self.comm.broadcast_text(None if checkpoint is None else str(checkpoint), label="checkpoint")
        procedure = self.procedure
        saved = load_checkpoint(
            data, procedure.model, procedure.optimizer.adam, run=self.state.run, what=name
        )
        self.state = saved.loop
        procedure.sent.by_label = saved.loop.bytes_by_label
        tensors = saved.of_rank.get(self.comm.rank, {}) if same_ranks else {}
        procedure.load_state(State(saved.values, tensors))

    def add_scoring(self, seconds: float) -> None:
        """Count the time of scoring the final weights."""
        self.state.score_seconds += seconds
        self.state.seconds += seconds

    def fit(self, monitor: Monitor, *, until: int | None = None) -> str:
        """Train until done or asked to stop, or to epoch ``until``; returns the reason.

        When done, the model holds the best weights.
        """
        self._until = until
        with native.arrays_reused(), _deterministic(self.config.deterministic):
            self._started = time.monotonic() - self.state.seconds
            try:
                self.procedure.begin(monitor, epoch=self.state.epoch)
                reason = self._fit(monitor)
            finally:
                self.procedure.close(monitor)
            self.state.seconds = time.monotonic() - self._started
        monitor.events.write("stop", epoch=self.state.epoch, reason=reason)
        return reason

    def _fit(self, monitor: Monitor) -> str:
        self._saved = -inf if self.procedure.checkpoint_at_once else time.monotonic()
        if not self._is_complete:
            self.procedure.begin_stage(self.state.stage, epoch=self.state.stage_epoch)
        if self.procedure.score_untrained and not self.state.epoch and not self.state.minibatch:
            self._evaluate(0)
        reason = self._finished()
        while reason is None:
            try:
                self._train_epochs(monitor)
                reason = self._pause(monitor)
            except StopRequested as stop:
                reason = stop.reason
        return reason

    @property
    def _is_complete(self) -> bool:
        return self.state.stage >= self.procedure.num_stages

    def _finished(self) -> str | None:
        """The reason why training is complete, or paused; else None."""
        if self._is_complete:
            return self.state.ended or "done"
        return PAUSED if self._until is not None and self.state.epoch >= self._until else None

    def _train_epochs(self, monitor: Monitor) -> None:
        """Train an epoch, or several up to the next that is scored; then end the stage if it is over."""
        epochs = self._next_epochs()
        self._sent = self.comm.meter.total()
        self._epoch_start = time.perf_counter() - self.state.minibatch_seconds
        trained = self.procedure.step(epochs, Position(self.state, lambda: self._pause_within(monitor)))
        seconds = time.perf_counter() - self._epoch_start
        self.state.minibatch, self.state.minibatch_loss, self.state.minibatch_seconds = 0, 0.0, 0.0
        for epoch, stats in enumerate(trained, epochs.start):
            self._end_epoch(monitor, epoch, stats, seconds, scored=epoch == epochs[-1])
        self.procedure.after_epochs(self.state.epoch, monitor)
        if (reason := self._stage_over()) is not None:
            self._end_stage(reason, monitor)

    def _next_epochs(self) -> range:
        """The next epoch and those after it, up to the next that is scored."""
        first, every = self.state.epoch + 1, self.config.scoring_interval
        number = ceil((first - self.state.stage_epoch) / every) * every
        return range(first, self.state.stage_epoch + min(number, self.config.epochs) + 1)

    def _end_epoch(
        self, monitor: Monitor, epoch: int, stats: EpochStats, measured_s: float, *, scored: bool
    ) -> None:
        """Score a trained epoch if it is due, and write its event."""
        self._check_finite(stats.loss, f"the loss of epoch {epoch}")
        state, seconds = self.state, measured_s if stats.seconds is None else stats.seconds
        state.epoch = epoch
        state.epoch_seconds.append(seconds)
        before = self.comm.meter.total()
        trained_bytes = before - self._sent if stats.bytes_sent is None else stats.bytes_sent
        scores = self._evaluate(epoch) if scored else {}
        rss = psutil.Process().memory_info().rss
        state.peak_rss_bytes = max(state.peak_rss_bytes, rss)
        monitor.events.write(
            "epoch",
            epoch=epoch,
            loss=stats.loss,
            lr=self.config.lr_at(epoch - state.stage_epoch),
            seconds=seconds,
            rss_bytes=rss,
            bytes_sent=trained_bytes + self.comm.meter.total() - before,
            **scores,
            **stats.cost,
        )
        most = self.config.epochs * self.procedure.num_stages
        figures = {"loss": stats.loss, "val_score": scores.get("val_score"), "seconds": seconds}
        monitor.callbacks.on_epoch(epoch, most, **figures, **stats.cost)  # type: ignore[arg-type]

    def _evaluate(self, epoch: int) -> dict[str, float | None]:
        began_s = time.perf_counter()
        found = self.procedure.evaluate(epoch)
        self.state.score_seconds += time.perf_counter() - began_s
        self._check_finite(found.val_loss, f"the model's output after epoch {epoch}")
        if self.procedure.task.count["val"]:
            self.keep_best(epoch, found.scores["val"], found.val_loss)
        return {f"{split}_score": score for split, score in found.scores.items()}

    def keep_best(self, epoch: int, score: float | None, loss: float) -> None:
        """Keep the weights if they are the best so far: by the score, then by the loss; a tie is not better.

        A lower loss alone keeps no weights, but shows that training is not done: patience waits for either.
        """
        state, sign = self.state, 1 if self.procedure.task.higher_is_better else -1
        if state.lowest_loss is None or loss < state.lowest_loss:
            state.lowest_epoch, state.lowest_loss = epoch, loss
        best = (sign * (state.best_score or 0), -(state.best_loss or 0))
        if state.best and (sign * (score or 0), -loss) <= best:
            return
        state.best_epoch, state.best_score, state.best_loss = epoch, score, loss
        state.best = self.procedure.weights()

    def _stage_over(self) -> str | None:
        """The reason why the current stage is over, or None."""
        state, config = self.state, self.config
        number = state.epoch - state.stage_epoch
        if number >= config.epochs:
            return "done"
        scored = state.epoch - number % config.scoring_interval
        waited = scored - max(state.best_epoch, state.lowest_epoch)
        return "patience" if config.patience and state.best and waited >= config.patience else None

    def _end_stage(self, reason: str, monitor: Monitor) -> None:
        state = self.state
        ended = Stage(state.stage, state.epoch - state.stage_epoch, state.epoch, state.best_epoch, state.best)
        selected = self.procedure.end_stage(ended, monitor)
        state.stage, state.stage_epoch = state.stage + 1, state.epoch
        self._saved = -inf  # between stages the state is small
        if not self._is_complete:
            state.forget_best()
            self.procedure.begin_stage(state.stage, epoch=state.stage_epoch)
            return
        state.ended = reason if self.procedure.num_stages == 1 else "done"
        if selected is not None:
            state.forget_best()
            state.best_epoch, state.best_score = selected

    def _pause(self, monitor: Monitor) -> str | None:
        """Save a checkpoint if one is due; returns a reason to stop here, or None."""
        due = time.monotonic() - self._saved >= self.config.checkpoint_seconds
        requested, save = self._agree(monitor.callbacks.should_stop(), due)
        reason = requested or self._finished()
        self.state.seconds = time.monotonic() - self._started
        if reason is not None or save:
            self._save(monitor)
            self._saved = time.monotonic()
        monitor.events.flush()
        return reason

    def _pause_within(self, monitor: Monitor) -> None:
        """The same within an epoch."""
        self.state.minibatch_seconds = time.perf_counter() - self._epoch_start
        reason = self._pause(monitor)
        if reason is not None:
            raise StopRequested(reason)

    def _agree(self, requested: str | None, due: bool) -> tuple[str | None, bool]:
        """The reason to stop, if any rank has one, and whether rank 0 finds a checkpoint due."""
        here = torch.tensor([requested is not None, due and self.comm.rank == 0], dtype=torch.int64)
        stop, save = self.comm.all_reduce(here, label="control").tolist()
        if not stop:
            return None, bool(save)
        reasons = all_gather_texts(self.comm, requested or "", label="control")
        return next(filter(None, reasons)), bool(save)

    def _save(self, monitor: Monitor) -> None:
        """Have rank 0 write a checkpoint."""
        monitor.events.flush()  # first, so that no epoch of a checkpoint lacks its event
        start, procedure, state = time.perf_counter(), self.procedure, self.state
        values, tensors = procedure.state()
        of_rank = gather_tensors(self.comm, tensors, label="checkpoint")
        state.bytes_by_label = procedure.sent.update()
        if monitor.checkpoint is None:
            return
        size = save_checkpoint(
            monitor.checkpoint,
            procedure.model,
            procedure.optimizer.adam,
            state,
            values=values,
            of_rank=of_rank,
        )
        seconds = time.perf_counter() - start
        within = {"minibatch": state.minibatch} if state.minibatch else {}
        monitor.events.write("checkpoint", epoch=state.epoch, **within, seconds=seconds, bytes=size)

    def _check_finite(self, value: float, what: str) -> None:
        if not isfinite(value):
            raise DivergedError(
                f"{what} is {value}; lower --lr (now {self.config.lr}) or set train.clip, and look for extreme "
                "values in the features"
            )


@contextmanager
def _deterministic(on: bool) -> Iterator[None]:
    """While it lasts, torch refuses operations whose result may vary; to ask for that imports its compiler."""
    if not on:
        yield
        return
    before, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
