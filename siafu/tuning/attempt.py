"""One trial: an ordinary run, which is watched, and stopped early if other trials were better at the same epoch."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from siafu import run as runs
from siafu.config import GivenSettings
from siafu.inference import Run
from siafu.training.procedure import Callbacks
from siafu.tuning.budget import Budget
from siafu.tuning.folder import SearchFolder
from siafu.tuning.problem import Problem

if TYPE_CHECKING:
    from siafu.tuning.study import Proposal, Study

PRUNED, TIME = "pruned", "time"
_NO_MEMORY = "can't allocate memory"  # torch has no error of its own


@dataclass
class Watcher:
    """Reports the scores of a trial as it trains, and gives a reason to stop it."""

    study: "Study"
    problem: Problem
    budget: Budget
    callbacks: Callbacks
    epoch: int = 0
    _best: float | None = None
    _next: int = 0
    _pruned: bool = False

    def __post_init__(self) -> None:
        self._best, self._next = self.study.best_so_far(), self.problem.interval

    def on_epoch(self, epoch: int, total: int, *, val_score: float | None, **figures: Any) -> None:
        """Report the best score so far, at each multiple of the interval."""
        self.callbacks.on_epoch(epoch, total, val_score=val_score, **figures)
        self.epoch = epoch
        if val_score is None:
            return
        better = max if self.problem.task.higher_is_better else min
        self._best = val_score if self._best is None else better(self._best, val_score)
        if epoch >= self._next:
            step = epoch - epoch % self.problem.interval
            self._next = step + self.problem.interval
            self._pruned |= self.study.report(step, self._best) and self.problem.prunes

    def reason(self) -> str | None:
        """Return a reason to stop the run, or None."""
        requested = self.callbacks.should_stop()
        if requested is not None:
            return requested
        if self.budget.is_over():
            return TIME
        return PRUNED if self._pruned else None


@dataclass(frozen=True)
class Attempt:
    """The outcome of running a trial.

    Attributes:
        stopped_by: the reason why it was stopped before its end without being pruned; None if the trial has ended.
        epochs: the number of epochs that it trained.
        seconds: its time.
    """

    stopped_by: str | None
    epochs: int
    seconds: float


def attempt(
    proposal: "Proposal",
    problem: Problem,
    folder: SearchFolder,
    study: "Study",
    budget: Budget,
    callbacks: Callbacks,
) -> Attempt:
    """Run a trial, or resume its run, and tell the study what came of it."""
    began, watcher = time.time(), Watcher(study, problem, budget, callbacks)

    def attempted(stopped_by: str | None) -> Attempt:
        return Attempt(stopped_by, watcher.epoch, time.time() - began)

    study.begin()
    watched = Callbacks(watcher.on_epoch, watcher.reason, on_training=callbacks.on_training)
    try:
        run = _run(proposal, problem, folder, watched)
    except (ValueError, MemoryError, RuntimeError) as error:
        study.add_time(began, time.time())
        if isinstance(error, RuntimeError) and _NO_MEMORY not in str(error):
            raise
        study.fail(str(error) or "not enough memory")
        return attempted(None)
    except BaseException:
        study.add_time(began, time.time())
        raise
    study.add_time(began, time.time())
    return attempted(_tell(run, problem, study))


def _run(proposal: "Proposal", problem: Problem, folder: SearchFolder, callbacks: Callbacks) -> Run:
    path = folder.trial(proposal.number)
    if (path / "config.toml").is_file():
        return runs.resume(path, graph=problem.graph, callbacks=callbacks)
    given = GivenSettings(file=problem.tables(proposal.settings))  # a kind of model may not have all of them
    return runs.train_given(problem.loaded, given, out=path, callbacks=callbacks)


def _tell(run: Run, problem: Problem, study: "Study") -> str | None:
    """Tell the study how a run has ended; returns the reason if it can go on later."""
    metrics = run.metrics
    if metrics["finished"]:
        score = metrics["val_score"]
        if score is None:
            study.fail(f"its validation {metrics['metric']} is undefined")
        else:
            study.complete(score, problem.searched(run.settings))
        return None
    if metrics["stopped_by"] == PRUNED:
        study.prune()
        return None
    return str(metrics["stopped_by"])
