"""Parts that all figures of a report share: the frame, bars, labels.

Colours are names of the page's own, such as ``--val``. Text that came from a file is escaped, since Plotly
reads some tags in it.
"""

from collections.abc import Sequence
from html import escape
from itertools import count
from typing import Any

from siafu.results.format import fmt_bytes

Figure = dict[str, Any]


def bytes_bars(by_label: dict[str, float]) -> Figure:
    """Draw the bytes sent under each label."""
    shown = sorted(((label, size) for label, size in by_label.items() if size), key=lambda item: item[1])
    labels = unique([shorten(label) for label, _ in shown])
    trace = bars([size for _, size in shown], labels, texts=[fmt_bytes(size) for _, size in shown])
    figure = frame([trace], y=category(), legend=False, height=rows_height(len(shown)))
    figure["layout"]["xaxis"] |= {
        "showticklabels": False,
        "title": {"text": ""},
        "range": [0, 1.25 * max((size for _, size in shown), default=1)],
    }
    return figure


def unique(labels: Sequence[str]) -> list[str]:
    """Add a number to labels that occur again, since an axis would take them for one."""
    found: dict[str, None] = {}
    for label in labels:
        again = (f"{label} ({number})" for number in count(2))
        found[label if label not in found else next(other for other in again if other not in found)] = None
    return list(found)


def shorten(text: str, longest: int = 22) -> str:
    """Cut a long label, and escape it."""
    return plain(text if len(text) <= longest else text[: longest - 1] + "…")


def plain(text: str) -> str:
    """Escape text for Plotly, its template signs too."""
    return escape(text, quote=False).replace("%{", "%\u200b{")


def bars(values: list[float], labels: list[str], *, texts: list[str]) -> dict[str, Any]:
    """Make a trace of horizontal bars, the first at the bottom."""
    return {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": labels,
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "textfont": {"color": "--muted", "size": 12},
        "marker": {"color": "--val"},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }


def frame(data: list[Any], *, y: dict[str, Any], legend: bool = True, height: int = 300) -> Figure:
    """Put traces into axes; ``y`` adds to the vertical one, its title as plain text."""
    axis = {"gridcolor": "--grid", "linecolor": "--grid", "zeroline": False, "automargin": True, "ticks": ""}
    title = y.pop("title", None)
    layout: dict[str, Any] = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 36 if legend else 8, "b": 8},
        "font": {"color": "--muted", "size": 12},
        "paper_bgcolor": "--clear",
        "plot_bgcolor": "--clear",
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"color": "--text"}},
        "hoverlabel": {"bgcolor": "--surface", "bordercolor": "--line", "font": {"color": "--text"}},
        "modebar": {"bgcolor": "--clear", "color": "--line", "activecolor": "--muted"},
        "hovermode": "x unified" if legend else "closest",
        "xaxis": {**axis, "showgrid": False, "title": {"text": "epoch", "standoff": 8}},
        "yaxis": {**axis, "title": {"text": title, "standoff": 10}, **y},
        "bargap": 0.35,
    }
    return {"data": data, "layout": layout}


def category(title: str = "") -> dict[str, Any]:
    """Make an axis of names."""
    return {"type": "category", "showgrid": False, "title": title}


def rows_height(rows: int) -> int:
    """Return the height in pixels that so many bars need."""
    return 70 + 26 * max(rows, 1)


def rounded(value: float) -> float:
    """Round to six digits: a screen shows no more."""
    return float(f"{value:.6g}")
