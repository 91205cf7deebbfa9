"""``tune``: search recipes and models for a graph, trial after trial, alone or with other processes."""

import sys
import time as clock
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from siafu.config import from_keywords, merge
from siafu.data_warnings import data_warnings
from siafu.inference import Run, open_run
from siafu.load_graph import AnyGraph
from siafu.preview import describe
from siafu.results.progress import in_notebook
from siafu.results.record import flatten
from siafu.signals import resume_hint
from siafu.training.procedure import Callbacks
from siafu.tuning.attempt import TIME, Attempt, attempt
from siafu.tuning.budget import Budget, Wanted
from siafu.tuning.folder import SearchFolder, search_folder
from siafu.tuning.lines import trial_line
from siafu.tuning.problem import Problem, pose
from siafu.tuning.space_file import space_from_plain, space_to_plain
from siafu.tuning.study import Proposal, Study
from siafu.tuning.trial import Trial, best_of, count

_MOST_REPEATS = 50  # settings that were tried before, one after another, until a space counts as exhausted
_HOPELESS = 10  # failed trials, if no other has ended
_PRUNE_FROM = 20  # epochs; at least a quarter of those that a run has by default
_POLL_S = 0.1


@dataclass(frozen=True)
class Search:
    """A search, as it is after a call of :func:`tune`.

    Attributes:
        best: the run of the best trial, by validation scores; None if the search was stopped before one was completed.
        trials: all trials, those of other processes too.
        directory: the folder of the search; call ``tune`` with ``out=`` this folder to extend it.
        metric: the metric of the scores.
        seconds: the time during which trials ran, over all calls.
        stopped_by: ``trials`` or ``time``: the budget is spent; ``space``: all its settings were tried; ``failures``:
            too many trials failed; or the name of a signal.
    """

    best: Run | None
    trials: tuple[Trial, ...]
    directory: Path
    metric: str
    seconds: float
    stopped_by: str

    @property
    def summary(self) -> dict[str, Any]:
        """The object that ``siafu tune --json`` prints. Test scores are those of the best trial alone."""
        best = self.best
        number = None if best is None else int(best.directory.name.rpartition("-")[2])
        settings = next((trial.settings for trial in self.trials if trial.number == number), {})
        completed, pruned = count(self.trials, "completed"), count(self.trials, "pruned")
        return {
            "run": None if best is None else str(best.directory),
            "search": str(self.directory),
            "trials": completed + pruned,
            "completed": completed,
            "pruned": pruned,
            "failed": count(self.trials, "failed"),
            "val_score": None if best is None else best.metrics["val_score"],
            "test_score": None if best is None else best.metrics["test_score"],
            "metric": self.metric,
            "model": None if best is None else best.metrics["model"],
            "settings": settings,
            "seconds": self.seconds,
            "stopped_by": self.stopped_by,
        }


def tune(
    graph: AnyGraph | str | Path,
    *,
    model: str | None = None,
    time: str | float | None = None,
    trials: int | None = None,
    metric: str | None = None,
    space: Path | str | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    **settings: Any,
) -> Search:
    """Search recipes and models for a graph; the best trial, by its validation score, is an ordinary run.

    Settings that you give are never varied. Needs Optuna (``pip install 'siafu[tune]'``).

    Args:
        graph: a graph, its name or path, as for :func:`siafu.train`.
        model: a kind of model; by default several are tried.
        time: the time that the search may take, such as "30m", or a number of seconds.
        trials: the number of trials, completed or stopped early; 50 if neither time nor trials is given.
        metric: the metric of the validation nodes that chooses.
        space: the settings to vary and their values: a TOML file or a mapping; by default siafu's own.
        out: the folder of the search, which is new or is extended; by default a new one under ``runs/``.
        config: whole tables of settings, as in a TOML file.
        callbacks: functions to call; ``say`` receives a line per trial, by default printed on a terminal.
        settings: settings by their keys, as for :func:`siafu.train`.
    """
    if isinstance(model, nn.Module):
        raise ValueError("model is a module of your own; siafu tune searches over siafu's own models")
    named: dict[str, Any] = {"model": {"kind": model}} if model else {}
    chosen: dict[str, Any] = {"train": {"metric": metric}} if metric else {}
    given = merge(config or {}, from_keywords(settings), named, chosen)
    return search(
        graph,
        given=given,
        space=space,
        wanted=Wanted.of(trials=trials, time=time),
        out=None if out is None else Path(out),
        callbacks=callbacks or _default_callbacks(),
        hint=lambda path: f"siafu.tune(…, out={str(path)!r})",
    )


def search(
    graph: AnyGraph | str | Path,
    *,
    given: dict[str, Any],
    space: Path | str | Mapping[str, Any] | None,
    wanted: Wanted,
    out: Path | None,
    callbacks: Callbacks,
    hint: Callable[[Path], str],
) -> Search:
    """Start, join or extend a search.

    ``given`` are tables of settings, ``hint`` returns the command or call that goes on after an interrupt.
    """
    problem = pose(graph, given=given, space=space, callbacks=callbacks)
    folder = search_folder(out, name=f"tune-{problem.graph.name}")
    with resume_hint(hint(folder.path), outermost=True):
        study, problem = _join(problem, folder)
        _introduce(problem, folder, study, callbacks)
        budget = Budget.of(wanted, spent=study.seconds())
        loop = _Loop(problem, folder, study, budget, callbacks)
        return loop.result(loop.run())


def _default_callbacks() -> Callbacks:
    shown = in_notebook() or sys.stderr.isatty()
    return Callbacks(say=lambda text: print(text, file=sys.stderr, flush=True)) if shown else Callbacks()


def _join(problem: Problem, folder: SearchFolder) -> tuple[Study, Problem]:
    """Start the search in the folder, or join it if it was started with the same data and settings."""
    with folder.locked():
        header = folder.read_header()
        if header is None:
            header = problem.identity | {
                "space": space_to_plain(problem.space),
                "metric": problem.task.metric,
            }
            folder.write_header(header)
        _check_same(problem, header, folder)
        problem = replace(problem, space=space_from_plain(header["space"]))
        study = Study(
            folder.journal,
            problem.space,
            kind=problem.kind,
            seed=problem.config.seed,
            higher_is_better=problem.task.higher_is_better,
            prune_from=max(_PRUNE_FROM, 5 * problem.interval),
        )
        study.queue(problem.recipes())
    return study, problem


def _check_same(problem: Problem, header: Mapping[str, Any], folder: SearchFolder) -> None:
    """Refuse to join a search of other data, with other fixed settings or another space."""
    identity = problem.identity
    if identity["fingerprint"] != header["fingerprint"]:
        raise ValueError(
            f"{folder.path}: a search on other data: {problem.graph.name} has the fingerprint "
            f"{identity['fingerprint']}, but search.json says {header['fingerprint']}; choose another --out"
        )
    here, there = ({**found["fixed"], "seed": found["seed"]} for found in (identity, header))
    for key in sorted({*here, *there}):
        if here.get(key) != there.get(key):
            now, before = (repr(found[key]) if key in found else "not set" for found in (here, there))
            raise ValueError(
                f"{folder.path}: a search with other settings: {key} is {now}, but was {before} when the search was "
                "started; give the same settings, or choose another --out"
            )
    if identity["own_space"] != header["own_space"]:
        raise ValueError(
            f"{folder.path}: a search with another space; give the same --space, or choose another --out"
        )


def _introduce(problem: Problem, folder: SearchFolder, study: Study, callbacks: Callbacks) -> None:
    callbacks.say(describe(problem.graph, problem.config, problem.task))
    for text in data_warnings(problem.graph, problem.task):
        callbacks.say(f"warning: {text}")
    known = count(study.trials(), "completed", "pruned")
    begun = f", which has {known} trials" if known else ""
    fixed = ", ".join(f"{key} = {value}" for key, value in flatten(problem.fixed).items())
    names = ", ".join(dict.fromkeys(entry.key for entry in problem.space))
    callbacks.say(f"searching {names} in {folder.path}{begun}" + (f"; fixed: {fixed}" if fixed else ""))


@dataclass(frozen=True)
class _Loop:
    """The loop of one process over the trials of a search."""

    problem: Problem
    folder: SearchFolder
    study: Study
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
            clock.sleep(_POLL_S)
        return reason

    def result(self, stopped_by: str) -> Search:
        """Write the results, with the test score of the best trial, and return the search."""
        with self.folder.locked():
            best = self._write(test_score=True)
        trials = tuple(self.study.trials())
        if best is None and stopped_by == TIME:  # another process may have trials that run
            raise ValueError(
                f"{self.folder.path}: the time budget is spent, but no trial is completed; give more --time"
            )
        metric = self.problem.task.metric
        return Search(best, trials, self.folder.path, metric, self.study.seconds(), stopped_by)

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

    def _start(self, held: ExitStack) -> Proposal | str | None:
        """Start a trial, or take one over whose process has stopped; ``held`` then holds its lock.

        Returns the reason to end where the space is exhausted, and None where other processes run all trials left.
        """
        with self.folder.locked():
            trials = self.study.trials()
            running = count(trials, "completed", "pruned")
            for trial in trials:
                if trial.state != "interrupted":
                    continue
                lock = self.folder.try_lock(trial.number)
                if lock is not None:
                    held.push(lock)
                    return self.study.take_over(trial.number)
                running += 1
            if self.budget.trials is not None and running >= self.budget.trials:
                return None
            return self._ask(held)

    def _ask(self, held: ExitStack) -> Proposal | str:
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

    def _after(self, proposal: Proposal, done: Attempt) -> None:
        """Write the results after a trial, and say what came of it."""
        if done.stopped_by is not None:
            self._check_first(proposal, done)
            return
        with self.folder.locked():
            self._write()
        trials = self.study.trials()
        best = best_of(trials, higher_is_better=self.problem.task.higher_is_better)
        spare = count(trials, "failed") + self.study.num_repeated()
        total = None if self.budget.trials is None else self.budget.trials + spare
        trial = next(trial for trial in trials if trial.number == proposal.number)
        self.callbacks.say(trial_line(trial, best, metric=self.problem.task.metric, total=total))

    def _check_first(self, proposal: Proposal, done: Attempt) -> None:
        """Refuse a time budget that ends before the first trial does."""
        if done.stopped_by == TIME and not count(self.study.trials(), "completed"):
            epochs = self.problem.config.max_epochs
            raise ValueError(
                f"the time budget of {self.budget.wanted.seconds:g} s is too short for one trial: trial "
                f"{proposal.number} had run {done.seconds:.1f} s and {done.epochs} of at most {epochs} epochs; give more --time (with --out "
                f"{self.folder.path} the search goes on from there), or fewer epochs (--epochs)"
            )

    def _write(self, *, test_score: bool = False) -> Run | None:
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
