"""Figures over the epochs of one run, or of several."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.results.format import fmt_bytes, fmt_dollars, fmt_metric, fmt_seconds
from siafu.results.record import Epochs, RunRecord
from siafu.results.report.frame import Figure, frame, plain, rounded

SERIES = [f"--run{i}" for i in range(8)]
_DASHES = ["solid", "dash", "dot", "dashdot"]
_MOST_POINTS = 2000


def loss_curve(record: RunRecord) -> Figure:
    """Draw the training loss over the epochs."""
    rows = thin(record.epochs)
    trace = _line(record.epochs, "loss", rows, name="training loss", color="--loss")
    return frame([trace], y={"title": "loss", "rangemode": "tozero"}, legend=False)


def score_curves(record: RunRecord) -> Figure:
    """Draw the score of each split over the epochs, and mark the best validation score."""
    rows = thin(record.epochs)
    splits = [("train_score", "training"), ("val_score", "validation"), ("test_score", "test")]
    traces = [
        _line(record.epochs, field, rows, name=name, color=f"--{field.removesuffix('_score')}")
        for field, name in splits
        if np.isfinite(getattr(record.epochs, field)).any()
    ]
    figure = frame(traces, y=score_axis(record.metric))
    return figure if record.best_epoch is None else _mark(figure, record.best_epoch)


def time_curve(record: RunRecord) -> Figure:
    """Draw the duration of each epoch's training step."""
    rows = thin(record.epochs)
    trace = _line(record.epochs, "seconds", rows, name="time", color="--val", text=fmt_seconds)
    largest = _largest(trace["y"])
    unit, scale = ("ms", 1e-3) if largest < 1 else ("s", 1) if largest < 600 else ("min", 60)
    return _from_zero(trace, f"time per epoch ({unit})", scale)


def memory_curve(record: RunRecord) -> Figure:
    """Draw the memory that the process held at the end of each epoch."""
    rows = thin(record.epochs)
    trace = _line(record.epochs, "rss_bytes", rows, name="memory", color="--val", text=fmt_bytes)
    unit, scale = ("GiB", 2**30) if _largest(trace["y"]) >= 1000 * 2**20 else ("MiB", 2**20)
    return _from_zero(trace, f"memory ({unit})", scale)


def dollars_curve(record: RunRecord) -> Figure:
    """Draw the cost of each epoch."""
    rows = thin(record.epochs)
    trace = _line(record.epochs, "dollars", rows, name="dollars", color="--loss", text=fmt_dollars)
    largest = _largest(trace["y"])
    unit, scale = (
        ("$", 1) if largest >= 0.1 else ("¢", 1e-2) if largest >= 1e-3 else ("millionths of a $", 1e-6)
    )
    return _from_zero(trace, f"dollars per epoch ({unit})", scale)


def value_curve(record: RunRecord) -> Figure:
    """Draw the value of each epoch."""
    rows = thin(record.epochs)
    trace = _line(
        record.epochs, "value", rows, name="value", color="--loss", text=lambda value: f"{value:.4g}"
    )
    return _from_zero(trace, "V = 1 / (seconds x dollars)", 1)


def overlay(groups: Sequence[Sequence[RunRecord]], field: str, names: Sequence[str]) -> Figure:
    """Draw one column of the epochs of every run: one colour per group, thin lines for several seeds."""
    traces = []
    for index, group in enumerate(groups):
        for member, record in enumerate(group):
            trace = _line(record.epochs, field, thin(record.epochs), name=names[index], color=_color(index))
            trace["line"] |= {"width": 2 if len(group) == 1 else 1.25, "dash": _dash(index)}
            trace |= {
                "opacity": 1 if len(group) == 1 else 0.7,
                "legendgroup": index,
                "showlegend": member == 0,
            }
            seed = record.metrics.get("seed")
            mark = f" (seed {seed})" if len(group) > 1 and seed is not None else ""
            trace["hovertemplate"] = f"epoch %{{x}}: %{{y}}<extra>{plain(names[index] + mark)}</extra>"
            traces.append(trace)
    metric = groups[0][0].metric
    axis = {"title": "loss", "rangemode": "tozero"} if field == "loss" else score_axis(metric, field)
    figure = frame(traces, y=axis)
    figure["layout"]["hovermode"] = "closest"
    return figure


def bytes_and_scores(groups: Sequence[Sequence[RunRecord]], names: Sequence[str]) -> Figure | None:
    """Draw the test score of every run over the bytes it sent, one colour per group; None if nothing was sent."""
    traces: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        points = [point for record in group if (point := _sent_and_score(record)) is not None]
        if points:
            trace: dict[str, Any] = {"type": "scatter", "mode": "markers", "name": plain(names[index])}
            trace |= {"x": [sent for sent, _ in points], "y": [score for _, score in points]}
            traces.append(trace | {"marker": {"color": _color(index), "size": 9}})
    if not traces:
        return None
    figure = frame(traces, y=score_axis(groups[0][0].metric, "test_score"))
    figure["layout"]["xaxis"] |= {"type": "log", "title": {"text": "bytes sent"}, "tickformat": "~s"}
    figure["layout"]["hovermode"] = "closest"
    return figure


def _sent_and_score(record: RunRecord) -> tuple[float, float] | None:
    found = [record.metrics.get(name) for name in ("bytes_sent", "test_score")]
    sent, score = (value if isinstance(value, int | float) else float("nan") for value in found)
    return (sent, rounded(score)) if 0 < sent < 2**80 and np.isfinite(score) else None


def thin(epochs: Epochs) -> NDArray[np.int64]:
    """Select about two thousand evenly spaced rows of a long run, with the last row."""
    step = -(-len(epochs) // _MOST_POINTS) or 1
    rows = np.arange(0, len(epochs), step, dtype=np.int64)
    return rows if not len(rows) or rows[-1] == len(epochs) - 1 else np.append(rows, len(epochs) - 1)


def _line(
    epochs: Epochs, field: str, rows: NDArray[np.int64], *, name: str, color: str, text: Any = None
) -> dict[str, Any]:
    values = getattr(epochs, field)[rows]
    trace = {
        "type": "scatter",
        "mode": "lines" if len(rows) > 1 else "markers",
        "name": plain(name),
        "x": epochs.epoch[rows].tolist(),
        "y": [rounded(value) if np.isfinite(value) else None for value in values],
        "line": {"color": color, "width": 2},
        "marker": {"color": color},
    }
    if text is not None:
        trace["text"] = [text(value) for value in values.tolist()]
        trace["hovertemplate"] = "epoch %{x}: %{text}<extra></extra>"
    return trace


def _from_zero(trace: dict[str, Any], title: str, unit: float) -> Figure:
    """Draw a trace in another unit, on an axis from zero with room above the line."""
    trace["y"] = [None if value is None else rounded(value / unit) for value in trace["y"]]
    top = 1.12 * _largest(trace["y"]) or 1
    return frame([trace], y={"title": title, "range": [0, top]}, legend=False)


def _largest(values: list[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def _mark(figure: Figure, epoch: int) -> Figure:
    line = {"color": "--muted", "width": 1, "dash": "dot"}
    shape = {"type": "line", "yref": "paper", "x0": epoch, "x1": epoch, "y0": 0, "y1": 1, "line": line}
    text = f"best validation: epoch {epoch}"
    last = max((max(trace["x"], default=1) for trace in figure["data"]), default=1)
    side, shift = ("right", -5) if epoch > last / 2 else ("left", 5)
    label = {"x": epoch, "xanchor": side, "xshift": shift, "y": 0, "yref": "paper", "yanchor": "bottom"}
    label |= {"text": text, "showarrow": False, "font": {"size": 11}}
    figure["layout"] |= {"shapes": [shape], "annotations": [label]}
    return figure


def score_axis(metric: str, field: str = "") -> dict[str, Any]:
    """Make the axis of a score; ``field`` names the split."""
    split = {"val_score": "validation ", "test_score": "test ", "train_score": "training "}.get(field, "")
    axis: dict[str, Any] = {"title": split + plain(fmt_metric(metric))}
    return axis | (
        {"tickformat": ".0%", "hoverformat": ".1%"}
        if metric in ("accuracy", "balanced_accuracy")
        else {"hoverformat": ".4g"}
    )


def _color(index: int) -> str:
    return SERIES[index % len(SERIES)]


def _dash(index: int) -> str:
    return _DASHES[index // len(SERIES) % len(_DASHES)]
