"""Dynamic graphs in one ``.npz`` file, and the usual protocols of the public ones.

    src, dst        (M,) integers, the ends of each event
    t               (M,) numbers, when it happened
    w               (M,) numbers, weights
    num_nodes       N; where it is missing, the largest id says it
    undirected      1: an event holds in both directions
    step            the length of a step of time, in the units of t
    x               (N, F) or (T, N, F) numbers
    y               (N,) or (T, N) integers, a class from 0 or -1 for none; or (T, N) or (T, N, K) targets in float
    edge_y          (M,) integers, the class of each event, -1 for none
    node_names      (N,) strings or integers, the ids to show
    class_names     (C,) strings

Any of them but the first three may be missing; other arrays are left alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.data.npz import read_arrays, read_names
from siafu.dynamic import DynamicGraph, Protocol

Arrays = dict[str, NDArray[Any]]
_LAGS = 8  # what PyTorch Geometric Temporal gives a model of England's cases
_READ = (
    *("src", "dst", "t", "w", "num_nodes", "undirected", "step", "x", "y", "edge_y"),
    *("node_names", "class_names", "node_fraud"),
)
_SIGNS = np.array(["negative", "positive"])
_RESULTS = np.array(["black won", "draw", "white won"])
ALIASES = {"amlsim": "amlsim_20K_cycle200"}


def _ratings(arrays: Arrays) -> Arrays:
    """Ratings of people by people: the class of an event is distrust or trust."""
    return {"undirected": np.array(1), "edge_y": (arrays["w"] > 0).astype(np.int64), "class_names": _SIGNS}


def _games(arrays: Arrays) -> Arrays:
    """Games of chess, white to black: the class of an event is the result."""
    return {
        "undirected": np.array(1),
        "edge_y": (np.sign(arrays["w"]) + 1).astype(np.int64),
        "class_names": _RESULTS,
    }


def _cases(arrays: Arrays) -> Arrays:
    """Cases of an illness: a node's features are its cases of the previous steps, the latest last, else 0."""
    y = arrays["y"].astype(np.float32)
    before = np.concatenate([np.zeros((_LAGS, y.shape[1]), np.float32), y])
    lagged = [before[lag : lag + len(y)] for lag in range(_LAGS)]
    return {"x": np.stack(lagged, axis=2), "y": y}


def _accounts(arrays: Arrays) -> Arrays:
    return {"y": arrays["node_fraud"].astype(np.int64)}


def _pairs_once(arrays: Arrays) -> Arrays:
    """Snapshots that store each pair in both directions: one is kept, for an undirected graph."""
    kept = arrays["src"] <= arrays["dst"]
    return {"undirected": np.array(1), **{name: arrays[name][kept] for name in ("src", "dst", "t")}}


def _undirected(arrays: Arrays) -> Arrays:
    return {"undirected": np.array(1)}


# How a public set is read beyond what its file says, and its protocol.
PUBLIC_SETS: Mapping[str, tuple[Callable[[Arrays], Arrays], Protocol]] = {
    "bitcoinotc": (_ratings, Protocol(step=1_200_000, task="link")),
    "bitcoinalpha": (_ratings, Protocol(step=1_200_000, task="link")),
    "ucsocial": (_undirected, Protocol(step=190_080, negatives=50, task="link")),
    "chess": (_games, Protocol(split=(0.8, 0.1, 0.1), task="edge")),
    "england_covid": (_cases, Protocol(window=_LAGS, edge_life=1, task="regression")),
    "amlsim_20K_cycle200": (_accounts, Protocol(task="node")),
    "vgrnn_enron10": (_pairs_once, Protocol(edge_life=1, task="link")),
}


def is_temporal(names: Mapping[str, Any]) -> bool:
    """Return whether arrays of these names are a dynamic graph."""
    return "edge_index" not in names and {"src", "dst", "t"} <= names.keys()


def read_temporal(path: Path, *, step: float | None = None, steps: int | None = None) -> DynamicGraph:
    """Read a file in the layout above; ``step`` and ``steps`` override the data set's usual steps."""
    arrays = read_arrays(path, _READ)
    more, protocol = PUBLIC_SETS.get(path.stem, (lambda _: {}, Protocol()))
    arrays |= more(arrays)
    if step is None and steps is None:
        step = float(arrays["step"]) if "step" in arrays else protocol.step
    graph = DynamicGraph.from_events(
        *(arrays[name] for name in ("src", "dst", "t")),
        step=step,
        steps=steps,
        weight=arrays.get("w"),
        edge_y=arrays.get("edge_y"),
        num_nodes=int(arrays["num_nodes"]) if "num_nodes" in arrays else None,
        undirected=bool(arrays.get("undirected", np.array(0)).any()),
        x=arrays.get("x"),
        y=arrays.get("y"),
        name=str(path),
        protocol=protocol,
    )
    return replace(graph, name=path.stem, **read_names(path, arrays, graph.num_nodes))
