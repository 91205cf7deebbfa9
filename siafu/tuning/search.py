"""``tune``: search recipes and models for a graph, trial after trial, alone or with other processes."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from siafu.config import GivenSettings, from_keywords
from siafu.data_warnings import data_warnings
from siafu.inference import Run
from siafu.load_graph import AnyGraph
from siafu.preview import describe
from siafu.results.progress import in_notebook
from siafu.results.record import flatten
from siafu.signals import resume_hint
from siafu.training.procedure import Callbacks
from siafu.tuning.attempt import TIME
from siafu.tuning.budget import Budget, Wanted
from siafu.tuning.folder import SearchFolder, search_folder
from siafu.tuning.loop import SearchLoop
from siafu.tuning.problem import Problem, pose
from siafu.tuning.space_file import space_from_plain, space_to_plain
from siafu.tuning.trial import Trial, count

if TYPE_CHECKING:
    from siafu.tuning.study import Study

_PRUNE_FROM = 20  # epochs; at least a quarter of those that a run has by default


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
    config: Mapping[str, Any] | Path | str | None = None,
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
        config: whole tables of settings, or the path of a TOML file, as for :func:`siafu.train`.
        callbacks: functions to call; ``say`` receives a line per trial, by default printed on a terminal.
        settings: settings by their keys, as for :func:`siafu.train`.
    """
    if isinstance(model, nn.Module):
        raise ValueError("model is a module of your own; siafu tune searches over siafu's own models")
    if callbacks is not None and not isinstance(callbacks, Callbacks):
        raise ValueError(
            f"callbacks is a {type(callbacks).__name__}; siafu.tune takes a siafu.training.procedure.Callbacks, and "
            "siafu.train a list of siafu.Callback"
        )
    named: dict[str, Any] = {"model": {"kind": model}} if model else {}
    chosen: dict[str, Any] = {"train": {"metric": metric}} if metric else {}
    given = GivenSettings.of(config, from_keywords(settings), named, chosen)
    given.check()
    found = search(
        graph,
        given=given,
        space=space,
        wanted=Wanted.of(trials=trials, time=time),
        out=None if out is None else Path(out),
        callbacks=callbacks or _default_callbacks(),
        hint=lambda path: f"siafu.tune(…, out={str(path)!r})",
    )
    return replace(found, best=None if found.best is None else found.best.with_graph(graph))


def search(
    graph: AnyGraph | str | Path,
    *,
    given: GivenSettings,
    space: Path | str | Mapping[str, Any] | None,
    wanted: Wanted,
    out: Path | None,
    callbacks: Callbacks,
    hint: Callable[[Path], str],
) -> Search:
    """Start, join or extend a search.

    ``given`` are the settings, ``hint`` returns the command or call that goes on after an interrupt.
    """
    from siafu.tuning.study import Study  # first: it needs an optional package

    problem = pose(graph, given=given, space=space, callbacks=callbacks)
    folder = search_folder(out, name=f"tune-{problem.graph.name}")
    with resume_hint(hint(folder.path), outermost=True):
        study, problem = _join(problem, folder, Study)
        _introduce(problem, folder, study, callbacks)
        budget = Budget.of(wanted, spent=study.seconds())
        loop = SearchLoop(problem, folder, study, budget, callbacks)
        stopped_by = loop.run()
        with folder.locked():
            best = loop.write_results(test_score=True)
        if best is None and stopped_by == TIME:  # trials of other processes run
            raise ValueError(
                f"{folder.path}: the time budget is spent, but no trial is completed; give more --time"
            )
        trials = tuple(study.trials())
        return Search(best, trials, folder.path, problem.task.metric, study.seconds(), stopped_by)


def _default_callbacks() -> Callbacks:
    shown = in_notebook() or sys.stderr.isatty()
    return Callbacks(say=lambda text: print(text, file=sys.stderr, flush=True)) if shown else Callbacks()


def _join(problem: Problem, folder: SearchFolder, open_study: "type[Study]") -> "tuple[Study, Problem]":
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
        study = open_study(
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


def _introduce(problem: Problem, folder: SearchFolder, study: "Study", callbacks: Callbacks) -> None:
    callbacks.say(describe(problem.graph, problem.config, problem.task))
    for text in data_warnings(problem.graph, problem.task):
        callbacks.say(f"warning: {text}")
    known = count(study.trials(), "completed", "pruned")
    begun = f", which has {known} trials" if known else ""
    fixed = ", ".join(f"{key} = {value}" for key, value in flatten(problem.fixed).items())
    names = ", ".join(dict.fromkeys(entry.key for entry in problem.space))
    callbacks.say(f"searching {names} in {folder.path}{begun}" + (f"; fixed: {fixed}" if fixed else ""))
