"""Show a search: its best trial, the scores of all trials, their curves, the importance of settings, a table."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from siafu.results.format import fmt_metric, fmt_score, fmt_seconds, fmt_value
from siafu.results.report.curves import score_axis
from siafu.results.report.frame import (
    Figure,
    bars,
    category,
    frame,
    plain,
    rounded,
    rows_height,
    shorten,
    unique,
)
from siafu.results.report.page import Html, element, figure, join, section, table
from siafu.results.search import SearchRecord

Fields = Mapping[str, Any]  # of a trial
_MARKS = {"completed": ("circle", "--val"), "pruned": ("x-thin-open", "--muted")}


def search_page(record: SearchRecord) -> Html:
    """Show a search, from its best trial to the table of all trials."""
    best = next((trial for trial in record.trials if trial["number"] == record.best), None)
    parts = [section("Best trial", _best(record, best)), section("Scores", _scores(record))]
    if record.importance:
        drawn = figure(
            "importance", importance_bars(record.importance), "Importance of settings", "PED-ANOVA"
        )
        parts.append(section("Settings", element("div", drawn, class_="grid")))
    parts.append(section("Trials", trial_table(record)))
    parts.append(element("div", _space(record), _fixed(record), class_="grid tables"))
    name = element("p", record.path.resolve().name, class_="kicker")
    return join([name, element("h1", _title(record)), *parts])


def progress_curve(record: SearchRecord) -> Figure:
    """Draw the validation score of each trial, and the best one so far."""
    traces: list[dict[str, Any]] = []
    for state, (symbol, color) in _MARKS.items():
        shown = [
            trial for trial in record.trials if trial["state"] == state and trial["val_score"] is not None
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "stopped early" if state == "pruned" else state,
                "x": [trial["number"] for trial in shown],
                "y": [rounded(trial["val_score"]) for trial in shown],
                "text": [plain(_describe(trial)) for trial in shown],
                "marker": {"symbol": symbol, "color": color, "size": 8},
                "hovertemplate": "trial %{x}: %{y}<br>%{text}<extra></extra>",
            }
        )
    completed = [trial for trial in record.trials if trial["state"] == "completed"]
    better = max if record.higher_is_better else min
    line = list(accumulate((trial["val_score"] for trial in completed), better))
    traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best so far",
            "x": [trial["number"] for trial in completed],
            "y": [rounded(score) for score in line],
            "line": {"color": "--train", "width": 2, "shape": "hv"},
            "hoverinfo": "skip",
        }
    )
    drawn = frame(traces, y=score_axis(record.metric, "val_score"))
    drawn["layout"]["xaxis"] |= {"title": {"text": "trial"}}
    drawn["layout"]["hovermode"] = "closest"
    return drawn


def trial_curves(record: SearchRecord) -> Figure:
    """Draw the best validation score up to each epoch, one line per trial; that of the best trial is bold."""
    traces = []
    for trial in sorted(record.trials, key=lambda trial: trial["number"] == record.best):
        if trial["curve"]:
            best = trial["number"] == record.best
            color = "--train" if best else "--val" if trial["state"] == "completed" else "--muted"
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines" if len(trial["curve"]) > 1 else "markers",
                    "x": [epoch for epoch, _ in trial["curve"]],
                    "y": [rounded(score) for _, score in trial["curve"]],
                    "line": {"color": color, "width": 3 if best else 1},
                    "marker": {"color": color},
                    "opacity": 1 if best else 0.5,
                    "text": plain(f"trial {trial['number']}: {_describe(trial)}"),
                    "hovertemplate": "%{text}<br>epoch %{x}: %{y}<extra></extra>",
                }
            )
    return frame(traces, y=score_axis(record.metric, "val_score"), legend=False)


def importance_bars(importance: Mapping[str, float]) -> Figure:
    """Draw the share of each setting in the importance of all, the largest at the top."""
    shown = sorted(importance.items(), key=lambda item: item[1])
    labels = unique([shorten(name, 44) for name, _ in shown])
    trace = bars(
        [rounded(share) for _, share in shown], labels, texts=[f"{100 * share:.0f} %" for _, share in shown]
    )
    drawn = frame([trace], y=category(), legend=False, height=rows_height(len(shown)))
    drawn["layout"]["xaxis"] |= {"title": {"text": ""}, "showticklabels": False, "range": [0, 1.25]}
    return drawn


def trial_table(record: SearchRecord) -> Html:
    """Make one row per trial, the best first, then those that were stopped early, then those that failed."""
    keys = dict.fromkeys(key for trial in record.trials for key in trial["settings"])
    rows = [
        [
            str(trial["number"]) + (", best" if trial["number"] == record.best else ""),
            "stopped early" if trial["state"] == "pruned" else trial["state"],
            fmt_score(trial["val_score"], record.metric),
            fmt_seconds(trial["seconds"]),
            *(fmt_value(trial["settings"][key]) if key in trial["settings"] else "" for key in keys),
            trial["recipe"] or trial["message"],
        ]
        for trial in sorted(record.trials, key=lambda trial: _rank(trial, record))
    ]
    head = ["trial", "state", f"validation {fmt_metric(record.metric)}", "time", *map(_short, keys), "note"]
    return table(head, rows, numbers=True)


def _rank(trial: Fields, record: SearchRecord) -> tuple[int, float, int]:
    order = ["completed", "pruned", "interrupted", "failed"].index(trial["state"])
    score = trial["val_score"] or 0
    return order, -score if record.higher_is_better else score, trial["number"]


def _title(record: SearchRecord) -> str:
    return f"Search on {record.data}: {_compared(record.trials)} trials compared"


def _compared(trials: Sequence[Fields]) -> int:
    return sum(trial["state"] in ("completed", "pruned") for trial in trials)


def _best(record: SearchRecord, best: Fields | None) -> Html:
    if best is None:
        return element("p", "No trial is completed yet.")
    metric = fmt_metric(record.metric)
    counts = [f"{sum(t['state'] == state for t in record.trials)} {word}" for state, word in _STATES]
    rows = [
        [f"validation {metric}", fmt_score(best["val_score"], record.metric)],
        [f"test {metric}", fmt_score(record.test_score, record.metric)],
        ["chosen from", f"{_compared(record.trials)} trials, by the validation score ({', '.join(counts)})"],
        ["time of the search", fmt_seconds(record.seconds)],
        ["run", str(record.path / f"trial-{best['number']}")],
        *([key, fmt_value(value)] for key, value in best["settings"].items()),
    ]
    note = "Test nodes were scored for this trial alone; its validation score is the best of many, thus optimistic."
    return join([table([], rows), element("p", note)])


_STATES = (("completed", "completed"), ("pruned", "stopped early"), ("failed", "failed"))


def _scores(record: SearchRecord) -> Html:
    so_far = figure("progress", progress_curve(record), "Validation score", "by trial")
    each = figure("curves", trial_curves(record), "Validation curves", "best score so far, by epoch")
    return element("div", so_far, each, class_="grid")


def _space(record: SearchRecord) -> Html:
    rows = [
        [key + (f" ({', '.join(kinds)})" if kinds else ""), fmt_value(domain)]
        for key, domain, kinds in record.space
    ]
    return section("Searched", table([], rows))


def _fixed(record: SearchRecord) -> Html:
    rows = [[key, fmt_value(value)] for key, value in record.fixed.items()]
    return section("Fixed", table([], rows)) if rows else Html()


def _describe(trial: Fields) -> str:
    return ", ".join(f"{_short(key)} {fmt_value(value)}" for key, value in trial["settings"].items())


def _short(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")
