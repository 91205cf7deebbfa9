"""Lines of a search for a person to read: one per trial."""

from collections.abc import Mapping
from typing import Any

from siafu.results.format import fmt_score, fmt_value
from siafu.tuning.trial import Trial

_WORDS = {"model.hidden": "columns", "model.layers": "layers", "model.hops": "hops", "model.heads": "heads"}
_UNSAID = (("model.norm", "none"), ("model.jump", "none"), ("model.residual", False))


def describe_settings(settings: Mapping[str, Any], recipe: str = "") -> str:
    """Describe the settings of a trial: "gcn, 256 columns, dropout 0.3"."""
    if recipe == "defaults":
        return "the defaults"
    said = [key for key, value in settings.items() if value is not None and (key, value) not in _UNSAID]
    order = sorted(said, key=lambda key: key != "model.kind")
    return ", ".join(_describe(key, settings[key]) for key in order) or "the defaults"


def trial_line(trial: Trial, best: Trial | None, *, metric: str, total: int | None) -> str:
    """Describe a trial that has ended, and the best one so far."""
    of = "" if total is None else f" of {total}"
    head = f"trial {trial.number}{of}: {describe_settings(trial.settings, trial.recipe)}"
    if trial.state == "failed":
        return f"{head}: failed: {trial.message.splitlines()[0]}"
    ended = f"pruned after epoch {trial.curve[-1][0]} at " if trial.state == "pruned" and trial.curve else ""
    top = "" if best is None else f" (best {fmt_score(best.val_score, metric)}, trial {best.number})"
    return f"{head}: {ended}{fmt_score(trial.val_score, metric)}{top}"


def _describe(key: str, value: Any) -> str:
    if key == "model.kind":
        return str(value)
    if key in _WORDS:
        return f"{value} {_WORDS[key]}"
    name = key.rpartition(".")[2].replace("_", " ")
    return name if value is True else f"{name} {fmt_value(value)}"
