"""The stages of a lazy run: the score of each, its bytes, and bytes against accuracy."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from siafu.results.format import fmt_bytes, fmt_metric, fmt_score, fmt_value
from siafu.results.record import Event, RunRecord
from siafu.results.report.frame import Figure, category, frame, plain, rounded, rows_height
from siafu.results.report.page import Html, element, figure, join, section, table

_SENT = (("message_bytes", "rows", "--val"), ("parameter_bytes", "updates of weights", "--train"))
_HEAD = ["stage", "sent before it", "fitted", "rounds", "validation", "test", "rows", "updates"]


def stages(record: RunRecord, key: str) -> Html:
    """Show the stages, if there are any; of a stage that was trained twice, the later one."""
    found = {event["stage"]: event for event in record.events if _is_stage(event)}
    ended = [found[number] for number in sorted(found)]
    if not ended:
        return Html()
    sent = figure(f"{key}-stages", stage_bytes(ended), "Bytes by stage", "sent by all ranks")
    so_far = figure(
        f"{key}-bytes-score", bytes_and_scores(ended, record.metric), "Bytes against accuracy", "by stage"
    )
    pictures = element("div", sent, so_far, class_="grid") if _any_bytes(ended) else Html()
    return section("Stages", join([pictures, _table(ended, record)]))


def stage_bytes(ended: Sequence[Event]) -> Figure:
    """Draw the bytes that each stage sent: rows, and updates of weights."""
    labels = [f"stage {event['stage']}" for event in ended]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "x": [event[field] for event in ended],
            "y": labels,
            "text": [fmt_bytes(event[field]) for event in ended],
            "hovertemplate": f"%{{y}}, {name}: %{{text}}<extra></extra>",
            "textposition": "none",
            "marker": {"color": color},
        }
        for field, name, color in _SENT
    ]
    drawn = frame(traces, y=category() | {"autorange": "reversed"}, height=40 + rows_height(len(ended)))
    drawn["layout"] |= {"barmode": "stack", "hovermode": "closest"}
    drawn["layout"]["xaxis"] |= {"title": {"text": "bytes"}, "tickformat": "~s"}
    return drawn


def bytes_and_scores(ended: Sequence[Event], metric: str) -> Figure:
    """Draw the score of each stage over the bytes sent up to it."""
    each = [sum(event[field] for field, _, _ in _SENT) for event in ended]
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": list(accumulate(each)),
            "y": [_finite(event.get(f"{split}_score")) for event in ended],
            "line": {"color": f"--{split}", "width": 2},
            "marker": {"color": f"--{split}"},
        }
        for split, name in (("val", "validation"), ("test", "test"))
    ]
    drawn = frame(traces, y={"title": plain(fmt_metric(metric))})
    drawn["layout"]["xaxis"] |= {"title": {"text": "bytes sent so far"}, "tickformat": "~s"}
    return drawn


def _table(ended: Sequence[Event], record: RunRecord) -> Html:
    rows = [
        [
            f"{event['stage']}"
            + (", which answers" if event["stage"] == record.metrics.get("stage") else ""),
            _sent(event),
            fmt_value(event.get("fits")),
            fmt_value(event.get("rounds")),
            *(fmt_score(_finite(event.get(f"{split}_score")), record.metric) for split in ("val", "test")),
            *(fmt_bytes(event[field]) for field, _, _ in _SENT),
        ]
        for event in ended
    ]
    return table(_HEAD, rows, numbers=True)


def _sent(event: Event) -> str:
    sends, bits = fmt_value(event.get("sends")), event.get("bits")
    return sends if sends == "nothing" or bits is None else f"{sends}, {fmt_value(bits)} bits"


def _is_stage(event: Event) -> bool:
    numbers = [event.get(name) for name in ("stage", *(field for field, _, _ in _SENT))]
    return event["phase"] == "stage" and all(isinstance(n, int) and 0 <= n < 2**63 for n in numbers)


def _any_bytes(ended: Sequence[Event]) -> bool:
    return any(event[field] for event in ended for field, _, _ in _SENT)


def _finite(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return rounded(value) if number else None
