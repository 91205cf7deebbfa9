"""A figure of the pipeline: lanes as rows, tasks as bars over time, and the utilisation of each lane."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from siafu.results.format import fmt_seconds, fmt_value
from siafu.results.record import RunRecord
from siafu.results.report.frame import Figure, frame, plain, rounded, shorten
from siafu.results.report.page import Html, element, figure, section, table
from siafu.results.trace import FirstSpans, Span, first_spans

_COLORS = [f"--run{i}" for i in (0, 6, 3, 1, 4, 2, 5)]
_OTHER = "--run7"
_MOST_LANES = 64
_MOST_ROWS = 500
_MANY_SPANS = 2000  # a browser draws as many at once
_PIXELS = 1200


class Lane(NamedTuple):
    """The work of one thread or worker.

    Attributes:
        rank, name: its rank and its name.
        graph: whether it does graph work.
        tasks: the number of its tasks.
        busy_s: seconds with at least one task.
        share: ``busy_s`` as a share of the whole time.
    """

    rank: int
    name: str
    graph: bool
    tasks: int
    busy_s: float
    share: float


def pipeline(record: RunRecord, key: str) -> Html:
    """Show the first epochs of a pipeline; nothing if no task was recorded."""
    if not record.traced:
        return Html()
    first = first_spans(record.path / "events.jsonl")
    if not first.spans:
        return Html()
    lanes = lanes_of(first.spans)
    drawing = pipeline_figure(first.spans, pick(lanes, _MOST_LANES))
    picture = figure(f"{key}-pipeline", drawing, "Tasks", _note(first, lanes))
    busy = element("details", element("summary", "Every lane in numbers"), _lane_table(lanes))
    return section("Pipeline", picture, busy)


def lanes_of(spans: Sequence[Span]) -> list[Lane]:
    """Compute the utilisation of each lane, from the first start to the last end; graph lanes come before workers."""
    by_lane: dict[tuple[int, str], list[Span]] = {}
    for span in spans:
        by_lane.setdefault((span.rank, span.lane), []).append(span)
    total_s = max(span.end for span in spans) - min(span.start for span in spans)
    lanes = [
        Lane(
            rank, name, own[0].graph, len(own), busy := busy_seconds(own), busy / total_s if total_s else 0.0
        )
        for (rank, name), own in by_lane.items()
    ]
    return sorted(lanes, key=lambda lane: (lane.rank, not lane.graph, _natural(lane.name)))


def pick(lanes: Sequence[Lane], most: int) -> list[Lane]:
    """Select the lanes to draw, in their order: graph lanes first, then equally many workers of each rank."""
    seen: dict[tuple[int, bool], int] = {}
    places = []
    for place, lane in enumerate(lanes):
        number = seen[lane.rank, lane.graph] = seen.get((lane.rank, lane.graph), 0) + 1
        places.append((not lane.graph, number, place))
    return [lanes[place] for place in sorted(place for _, _, place in sorted(places)[:most])]


def busy_seconds(spans: Sequence[Span]) -> float:
    """Compute the time during which at least one of the tasks ran."""
    busy, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        busy += max(0.0, span.end - max(span.start, until))
        until = max(until, span.end)
    return busy


def pipeline_figure(spans: Sequence[Span], lanes: Sequence[Lane]) -> Figure:
    """Draw the tasks of some lanes: one colour per kind of task, times since the first start."""
    begin = min(span.start for span in spans)
    total_s = max(span.end for span in spans) - begin
    unit, scale = ("ms", 1e3) if total_s < 2 else ("s", 1.0)
    row_of = {(lane.rank, lane.name): row for row, lane in enumerate(lanes)}
    shown = [span for span in spans if (span.rank, span.lane) in row_of]
    kinds = _kinds(shown)
    thinnest = total_s / _PIXELS if len(shown) > _MANY_SPANS else 0.0
    by_kind: dict[str, list[Span]] = {}
    for span in shown:
        by_kind.setdefault(kinds[span.name], []).append(span)
    traces = [
        _bars(merge(by_kind[kind], thinnest), row_of, begin, scale, name=kind, color=color)
        for kind, color in _colors(list(kinds.values()))
    ]
    height = 26 if len(lanes) <= 16 else 15
    figure = frame(traces, y={"showgrid": False}, height=110 + height * len(lanes))
    figure["layout"] |= {"barmode": "overlay", "hovermode": "closest"}
    figure["layout"]["xaxis"] |= {"title": {"text": f"time ({unit})", "standoff": 8}, "showgrid": True}
    figure["layout"]["xaxis"] |= {"range": [0, rounded(total_s * scale) or 1]}
    figure["layout"]["yaxis"] |= _lane_axis(lanes)
    return figure | {"wide": True}


def merge(spans: Sequence[Span], thinnest: float) -> list[tuple[Span, int]]:
    """Merge neighbouring tasks of a lane that are too short to be seen apart; returns each with its number of tasks.

    ``spans`` are in the order of their starts; ``thinnest`` is the shortest duration, in seconds, that is visible.
    """
    merged: list[tuple[Span, int]] = []
    last: dict[tuple[int, str], int] = {}  # the place of each lane's last bar
    for span in spans:
        place = last.get((span.rank, span.lane))
        if place is not None and span.seconds < thinnest and span.start - merged[place][0].end < thinnest:
            before, tasks = merged[place]
            end = max(before.end, span.end)
            merged[place] = (before._replace(seconds=end - before.start), tasks + 1)
        else:
            last[span.rank, span.lane] = len(merged)
            merged.append((span, 1))
    return merged


def _bars(
    merged: Sequence[tuple[Span, int]],
    row_of: dict[tuple[int, str], int],
    begin: float,
    scale: float,
    *,
    name: str,
    color: str,
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": plain(name),
        "base": [rounded((span.start - begin) * scale) for span, _ in merged],
        "x": [rounded(span.seconds * scale) for span, _ in merged],
        "y": [row_of[span.rank, span.lane] for span, _ in merged],
        "width": 0.8,
        "hovertext": [_describe(span, tasks) for span, tasks in merged],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": color, "line": {"width": 0}},
    }


def _describe(span: Span, tasks: int) -> str:
    place = "" if span.interval is None else f", interval {span.interval}"
    if tasks > 1:
        return plain(
            f"{tasks} tasks from {span.name}{place}, epoch {span.epoch}: {fmt_seconds(span.seconds)}"
        )
    return plain(f"{span.name}{place}, epoch {span.epoch}: {fmt_seconds(span.seconds)}")


def _kinds(spans: Sequence[Span]) -> dict[str, str]:
    """Map the name of each task to its kind, such as "stage 2 backward" to "stage backward"; graph work comes first."""
    order = dict.fromkeys(span.name for span in sorted(spans, key=lambda span: not span.graph))
    kinds = {name: " ".join(re.sub(r"\d+", " ", name).split()) or "task" for name in order}
    known = list(dict.fromkeys(kinds.values()))[: len(_COLORS)]
    return {name: kind if kind in known else "other" for name, kind in kinds.items()}


def _colors(kinds: Sequence[str]) -> list[tuple[str, str]]:
    known = [kind for kind in dict.fromkeys(kinds) if kind != "other"]
    other = [("other", _OTHER)] if "other" in kinds else []
    return [*zip(known, _COLORS, strict=False), *other]


def _lane_axis(lanes: Sequence[Lane]) -> dict[str, Any]:
    several = len({lane.rank for lane in lanes}) > 1
    labels = [
        f"{f'rank {lane.rank}, ' if several else ''}{shorten(lane.name, 28)}  {lane.share:.0%}"
        for lane in lanes
    ]
    return {
        "tickvals": list(range(len(lanes))),
        "ticktext": labels,
        "range": [len(lanes) - 0.5, -0.5],
        "tickfont": {"size": 12 if len(lanes) <= 16 else 10},
    }


def _note(first: FirstSpans, lanes: Sequence[Lane]) -> str:
    epochs = sorted({span.epoch for span in first.spans})
    which = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
    note = f"of {which}, with the share of the time that each lane was busy"
    if first.cut:
        note += f"; the first {fmt_value(len(first.spans))} of them"
    if len(lanes) > _MOST_LANES:
        note += f"; {fmt_value(len(lanes) - _MOST_LANES)} more lanes are not drawn"
    return note + "; all are in trace.json, for Perfetto"


def _lane_table(lanes: Sequence[Lane]) -> Html:
    rows = [
        [
            lane.name,
            str(lane.rank),
            fmt_value(lane.tasks),
            fmt_seconds(lane.busy_s),
            f"{100 * lane.share:.1f} %",
        ]
        for lane in lanes[:_MOST_ROWS]
    ]
    return table(["lane", "rank", "tasks", "busy", "of the time"], rows, numbers=True)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key in which worker 2 comes before worker 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
