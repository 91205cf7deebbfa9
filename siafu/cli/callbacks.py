"""Callbacks of the commands that train: progress on standard error, and a stop at the end of an epoch on a signal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from siafu.cli.output import say, to_json
from siafu.signals import deferred_stop, exit_code
from siafu.terminal import escape_control_chars

if TYPE_CHECKING:
    from siafu.training.procedure import Callbacks


@contextmanager
def command_callbacks() -> "Iterator[Callbacks]":
    """Show progress; the first SIGTERM or Ctrl-C stops the run at the end of its epoch."""
    from siafu.results.progress import TrainingProgress
    from siafu.training.procedure import Callbacks

    notice = "stopping after this epoch; once more to stop at once"
    with deferred_stop(notice) as stop, TrainingProgress() as progress:
        yield Callbacks(
            progress.epoch, lambda: stop.reason, progress=progress, say=say, on_training=stop.begin
        )


@contextmanager
def tune_callbacks() -> "Iterator[Callbacks]":
    """Print lines alone; the first SIGTERM or Ctrl-C stops the search at the end of an epoch."""
    from siafu.results.progress import LiveProgress
    from siafu.training.procedure import Callbacks

    notice = "stopping after this epoch; once more to stop at once"
    with deferred_stop(notice) as stop, LiveProgress() as progress:
        yield Callbacks(should_stop=lambda: stop.reason, progress=progress, say=say, on_training=stop.begin)


def exit_if_stopped(callbacks: "Callbacks", metrics: dict[str, Any]) -> None:
    """Exit with the code of the signal that stopped the run, here or on another rank, or that came as it ended."""
    if code := exit_code(callbacks.should_stop() or metrics["stopped_by"]):
        raise typer.Exit(code)


def print_metrics(metrics: dict[str, Any], as_json: bool, *, resume_with: str) -> None:
    """Print the metrics of a run; for one that was stopped, also the command that resumes it."""
    if not metrics["finished"]:
        stopped = f"stopped by {metrics['stopped_by']} after epoch {metrics['epochs']}"
        print(
            escape_control_chars(f"{stopped}; go on with: {resume_with}"),
            file=sys.stderr if as_json else sys.stdout,
        )
    if as_json:
        print(to_json(metrics))
    elif metrics["finished"]:
        print(escape_control_chars("\n".join(_summary(metrics))))


def _summary(metrics: dict[str, Any]) -> list[str]:
    """Summarize the metrics of a run in a few lines."""
    from siafu.results.format import fmt_bytes, fmt_seconds

    many = f", mean of {metrics['seeds']} seeds" if "seeds" in metrics else ""
    lines = [f"{metrics['model']:8} {_format_scores(metrics, metrics['metric'])}{many}"]
    if metrics.get("threshold") is not None:
        lines.append(f"{'threshold':8} {_format_threshold(metrics)}")
    if "baseline" in metrics:
        without = metrics["baseline"]
        lines.append(
            f"{without['model']:8} {_format_scores(without, metrics['metric'])} (the same without the graph)"
        )
    lines += _compared(metrics)
    if "recipe" in metrics:
        race = f"best of {metrics['candidates']} on the validation nodes"
        took = fmt_seconds(metrics["search_seconds"])
        lines.append(f"{'recipe':8} {metrics['recipe']}, {race}; the race took {took}")
    kept = f", the weights of epoch {metrics['best_epoch']}" if metrics["best_epoch"] and not many else ""
    time = f"{metrics['epochs']:.0f} epochs of {fmt_seconds(metrics['epoch_seconds'])}{kept}"
    lines.append(f"{'time':8} {time}; peak memory {fmt_bytes(metrics['peak_rss_bytes'])}")
    return [*lines, f"{'run':8} {metrics['run']}", f"{'next':8} siafu report {metrics['run']}"]


def _format_threshold(metrics: dict[str, Any]) -> str:
    """Name the threshold of two classes, and compare its scores with those at 0.5."""
    from siafu.results.format import fmt_metric, fmt_score

    pairs = [
        f"{fmt_metric(name)} {fmt_score(metrics[f'test_{name}_at_threshold'], name)} "
        f"({fmt_score(metrics[f'test_{name}'], name)} at 0.5)"
        for name in ("f1", "accuracy")
        if f"test_{name}_at_threshold" in metrics
    ]
    rule = metrics["threshold_rule"]
    chosen = "given" if rule == "given" else f"best validation {fmt_metric(rule)}"
    scores = f"; test {', '.join(pairs)}" if pairs else ""
    return f"{metrics['threshold']:.4g} for class {metrics['positive_class']}, {chosen}{scores}"


def _compared(metrics: dict[str, Any]) -> list[str]:
    """Compare the scores with those of the members of an ensemble, and with those without correct-and-smooth."""
    lines, metric = [], metrics["metric"]
    if "members_test_score" in metrics:
        lines.append(f"{'members':8} {_format_scores(metrics, metric, of='members_')}, mean of the members")
    if metrics.get("smoothed") is False:
        why = "with correct-and-smooth; not used, as its validation score is worse"
        lines.append(f"{'smoothed':8} {_format_scores(metrics, metric, of='smoothed_')} ({why})")
    elif "unsmoothed_test_score" in metrics:
        scores = _format_scores(metrics, metric, of="unsmoothed_")
        lines.append(f"{'plain':8} {scores} (without correct-and-smooth)")
    return lines


def _format_scores(metrics: dict[str, Any], metric: str, *, of: str = "") -> str:
    from siafu.results.format import fmt_metric, fmt_score

    test, val = (
        fmt_score(metrics[f"{of}{split}_score"], metric, std=metrics.get(f"{of}{split}_score_std"))
        for split in ("test", "val")
    )
    return f"test {fmt_metric(metric)} {test}" + (
        f", validation {val}" if metrics[f"{of}val_score"] is not None else ""
    )
