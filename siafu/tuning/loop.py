"""The loop of a search: starts trials, alone or beside other processes, until the budget is spent."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from siafu.inference import Run, open_run
from siafu.results.record import flatten
from siafu.training.procedure import Callbacks
from siafu.tuning.attempt import TIME, Attempt, attempt
from siafu.tuning.budget import Budget
from siafu.tuning.folder import SearchFolder, shrink
from siafu.tuning.lines import trial_line
from siafu.tuning.problem import Problem
from siafu.tuning.space_file import space_to_plain
from siafu.tuning.trial import best_of, count

if TYPE_CHECKING:
    from siafu.tuning.study import Proposal, Study

_MOST_REPEATS = 50  # settings that were tried before, one after another, until a space counts as exhausted
_HOPELESS = 10  # failed trials, if no other has ended
_MOST_LOSSES = 3  # of processes, until a trial counts as failed: it may need more memory than there is
_POLL_S = 0.1


@dataclass(frozen=True)
class SearchLoop:
    """The loop of one process over the trials of a search."""

    problem: Problem
    folder: SearchFolder
    study: "Study"
    budget: Budget
    callbacks: Callbacks

    def run(self) -> str:
        """Run trials until the budget is spent or a stop is requested; returns the reason."""
        said_waiting = False
        while (reason := self.callbacks.should_stop() or self._over()) is None:
            with ExitStack() as held:
                started = self._start(held)
                if isinstance(started, str):
                    return started
                if started is not None:
                    done = attempt(
                        started, self.problem, self.folder, self.study, self.budget, self.callbacks
                    )
                    self._after(started, done)
                    if done.stopped_by is not None:
                        return done.stopped_by
                    continue
            if not said_waiting:
                self.callbacks.say("waiting for trials of other processes")
            said_waiting = True
            time.sleep(_POLL_S)
        return reason

    def _over(self) -> str | None:
        """Return the reason why no further trial is to start, or None."""
        trials = self.study.trials()
        counted, failed = count(trials, "completed", "pruned"), count(trials, "failed")
        if self.budget.trials is not None and counted >= self.budget.trials:
            return "trials"
        if not counted and failed >= _HOPELESS:
            first = next(trial.message for trial in trials if trial.state == "failed")
            raise ValueError(f"all {failed} trials failed; the first: {first}")
        if self.budget.trials is not None and failed > 2 * self.budget.trials + _HOPELESS:
            return "failures"
        return TIME if self.budget.is_over() else None

    def _start(self, held: ExitStack) -> "Proposal | str | None":
        """Start a trial, or take one over whose process has stopped; ``held`` then holds its lock.

        Returns the reason to end where the space is exhausted, and None where other processes run all trials left.
        """
        with self.folder.locked():
            for trial in self.study.trials():
                if (
                    trial.state == "interrupted"
                    and (taken := self._take_over(trial.number, held)) is not None
                ):
                    return taken
            started = count(self.study.trials(), "completed", "pruned", "interrupted")
            if self.budget.trials is not None and started >= self.budget.trials:
                return None
            return self._ask(held)

    def _take_over(self, number: int, held: ExitStack) -> "Proposal | None":
        """Take a trial over, unless another process runs it, or has just ended it; one that was lost often fails."""
        lock = self.folder.try_lock(number)
        if lock is None:
            return None
        with lock:
            if not self.study.is_running(number):
                return None
            proposal = self.study.take_over(number)
            if self.study.num_losses >= _MOST_LOSSES:
                self.study.fail(f"its process was lost {_MOST_LOSSES} times, perhaps for want of memory")
                self._say(number)
                return None
            held.push(lock.pop_all())
            return proposal

    def _ask(self, held: ExitStack) -> "Proposal | str":
        """Start the next trial whose settings were not tried before."""
        for _ in range(_MOST_REPEATS):
            proposal = self.study.ask()
            if proposal.recipe or proposal.settings not in self.study.tried(proposal.number):
                lock = self.folder.try_lock(proposal.number)
                assert lock is not None, "a trial that has just been made"
                held.push(lock)
                return proposal
            self.study.skip()
        return "space"

    def _after(self, proposal: "Proposal", done: Attempt) -> None:
        """Write the results after a trial, and say what came of it."""
        if done.stopped_by is not None:
            self._check_first(proposal, done)
            return
        with self.folder.locked():
            ended = {self.folder.linked, self.folder.trial(proposal.number)}
            self.write_results()
            for path in ended - {self.folder.linked}:
                if path is not None:
                    shrink(path)
        self._say(proposal.number)

    def _say(self, number: int) -> None:
        """Say what came of a trial."""
        trials = self.study.trials()
        best = best_of(trials, higher_is_better=self.problem.task.higher_is_better)
        spare = count(trials, "failed") + self.study.num_repeated()
        total = None if self.budget.trials is None else self.budget.trials + spare
        trial = next(trial for trial in trials if trial.number == number)
        self.callbacks.say(trial_line(trial, best, metric=self.problem.task.metric, total=total))

    def _check_first(self, proposal: "Proposal", done: Attempt) -> None:
        """Refuse a time budget that ends before the first trial does."""
        if done.stopped_by == TIME and not count(self.study.trials(), "completed"):
            epochs = self.problem.config.max_epochs
            raise ValueError(
                f"the time budget of {self.budget.wanted.seconds:g} s is too short for one trial: trial "
                f"{proposal.number} had run {done.seconds:.1f} s and {done.epochs} of at most {epochs} epochs; give "
                f"more --time (with --out {self.folder.path} the search goes on from there), or fewer epochs (--epochs)"
            )

    def write_results(self, *, test_score: bool = False) -> Run | None:
        """Write the trials and the link to the best one; returns its run if the ``test_score`` is wanted."""
        trials = self.study.trials()
        best = best_of(trials, higher_is_better=self.problem.task.higher_is_better)
        run = None
        if best is not None:
            self.folder.link_best(best.number)
            run = open_run(self.folder.trial(best.number)) if test_score else None
        graph, config = self.problem.graph, self.problem.config
        self.folder.write_trials(
            {
                "data": graph.name,
                "method": config.method,
                "metric": self.problem.task.metric,
                "higher_is_better": self.problem.task.higher_is_better,
                "fixed": flatten(self.problem.fixed),
                "space": space_to_plain(self.problem.space),
                "trials": [trial.to_json() for trial in trials],
                "best": None if best is None else best.number,
                "test_score": None if run is None else run.metrics["test_score"],
                "importance": self.study.importance(),
                "seconds": self.study.seconds(),
            }
        )
        return run
