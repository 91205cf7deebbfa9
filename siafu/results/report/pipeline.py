"""A picture of the pipeline: lanes as rows, tasks as bars over time, and how busy each lane is."""

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
_MANY_BARS = 2000  # a browser draws as many at once
_PIXELS = 1200


class Lane(NamedTuple):
    """What one thread or worker did.

    Attributes:
        rank, name: of whom.
        graph: whether it does graph work.
        tasks: how many.
        busy_s: time with a task, or several.
        share: of the whole time.
    """

    rank: int
    name: str
    graph: bool
    tasks: int
    busy_s: float
    share: float


def pipeline(record: RunRecord, key: str) -> Html:
    """Show the first epochs of a pipeline; nothing where no task was traced."""
    if not record.traced:
        return Html()
    first = first_spans(record.path / "events.jsonl")
    if not first.bars:
        return Html()
    lanes = lanes_of(first.bars)
    drawing = pipeline_figure(first.bars, pick(lanes, _MOST_LANES))
    picture = figure(f"{key}-pipeline", drawing, "Tasks", _note(first, lanes))
    busy = element("details", element("summary", "Every lane in numbers"), _lane_table(lanes))
    return section("Pipeline", picture, busy)


def lanes_of(bars: Sequence[Span]) -> list[Lane]:
    """How busy each lane was from the first task's start to the last one's end; graph lanes before workers."""
    by_lane: dict[tuple[int, str], list[Span]] = {}
    for bar in bars:
        by_lane.setdefault((bar.rank, bar.lane), []).append(bar)
    span = max(bar.end for bar in bars) - min(bar.start for bar in bars)
    lanes = [
        Lane(rank, name, own[0].graph, len(own), busy := busy_seconds(own), busy / span if span else 0.0)
        for (rank, name), own in by_lane.items()
    ]
    return sorted(lanes, key=lambda lane: (lane.rank, not lane.graph, _natural(lane.name)))


def pick(lanes: Sequence[Lane], most: int) -> list[Lane]:
    """No more lanes than can be drawn, in their order: graph lanes first, then as many workers of each rank."""
    seen: dict[tuple[int, bool], int] = {}
    places = []
    for place, lane in enumerate(lanes):
        number = seen[lane.rank, lane.graph] = seen.get((lane.rank, lane.graph), 0) + 1
        places.append((not lane.graph, number, place))
    return [lanes[place] for place in sorted(place for _, _, place in sorted(places)[:most])]


def busy_seconds(bars: Sequence[Span]) -> float:
    """The time in which at least one of these tasks was under way."""
    busy, until = 0.0, float("-inf")
    for bar in sorted(bars, key=lambda bar: bar.start):
        busy += max(0.0, bar.end - max(bar.start, until))
        until = max(until, bar.end)
    return busy


def pipeline_figure(bars: Sequence[Span], lanes: Sequence[Lane]) -> Figure:
    """Draw the tasks of some lanes: a colour for each kind of task, times since the first of all."""
    begin = min(bar.start for bar in bars)
    span = max(bar.end for bar in bars) - begin
    unit, scale = ("ms", 1e3) if span < 2 else ("s", 1.0)
    row_of = {(lane.rank, lane.name): row for row, lane in enumerate(lanes)}
    shown = [bar for bar in bars if (bar.rank, bar.lane) in row_of]
    kinds = _kinds(shown)
    thinnest = span / _PIXELS if len(shown) > _MANY_BARS else 0.0
    by_kind: dict[str, list[Span]] = {}
    for bar in shown:
        by_kind.setdefault(kinds[bar.name], []).append(bar)
    traces = [
        _bars(merge(by_kind[kind], thinnest), row_of, begin, scale, name=kind, color=color)
        for kind, color in _colors(list(kinds.values()))
    ]
    height = 26 if len(lanes) <= 16 else 15
    figure = frame(traces, y={"showgrid": False}, height=110 + height * len(lanes))
    figure["layout"] |= {"barmode": "overlay", "hovermode": "closest"}
    figure["layout"]["xaxis"] |= {"title": {"text": f"time ({unit})", "standoff": 8}, "showgrid": True}
    figure["layout"]["xaxis"] |= {"range": [0, rounded(span * scale) or 1]}
    figure["layout"]["yaxis"] |= _lane_axis(lanes)
    return figure | {"wide": True}


def merge(bars: Sequence[Span], thinnest: float) -> list[tuple[Span, int]]:
    """Bars of one kind, and how many tasks each is: on a lane, those too thin to be seen apart are one.

    ``bars`` are in the order of their starts; ``thinnest`` is the width in seconds that can be seen.
    """
    merged: list[tuple[Span, int]] = []
    last: dict[tuple[int, str], int] = {}  # the place of each lane's last bar
    for bar in bars:
        place = last.get((bar.rank, bar.lane))
        if place is not None and bar.seconds < thinnest and bar.start - merged[place][0].end < thinnest:
            before, tasks = merged[place]
            end = max(before.end, bar.end)
            merged[place] = (before._replace(seconds=end - before.start), tasks + 1)
        else:
            last[bar.rank, bar.lane] = len(merged)
            merged.append((bar, 1))
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
        "base": [rounded((bar.start - begin) * scale) for bar, _ in merged],
        "x": [rounded(bar.seconds * scale) for bar, _ in merged],
        "y": [row_of[bar.rank, bar.lane] for bar, _ in merged],
        "width": 0.8,
        "hovertext": [_describe(bar, tasks) for bar, tasks in merged],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": color, "line": {"width": 0}},
    }


def _describe(bar: Span, tasks: int) -> str:
    place = "" if bar.interval is None else f", interval {bar.interval}"
    if tasks > 1:
        return plain(f"{tasks} tasks from {bar.name}{place}, epoch {bar.epoch}: {fmt_seconds(bar.seconds)}")
    return plain(f"{bar.name}{place}, epoch {bar.epoch}: {fmt_seconds(bar.seconds)}")


def _kinds(bars: Sequence[Span]) -> dict[str, str]:
    """The kind of each task by its name, "stage backward" of "stage 2 backward", graph work first."""
    order = dict.fromkeys(bar.name for bar in sorted(bars, key=lambda bar: not bar.graph))
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
    epochs = sorted({bar.epoch for bar in first.bars})
    which = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
    note = f"of {which}, with the share of the time that each lane was busy"
    if first.cut:
        note += f"; the first {fmt_value(len(first.bars))} of them"
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
    """So that worker 2 comes before worker 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
