"""The study of a search: sampling (TPE), early stopping (median pruner) and importance, by Optuna.

Only this file names Optuna. Its storage is a :class:`~siafu.tuning.journal.Journal`, which holds plain JSON: nothing in
it is unpickled or evaluated. The values of each trial are sampled from the seed and the trial's number, so that a
search that was stopped goes on with the same trials.
"""

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from siafu.extras import require_extra
from siafu.tuning.journal import Journal
from siafu.tuning.space import Choices, Entry, Settings, Space, active
from siafu.tuning.trial import State, Trial

with require_extra("siafu tune", "optuna"):
    import optuna
    from optuna.trial import TrialState

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

_NAME = "search"
_RANDOM_TRIALS = 10  # so many trials before TPE begins; queued ones count
_UNPRUNED_TRIALS = 5
_STATES: Mapping[TrialState, State] = {
    TrialState.COMPLETE: "completed",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "interrupted",
}


class Proposal(NamedTuple):
    """The settings that a trial is to try; ``recipe`` names the queued recipe, if they come from one."""

    number: int
    settings: Settings
    recipe: str


class Study:
    """All trials of a search, and the one that this process runs."""

    def __init__(
        self, path: Path, space: Space, *, kind: str, seed: int, higher_is_better: bool, prune_from: int
    ) -> None:
        """Open or create the study in the journal ``path``.

        Args:
            path: the journal.
            space: the space.
            kind: the kind of model where the space does not vary it.
            seed: the seed of the sampler.
            higher_is_better: whether larger scores are better.
            prune_from: the first epoch at which a trial may be stopped early.
        """
        self._space, self._kind = space, kind
        journal: Any = Journal(path)
        how: Any = {
            "study_name": _NAME,
            "storage": optuna.storages.JournalStorage(journal),
            "sampler": CountedSampler(seed),
            "pruner": optuna.pruners.MedianPruner(
                n_startup_trials=_UNPRUNED_TRIALS, n_warmup_steps=prune_from, n_min_trials=3
            ),
        }
        with _quiet():
            if any(journal.read_logs(0)):
                self._study = optuna.load_study(**how)
            else:
                self._study = optuna.create_study(
                    **how, direction="maximize" if higher_is_better else "minimize"
                )
        self._trial: optuna.trial.Trial | None = None

    def queue(self, recipes: Sequence[tuple[str, Settings, Settings]]) -> None:
        """Queue trials that were not queued before: of each the name, the settings, and their place in the space."""
        queued = {trial.user_attrs.get("recipe") for trial in self._frozen()}
        for name, settings, place in recipes:
            if name not in queued:
                fixed = {
                    entry.name: _encode(entry, place[entry.key])
                    for entry in active(self._space, str(place.get("model.kind", self._kind)))
                    if entry.key in place and not _is_single(entry)
                }
                self._study.enqueue_trial(
                    fixed, user_attrs={"recipe": name, "given": settings, "place": fixed}
                )

    def ask(self) -> Proposal:
        """Start the next trial."""
        with _quiet():
            self._trial = self._study.ask()
            return self._propose(self._trial)

    def take_over(self, number: int) -> Proposal:
        """Go on with a trial whose process has stopped."""
        with _quiet():
            storage, study_id = self._study._storage, self._study._study_id
            trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, number - 1)
            self._trial = optuna.trial.Trial(self._study, trial_id)
            return self._propose(self._trial)

    def report(self, epoch: int, score: float) -> bool:
        """Report the best validation score up to an epoch; returns whether the trial is to stop early."""
        trial, known = self._running, self._curve_of(self._running.number)
        if known and epoch <= max(known):
            return False
        trial.report(score, epoch)
        return trial.should_prune()

    def best_so_far(self) -> float | None:
        """Return the last score that was reported of the running trial, before its process stopped."""
        known = self._curve_of(self._running.number)
        return known[max(known)] if known else None

    def begin(self) -> None:
        """Record that a process runs the trial."""
        self._running.set_user_attr("starts", int(self._running.user_attrs.get("starts", 0)) + 1)

    @property
    def num_losses(self) -> int:
        """The number of processes that were lost while they ran the trial."""
        attributes = self._running.user_attrs
        return int(attributes.get("starts", 0)) - len(attributes.get("spans", []))

    def is_running(self, number: int) -> bool:
        """Return whether a trial has neither ended nor failed."""
        return self._frozen()[number - 1].state == TrialState.RUNNING

    def add_time(self, began: float, ended: float) -> None:
        """Record when this process ran the trial, in seconds since 1970."""
        spans = self._running.user_attrs.get("spans", [])
        self._running.set_user_attr("spans", [*spans, [began, ended]])

    def complete(self, score: float, settings: Settings) -> None:
        """End the trial with its validation score; ``settings`` are the values of the searched settings in its run."""
        self._running.set_user_attr("settings", settings)
        self._study.tell(self._running.number, score)

    def prune(self) -> None:
        """End the trial early."""
        self._study.tell(self._running.number, state=TrialState.PRUNED)

    def fail(self, message: str) -> None:
        """End the trial with an error."""
        self._running.set_user_attr("message", message)
        self._study.tell(self._running.number, state=TrialState.FAIL)

    def skip(self) -> None:
        """End the trial without a run, since an earlier one tried the same settings."""
        self._running.set_user_attr("repeated", True)
        self._study.tell(self._running.number, state=TrialState.FAIL)

    def tried(self, number: int) -> list[Settings]:
        """Return the settings of all trials that were started before the trial with this number."""
        return [self._given(trial) for trial in self._frozen() if trial.number < number - 1]

    def trials(self) -> list[Trial]:
        """Return all trials that were started, without repeated ones."""
        return [
            self._record(trial)
            for trial in self._frozen()
            if trial.state in _STATES and "repeated" not in trial.user_attrs
        ]

    def num_repeated(self) -> int:
        """Count the trials that were skipped."""
        return sum("repeated" in trial.user_attrs for trial in self._frozen())

    def seconds(self) -> float:
        """Return the seconds during which at least one process ran a trial."""
        spans = sorted(span for trial in self._frozen() for span in trial.user_attrs.get("spans", []))
        total, until = 0.0, -math.inf
        for began, ended in spans:
            total += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return total

    def importance(self) -> dict[str, float]:
        """Compute the importance of each searched setting (PED-ANOVA); empty with fewer than 8 completed trials."""
        completed = [trial for trial in self._frozen() if trial.state == TrialState.COMPLETE]
        if len(completed) < 8 or len({trial.value for trial in completed}) < 2:
            return {}
        with _quiet():
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            found = optuna.importance.get_param_importances(self._study, evaluator=evaluator)
        return {name: float(value) for name, value in found.items() if math.isfinite(value)}

    @property
    def _running(self) -> "optuna.trial.Trial":
        assert self._trial is not None, "no trial was started"
        return self._trial

    def _frozen(self) -> "list[FrozenTrial]":
        return self._study.get_trials(deepcopy=False)

    def _curve_of(self, number: int) -> dict[int, float]:
        return self._frozen()[number].intermediate_values

    def _propose(self, trial: "optuna.trial.Trial") -> Proposal:
        """Sample the values of a trial; those of a queued one are known, a value that was sampled before stands."""
        number, given = trial.number + 1, trial.user_attrs.get("given")
        if given is not None:
            for entry in self._space:
                if entry.name in trial.user_attrs["place"]:
                    _suggest(trial, entry)
            return Proposal(number, dict(given), str(trial.user_attrs["recipe"]))
        kinds = [entry for entry in self._space if entry.key == "model.kind"]
        settings = {entry.key: _suggest(trial, entry) for entry in kinds}
        for entry in active(self._space, str(settings.get("model.kind", self._kind))):
            if entry not in kinds:
                settings[entry.key] = _suggest(trial, entry)
        return Proposal(number, settings, "")

    def _given(self, trial: "FrozenTrial") -> Settings:
        """Return the settings that a trial was started with."""
        if "given" in trial.user_attrs:
            return dict(trial.user_attrs["given"])
        kind = next(
            (
                _decode(e, trial.params[e.name])
                for e in self._space
                if e.key == "model.kind" and e.name in trial.params
            ),
            self._kind,
        )
        return {
            entry.key: _decode(entry, trial.params.get(entry.name))
            for entry in active(self._space, str(kind))
            if entry.name in trial.params or _is_single(entry)
        }

    def _record(self, trial: "FrozenTrial") -> Trial:
        attributes, curve = trial.user_attrs, sorted(trial.intermediate_values.items())
        score = trial.value if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) else None
        return Trial(
            number=trial.number + 1,
            settings=dict(attributes.get("settings") or self._given(trial)),
            val_score=score,
            state=_STATES[trial.state],
            seconds=sum(ended - began for began, ended in attributes.get("spans", [])),
            recipe=str(attributes.get("recipe", "")),
            message=str(attributes.get("message", "")),
            curve=tuple(curve),
        )


class CountedSampler(optuna.samplers.BaseSampler):
    """Samples each trial by TPE with a generator of its own, keyed by the seed and the trial's number."""

    def __init__(self, seed: int) -> None:
        self._seed, self._number = seed, -1
        self._sampler: Any = None

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        """Return the parameters that are sampled together."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
        """Sample parameters together."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """Sample one parameter."""
        return self._of(trial).sample_independent(study, trial, param_name, param_distribution)

    def _of(self, trial: Any) -> Any:
        if self._number != trial.number:
            key = hashlib.sha256(f"{self._seed}:{trial.number}".encode()).digest()
            self._number = trial.number
            self._sampler = optuna.samplers.TPESampler(
                seed=int.from_bytes(key[:4], "little"),
                n_startup_trials=_RANDOM_TRIALS,
                multivariate=True,
                group=True,
                constant_liar=True,
            )
        return self._sampler


def _is_single(entry: Entry) -> bool:
    return isinstance(entry.domain, Choices) and len(entry.domain.values) == 1


def _is_ordered(domain: Choices) -> bool:
    """Whether the choices are numbers in ascending order, so that near ones are alike."""
    numbers = [v for v in domain.values if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == len(domain.values) and numbers == sorted(numbers)


def _suggest(trial: "optuna.trial.Trial", entry: Entry) -> Any:
    """Sample the value of an entry."""
    domain, name = entry.domain, entry.name
    if isinstance(domain, Choices):
        if _is_single(entry):
            return domain.values[0]
        if _is_ordered(domain):
            return domain.values[trial.suggest_int(name, 0, len(domain.values) - 1)]
        return trial.suggest_categorical(name, domain.values)
    if domain.is_int:
        low, high = int(domain.low), int(domain.high)
        return trial.suggest_int(name, low, high, step=int(domain.step or 1), log=domain.log)
    return _decode(
        entry, trial.suggest_float(name, domain.low, domain.high, step=domain.step, log=domain.log)
    )


def _encode(entry: Entry, value: Any) -> Any:
    """Return the value of a setting as a parameter of the study."""
    domain = entry.domain
    return domain.values.index(value) if isinstance(domain, Choices) and _is_ordered(domain) else value


def _decode(entry: Entry, parameter: Any) -> Any:
    """Return the value of a parameter of the study as that of a setting; numbers have four digits."""
    domain = entry.domain
    if isinstance(domain, Choices):
        if _is_single(entry):
            return domain.values[0]
        return domain.values[parameter] if _is_ordered(domain) else parameter
    if domain.is_int:
        return int(parameter)
    return min(max(float(f"{parameter:.4g}"), domain.low), domain.high)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of Optuna, and its warnings about features that may change."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)
