"""Figures of the positive class: precision-recall and ROC curve, calibration, and the threshold of two classes."""

import math
from typing import Any

from siafu.results.format import fmt_metric, fmt_score, fmt_value
from siafu.results.record import Event, RunRecord
from siafu.results.report.frame import Figure, frame, plain, rounded
from siafu.results.report.page import Html, element, figure, section, table

_MOST_POINTS = 2000
_AT_THRESHOLD = ("accuracy", "balanced_accuracy", "f1", "precision", "recall")


def positives(record: RunRecord, key: str) -> Html:
    """Show how test rows of the positive class are found, if the run has one."""
    event = record.last("curves")
    if not event:
        return Html()
    name, parts = str(event.get("positive_class", "")), []
    for field, make, caption, note in (
        ("pr", precision_recall, "Precision and recall", "of the test rows, at every threshold"),
        ("roc", roc, "ROC", "of the test rows, at every threshold"),
        ("calibration", calibration, "Calibration", "share of positives by predicted probability, test rows"),
    ):
        if drawn := make(event, record):
            parts.append(figure(f"{key}-{field}", drawn, caption, note))
    pictures = element("div", *parts, class_="grid") if parts else Html()
    return section(f"Class {name}", pictures, _threshold_tables(event, record, name))


def precision_recall(event: Event, record: RunRecord) -> Figure | None:
    """Draw precision over recall, and mark the threshold."""
    x, y = _points(event, "pr", "recall"), _points(event, "pr", "precision")
    drawn = _unit_curve(x, y, ("recall", "precision"), _score_name(record, "average_precision"))
    if drawn is not None:
        at = [_share(record.metrics.get(f"test_{each}_at_threshold")) for each in ("recall", "precision")]
        _mark(drawn, at, _share(record.metrics.get("threshold")))
    return drawn


def roc(event: Event, record: RunRecord) -> Figure | None:
    """Draw the true positive rate over the false positive rate."""
    x, y = _points(event, "roc", "fpr"), _points(event, "roc", "tpr")
    axes = ("false positive rate", "true positive rate")
    drawn = _unit_curve(x, y, axes, _score_name(record, "roc_auc"))
    return None if drawn is None else _with_diagonal(drawn, "random order")


def calibration(event: Event, record: RunRecord) -> Figure | None:
    """Draw the share of positives in each bin over its mean probability; counts on hover."""
    found = event.get("calibration")
    rows = found if isinstance(found, list) and len(found) == 3 else []
    if not rows or not all(isinstance(row, list) and len(row) == len(rows[0]) <= 1000 for row in rows):
        return None
    bins = [
        (count, p / count, positive / count)
        for count, p, positive in zip(*rows, strict=True)
        if all(_is_number(each) for each in (count, p, positive)) and count > 0
    ]
    if not bins or not all(0 <= p <= 1.000001 and 0 <= share <= 1 for _, p, share in bins):
        return None
    axes = ("predicted probability", "share of positives")
    drawn = _unit_curve(
        [p for _, p, _ in bins],
        [share for _, _, share in bins],
        axes,
        _score_name(record, "calibration_error"),
    )
    assert drawn is not None
    drawn["data"][0] |= {"mode": "lines+markers", "text": [fmt_value(int(count)) for count, _, _ in bins]}
    drawn["data"][0]["hovertemplate"] = "probability %{x:.3f}: %{y:.1%} of %{text} rows<extra></extra>"
    return _with_diagonal(drawn, "perfect")


def _unit_curve(x: list[float], y: list[float], axes: tuple[str, str], name: str) -> Figure | None:
    """Draw a curve between 0 and 1; None without points."""
    if not x or len(x) != len(y):
        return None
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": plain(name),
        "x": [rounded(each) for each in x],
        "y": [rounded(each) for each in y],
        "line": {"color": "--test", "width": 2},
        "marker": {"color": "--test"},
        "hovertemplate": f"{axes[0]} %{{x:.3f}}, {axes[1]} %{{y:.3f}}<extra></extra>",
    }
    drawn = frame([trace], y={"title": axes[1], "range": [-0.02, 1.03]})
    drawn["layout"]["xaxis"] |= {"title": {"text": axes[0], "standoff": 8}, "range": [-0.02, 1.03]}
    drawn["layout"]["hovermode"] = "closest"
    return drawn


def _with_diagonal(drawn: Figure, name: str) -> Figure:
    line = {"color": "--muted", "width": 1, "dash": "dot"}
    drawn["data"].append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": [0, 1],
            "y": [0, 1],
            "line": line,
            "hoverinfo": "skip",
        }
    )
    return drawn


def _mark(drawn: Figure, at: list[float | None], threshold: float | None) -> None:
    """Mark the point of the threshold."""
    if threshold is None or None in at:
        return
    drawn["data"].append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"threshold {threshold:.4g}",
            "x": [at[0]],
            "y": [at[1]],
            "marker": {"color": "--val", "size": 10},
        }
    )


def _threshold_tables(event: Event, record: RunRecord, name: str) -> Html:
    """Compare the scores at the threshold with those at 0.5, and count right and wrong predictions."""
    metrics, threshold = record.metrics, _share(record.metrics.get("threshold"))
    if threshold is None:
        return Html()
    rule = str(metrics.get("threshold_rule"))
    chosen = "given" if rule == "given" else f"best {fmt_metric(rule)} of the validation rows"
    said = f"Predicted {name} from a probability of {threshold:.4g} on ({chosen})."
    rows = [
        [
            fmt_metric(each),
            fmt_score(_share(metrics.get(f"test_{each}_at_threshold")), each),
            fmt_score(_share(metrics.get(f"test_{each}")), each),
        ]
        for each in _AT_THRESHOLD
    ]
    scores = table(["test rows", "at the threshold", "at 0.5"], rows, numbers=True)
    return element("div", element("p", said), scores, _confusion(event.get("confusion"), name))


def _confusion(counts: Any, name: str) -> Html:
    good = isinstance(counts, list) and len(counts) == 2
    good = good and all(isinstance(row, list) and len(row) == 2 for row in counts)
    if not good or not all(isinstance(each, int) and each >= 0 for row in counts for each in row):
        return Html()
    head = ["test rows, at the threshold", f"not predicted {name}", f"predicted {name}"]
    rows = [[title, *map(fmt_value, row)] for title, row in zip((f"not {name}", name), counts, strict=True)]
    return table(head, rows, numbers=True)


def _score_name(record: RunRecord, metric: str) -> str:
    score = _share(record.metrics.get(f"test_{metric}"))
    return fmt_metric(metric) + ("" if score is None else f" {score:.4g}")


def _points(event: Event, curve: str, field: str) -> list[float]:
    """Return the shares of a curve; empty if one of them is no share."""
    found = event.get(curve)
    values = found.get(field) if isinstance(found, dict) else None
    if not isinstance(values, list) or not 0 < len(values) <= _MOST_POINTS:
        return []
    shares = [share for value in values if (share := _share(value)) is not None]
    return shares if len(shares) == len(values) else []


def _share(value: Any) -> float | None:
    return float(value) if _is_number(value) and 0 <= value <= 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
