"""Figures of a run on a dynamic graph: edges added and removed per step, scores per step, memory per block of time."""

import math
from collections.abc import Sequence
from typing import Any

from siafu.results.format import fmt_bytes, fmt_metric
from siafu.results.record import Event, RunRecord
from siafu.results.report.frame import Figure, category, frame, plain, rounded, rows_height
from siafu.results.report.page import Html, element, figure, section

_EDGES = (("edges", "in the snapshot", "--run0"), ("added", "new", "--run2"), ("removed", "gone", "--run1"))
_NODES = (("active", "with an edge", "--run0"), ("arrived", "for the first time", "--run2"))
_HELD = (("planned_bytes", "planned", "--train"), ("rss_bytes", "held by the process (RSS)", "--val"))
_MOST_POINTS, _MOST_BLOCKS, _MOST = 2000, 200, 2**63
_Series = Sequence[tuple[str, str, str]]  # fields of an event, what they are, and their colours


def over_time(record: RunRecord, key: str) -> Html:
    """Show the steps and blocks of time, if there are any."""
    change, samples, blocks = (record.last(phase) for phase in ("change", "samples", "blocks"))
    metric, parts = fmt_metric(record.metric), []
    for name, series, caption in (("edges", _EDGES, "Edges"), ("nodes", _NODES, "Nodes")):
        if all(_numbers(change, field) for field, _, _ in series):
            drawn = step_curves(change, series, title=name)
            parts.append(figure(f"{key}-{name}", drawn, caption, "of each step"))
    if scores := step_scores(samples, metric):
        caption = metric[:1].upper() + metric[1:]
        parts.append(figure(f"{key}-steps", scores, f"{caption} by step", "of the weights that were kept"))
    if memory := block_bars(blocks):
        note = "as each block of time goes back, in the first epoch"
        parts.append(figure(f"{key}-blocks", memory, "Memory by block", note))
    return section("Over time", element("div", *parts, class_="grid")) if parts else Html()


def step_curves(change: Event, series: _Series, *, title: str) -> Figure:
    """Draw counts of each step, on an axis from zero."""
    traces = [
        _line(range(len(change[field])), change[field], name=name, color=color)
        for field, name, color in series
    ]
    return _by_step(frame(traces, y={"title": title, "rangemode": "tozero", "tickformat": "~s"}))


def step_scores(samples: Event, metric: str) -> Figure | None:
    """Draw the score of each validation and test sample by its step; None if no split has several samples."""
    steps, scores = _numbers(samples, "step"), samples.get("score")
    splits = samples.get("split")
    if (
        not isinstance(scores, list)
        or not isinstance(splits, list)
        or not len(steps) == len(scores) == len(splits)
    ):
        return None
    traces = []
    for split, name in (("val", "validation"), ("test", "test")):
        found = [
            (step, _finite(score))
            for step, score, of in zip(steps, scores, splits, strict=True)
            if of == split
        ]
        if len(found) > 1:
            x, y = zip(*found, strict=True)
            traces.append(_line(x, y, name=name, color=f"--{split}"))
    return _by_step(frame(traces, y={"title": plain(metric), "rangemode": "tozero"})) if traces else None


def block_bars(blocks: Event) -> Figure | None:
    """Draw the planned memory of each block of time, and the memory of the process after its forward pass."""
    lengths = _numbers(blocks, "steps")
    if not 0 < len(lengths) <= _MOST_BLOCKS:
        return None
    labels = [f"{place + 1}: {length} steps" for place, length in enumerate(lengths)]
    traces = []
    for field, name, color in _HELD:
        values = _numbers(blocks, field)
        if len(values) == len(labels):
            traces.append(_bars(values, labels, name=name, color=color))
    drawn = frame(traces, y=category() | {"autorange": "reversed"}, height=40 + rows_height(len(labels)))
    drawn["layout"] |= {"barmode": "group", "hovermode": "closest"}
    drawn["layout"]["xaxis"] |= {"title": {"text": "bytes"}, "tickformat": "~s"}
    return drawn if traces else None


def _line(x: Sequence[float], y: Sequence[float | None], *, name: str, color: str) -> dict[str, Any]:
    stride = -(-len(y) // _MOST_POINTS) or 1
    return {
        "type": "scatter",
        "mode": "lines" if len(y) > 1 else "markers",
        "name": name,
        "x": list(x)[::stride],
        "y": list(y)[::stride],
        "line": {"color": color, "width": 2},
        "marker": {"color": color},
    }


def _bars(values: list[float], labels: list[str], *, name: str, color: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": values,
        "y": labels,
        "text": [fmt_bytes(value) for value in values],
        "textposition": "none",
        "hovertemplate": f"%{{y}}, {name}: %{{text}}<extra></extra>",
        "marker": {"color": color},
    }


def _by_step(drawn: Figure) -> Figure:
    drawn["layout"]["xaxis"] |= {"title": {"text": "step", "standoff": 8}}
    return drawn


def _numbers(event: Event, field: str) -> list[float]:
    """Return the counts of an event under a name; empty if one of them is no count."""
    found = event.get(field)
    good = isinstance(found, list) and all(isinstance(each, int) and 0 <= each < _MOST for each in found)
    return list(found) if good and found else []


def _finite(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return rounded(value) if number else None
