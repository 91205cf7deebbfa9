"""The tasks of a pipeline, as their events tell: a trace file for Perfetto, and the first of them for a picture.

There may be more tasks than fit in memory: they are read one at a time. An event of phase ``task`` (tensor work, on a
worker) or ``graph`` (on a rank) has ``rank``, ``lane`` (the worker's or thread's name), ``name`` (such as "gather 1"),
``epoch``, ``interval`` (where it is of one), ``start`` (seconds since the last start or resume of the run) and
``seconds``. Those of one lane are written in the order in which they ended.
"""

import heapq
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from siafu.files import atomic_writer
from siafu.results.read import TRACED, LogProblems, stream_events
from siafu.results.record import Event

_MOST_BARS = 20_000
_MOST_EPOCHS = 3
_SAME_S = 1e-6  # what a trace file can tell apart


class Span(NamedTuple):
    """One task: who did what, for which interval of which epoch, and when, in seconds since the run began."""

    rank: int
    lane: str
    name: str
    graph: bool
    epoch: int
    interval: int | None
    start: float
    seconds: float

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.seconds


class ResumePoint(NamedTuple):
    """The run went on from an epoch's end; what was done of later ones is done again."""

    epoch: int


class FirstSpans(NamedTuple):
    """The tasks of the first epochs.

    Attributes:
        bars: in the order of their starts.
        cut: whether the first epoch alone has more tasks than these.
    """

    bars: list[Span]
    cut: bool


def stream_spans(path: Path) -> Iterator[Span | ResumePoint]:
    """The tasks in a file of events, one at a time, and where the run went on after a break."""
    began_s: float | None = None
    since_s = 0.0
    for event in stream_events(path, LogProblems()):
        phase = event["phase"]
        if phase in TRACED:
            yield _bar(event, since_s, path)
        elif phase in ("start", "resume"):
            began_s = event["time"] if began_s is None else began_s
            since_s = max(0.0, event["time"] - began_s)
            if phase == "resume" and isinstance(event.get("epoch"), int):
                yield ResumePoint(event["epoch"])


def first_spans(path: Path, *, most: int = _MOST_BARS, epochs: int = _MOST_EPOCHS) -> FirstSpans:
    """The tasks of the first epochs that were traced, as many whole epochs as have no more than ``most`` tasks."""
    kept: list[tuple[float, float, int, Span]] = []  # a heap, the latest first
    left_out = math.inf
    for number, bar in enumerate(stream_spans(path)):
        if isinstance(bar, ResumePoint):
            kept = [item for item in kept if item[3].epoch <= bar.epoch]
            heapq.heapify(kept)
            continue
        heapq.heappush(kept, (-bar.epoch, -bar.start, number, bar))
        if len(kept) > most:
            left_out = min(left_out, heapq.heappop(kept)[3].epoch)
    found = sorted((item[3] for item in kept), key=lambda bar: bar.start)
    wanted = sorted({bar.epoch for bar in found})[:epochs]
    whole = [epoch for epoch in wanted if epoch < left_out]
    shown = set(whole or wanted[:1])
    return FirstSpans([bar for bar in found if bar.epoch in shown], cut=bool(found) and not whole)


def write_trace(events: Path, out: Path) -> int:
    """Write every task as a trace that Perfetto and Chrome open; returns how many. Without any, nothing is written.

    A process is a rank, a thread is a lane. The file is replaced at once or not at all.
    """
    bars = (bar for bar in stream_spans(events) if isinstance(bar, Span))
    first = next(bars, None)
    if first is None:
        return 0
    with atomic_writer(out) as file:
        return _write(file, itertools.chain([first], bars))


def _write(file: BinaryIO, bars: Iterator[Span]) -> int:
    lanes = _Lanes()
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    count = 0
    for count, bar in enumerate(bars, 1):
        events = [*lanes.events_of(bar)]
        text = ",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events)
        file.write(((",\n" if count > 1 else "") + text).encode())
    file.write(b"\n]}\n")
    return count


class _Lanes:
    """Numbers for ranks and lanes: from 1, since a trace's thread 0 is the idle one."""

    def __init__(self) -> None:
        self._ends: dict[
            tuple[int, str], list[tuple[int, float]]
        ] = {}  # thread and last end of each row of a lane
        self._threads: dict[int, int] = {}  # by rank

    def events_of(self, bar: Span) -> Iterator[dict[str, Any]]:
        """The event of a task, after those that name what it is the first of."""
        process = bar.rank + 1
        if bar.rank not in self._threads:
            self._threads[bar.rank] = 0
            yield _named("process_name", process, 0, name=f"rank {bar.rank}")
            yield _named("process_sort_index", process, 0, sort_index=bar.rank)
        rows = self._ends.setdefault((bar.rank, bar.lane), [])
        # tasks of a lane that overlap, as where one is fetched while another is computed, need rows of their own
        row = next((row for row, (_, end) in enumerate(rows) if end <= bar.start + _SAME_S), len(rows))
        if row == len(rows):
            self._threads[bar.rank] += 1
            thread = self._threads[bar.rank]
            rows.append((thread, 0.0))
            yield _named("thread_name", process, thread, name=bar.lane + (f" ({row + 1})" if row else ""))
            yield _named(
                "thread_sort_index", process, thread, sort_index=thread + (0 if bar.graph else 10**6)
            )
        thread = rows[row][0]
        rows[row] = (thread, bar.end)
        yield {
            "name": bar.name,
            "cat": "graph" if bar.graph else "task",
            "ph": "X",
            "ts": round(bar.start * 1e6, 3),
            "dur": round(bar.seconds * 1e6, 3),
            "pid": process,
            "tid": thread,
            "args": {"epoch": bar.epoch} | ({} if bar.interval is None else {"interval": bar.interval}),
        }


def _named(what: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": args}


def _bar(event: Event, since_s: float, path: Path) -> Span:
    rank, epoch = _whole(event, "rank", path), _whole(event, "epoch", path)
    interval = None if event.get("interval") is None else _whole(event, "interval", path)
    start, seconds = (_seconds(event, name, path) for name in ("start", "seconds"))
    lane, name = str(event.get("lane", "")), str(event.get("name", ""))
    return Span(rank, lane, name, event["phase"] == "graph", epoch, interval, start + since_s, seconds)


def _whole(event: Event, name: str, path: Path) -> int:
    found = event.get(name)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"{path}: a {event['phase']} event has {name} = {found!r}; expected a whole number")
    return found


def _seconds(event: Event, name: str, path: Path) -> float:
    found = event.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise ValueError(
            f"{path}: a {event['phase']} event has {name} = {found!r}; expected seconds, 0 or more"
        )
    return float(found)
