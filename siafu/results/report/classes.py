"""Figures of how the test nodes of each class were classified."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.results.record import ConfusionMatrix
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

_MOST_BARS = 40
_MOST_CELL_TEXTS = 10
_MOST_BESIDE = 20


def confusion_map(result: ConfusionMatrix) -> Figure:
    """Draw the share of each true class that was predicted as each class; counts on hover."""
    count = len(result.class_names)
    many = count > _MOST_BESIDE
    labels = unique([shorten(name, 14 if many else 22) for name in result.class_names])
    share = row_shares(result.confusion)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": labels,
        "y": labels,
        "z": [[None if np.isnan(value) else rounded(value) for value in row] for row in share],
        "customdata": result.confusion.tolist(),
        "zmin": 0,
        "zmax": 1,
        "showscale": count > _MOST_CELL_TEXTS,
        "xgap": 1 if count <= 60 else 0,
        "ygap": 1 if count <= 60 else 0,
        "colorscale": [[0, "--heat0"], [0.1, "--heat1"], [0.5, "--heat2"], [1, "--heat3"]],
        "colorbar": {"tickformat": ".0%", "thickness": 10, "outlinewidth": 0, "len": 1, "nticks": 6},
        "hovertemplate": "true %{y}<br>predicted %{x}<br>%{customdata} nodes, %{z:.1%}<extra></extra>",
        "hoverongaps": False,
    }
    figure = frame([trace], y=category("true class"), legend=False, height=_map_height(count))
    figure["layout"]["xaxis"] |= {
        "type": "category",
        "title": {"text": "predicted class", "standoff": 8},
        "tickangle": 0 if max(map(len, labels)) <= 3 else -90 if many else -40,
        "showgrid": False,
    }
    figure["layout"]["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    figure["layout"]["annotations"] = _cell_texts(share) if count <= _MOST_CELL_TEXTS else []
    return figure | {"min_width": min(160 + 11 * count, 900), "wide": many}


def class_bars(result: ConfusionMatrix) -> Figure:
    """Draw the recall of each class: one bar per class, or dots if there are many classes."""
    share = np.diag(row_shares(result.confusion))
    size = result.confusion.sum(1)
    order = [int(i) for i in np.argsort(share, kind="stable") if size[i] > 0]
    if len(order) > _MOST_BARS:
        return _class_dots(result, order, share, size)
    labels = unique([shorten(result.class_names[i]) for i in order])
    trace = bars([rounded(share[i]) for i in order], labels, texts=[f"{100 * share[i]:.1f} %" for i in order])
    trace |= {"customdata": [int(size[i]) for i in order]}
    trace |= {"hovertemplate": "%{y}: %{text} of %{customdata} nodes<extra></extra>"}
    figure = frame([trace], y=category(), legend=False, height=rows_height(len(order)))
    figure["layout"]["xaxis"] |= {"title": {"text": "found of the class's test nodes"}, "tickformat": ".0%"}
    figure["layout"]["xaxis"] |= {"range": [0, 1.2], "tickvals": [0, 0.5, 1], "tickangle": 0}
    return figure


def row_shares(confusion: NDArray[np.int64]) -> NDArray[np.float64]:
    """Divide each row by its sum; a class without test nodes gives NaN: (C, C) -> (C, C)."""
    total = confusion.sum(1, keepdims=True).astype(np.float64)
    return np.divide(confusion, total, out=np.full(confusion.shape, np.nan), where=total > 0)


def _class_dots(
    result: ConfusionMatrix, order: list[int], share: NDArray[np.float64], size: NDArray[np.int64]
) -> Figure:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [int(size[i]) for i in order],
        "y": [rounded(share[i]) for i in order],
        "text": [plain(result.class_names[i]) for i in order],
        "marker": {"color": "--val", "size": 8, "opacity": 0.75},
        "hovertemplate": "%{text}<br>%{y:.1%} of %{x} nodes<extra></extra>",
    }
    figure = frame([trace], y={"title": "found of the class's test nodes", "tickformat": ".0%"}, legend=False)
    figure["layout"]["yaxis"]["range"] = [-0.04, 1.04]
    figure["layout"]["xaxis"] |= {"title": {"text": "test nodes of the class"}}
    spread = max(trace["x"]) > 20 * min(trace["x"])
    figure["layout"]["xaxis"] |= {"type": "log", "dtick": 1} if spread else {"rangemode": "tozero"}
    return figure | {"wide": True}


def _cell_texts(share: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Write a number into each cell, dark on light cells and light on dark ones."""
    return [
        {
            "x": column,
            "y": row,
            "text": f"{100 * share[row, column]:.0f}",
            "showarrow": False,
            "font": {"color": "--on-heat" if share[row, column] > 0.5 else "--text", "size": 11},
        }
        for row, column in np.argwhere(share >= 0.005).tolist()
    ]


def _map_height(classes: int) -> int:
    return max(360, min(130 + 34 * classes, 520), min(160 + 14 * classes, 940))
