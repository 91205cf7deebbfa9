"""Read the tasks of a pipeline from the event log: for a trace file for Perfetto, and for the figure of the report.

There may be more tasks than fit in memory: they are read one at a time. An event of phase ``task`` (tensor work, on a
worker) or ``graph`` (on a rank) has ``rank``, ``lane`` (the worker's or thread's name), ``name`` (such as "gather 1"),
``epoch``, ``interval`` (if it belongs to one), ``start`` (seconds since the last start or resume of the run) and
``seconds``. The events of one lane are in the order in which the tasks ended.
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

_MOST_SPANS = 20_000
_MOST_EPOCHS = 3
_SAME_S = 1e-6  # the resolution of a trace file


class Span(NamedTuple):
    """One task: its lane, name, epoch and interval, and its start in seconds since the run began."""

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
        """The end, in seconds since the run began."""
        return self.start + self.seconds


class ResumePoint(NamedTuple):
    """The run was resumed from the end of an epoch; tasks of later epochs are done again."""

    epoch: int


class FirstSpans(NamedTuple):
    """The tasks of the first epochs.

    Attributes:
        spans: in the order of their starts.
        cut: whether some tasks of the first epoch are left out.
    """

    spans: list[Span]
    cut: bool


def stream_spans(path: Path) -> Iterator[Span | ResumePoint]:
    """Yield the tasks in an event log one by one, and the points where the run was resumed."""
    began_s: float | None = None
    since_s = 0.0
    for event in stream_events(path, LogProblems()):
        phase = event["phase"]
        if phase in TRACED:
            yield _span(event, since_s, path)
        elif phase in ("start", "resume"):
            began_s = event["time"] if began_s is None else began_s
            since_s = max(0.0, event["time"] - began_s)
            if phase == "resume" and isinstance(event.get("epoch"), int):
                yield ResumePoint(event["epoch"])


def first_spans(path: Path, *, most: int = _MOST_SPANS, epochs: int = _MOST_EPOCHS) -> FirstSpans:
    """Read the tasks of the first recorded epochs: as many whole epochs as have at most ``most`` tasks."""
    kept: list[tuple[float, float, int, Span]] = []  # a heap, the latest first
    left_out = math.inf
    for number, span in enumerate(stream_spans(path)):
        if isinstance(span, ResumePoint):
            kept = [item for item in kept if item[3].epoch <= span.epoch]
            heapq.heapify(kept)
            continue
        heapq.heappush(kept, (-span.epoch, -span.start, number, span))
        if len(kept) > most:
            left_out = min(left_out, heapq.heappop(kept)[3].epoch)
    found = sorted((item[3] for item in kept), key=lambda span: span.start)
    wanted = sorted({span.epoch for span in found})[:epochs]
    whole = [epoch for epoch in wanted if epoch < left_out]
    shown = set(whole or wanted[:1])
    return FirstSpans([span for span in found if span.epoch in shown], cut=bool(found) and not whole)


def write_trace(events: Path, out: Path) -> int:
    """Write all tasks as a trace for Perfetto or Chrome; returns their number. Without tasks no file is written.

    Processes of the trace are ranks, threads are lanes. The file is replaced atomically.
    """
    spans = (span for span in stream_spans(events) if isinstance(span, Span))
    first = next(spans, None)
    if first is None:
        return 0
    with atomic_writer(out) as file:
        return _write(file, itertools.chain([first], spans))


def _write(file: BinaryIO, spans: Iterator[Span]) -> int:
    lanes = _Lanes()
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    count = 0
    for count, span in enumerate(spans, 1):
        events = [*lanes.events_of(span)]
        text = ",\n".join(json.dumps(event, separators=(",", ":"), allow_nan=False) for event in events)
        file.write(((",\n" if count > 1 else "") + text).encode())
    file.write(b"\n]}\n")
    return count


class _Lanes:
    """The numbers of ranks and lanes in a trace: from 1, since thread 0 is the idle one."""

    def __init__(self) -> None:
        self._ends: dict[
            tuple[int, str], list[tuple[int, float]]
        ] = {}  # thread and last end of each row of a lane
        self._threads: dict[int, int] = {}  # by rank

    def events_of(self, span: Span) -> Iterator[dict[str, Any]]:
        """Yield the event of a task, after events that name its rank and lane if they are new."""
        process = span.rank + 1
        if span.rank not in self._threads:
            self._threads[span.rank] = 0
            yield _named("process_name", process, 0, name=f"rank {span.rank}")
            yield _named("process_sort_index", process, 0, sort_index=span.rank)
        rows = self._ends.setdefault((span.rank, span.lane), [])
        # tasks of a lane that overlap, as where one is fetched while another is computed, need rows of their own
        row = next((row for row, (_, end) in enumerate(rows) if end <= span.start + _SAME_S), len(rows))
        if row == len(rows):
            self._threads[span.rank] += 1
            thread = self._threads[span.rank]
            rows.append((thread, 0.0))
            yield _named("thread_name", process, thread, name=span.lane + (f" ({row + 1})" if row else ""))
            yield _named(
                "thread_sort_index", process, thread, sort_index=thread + (0 if span.graph else 10**6)
            )
        thread = rows[row][0]
        rows[row] = (thread, span.end)
        yield {
            "name": span.name,
            "cat": "graph" if span.graph else "task",
            "ph": "X",
            "ts": round(span.start * 1e6, 3),
            "dur": round(span.seconds * 1e6, 3),
            "pid": process,
            "tid": thread,
            "args": {"epoch": span.epoch} | ({} if span.interval is None else {"interval": span.interval}),
        }


def _named(what: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": args}


def _span(event: Event, since_s: float, path: Path) -> Span:
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
