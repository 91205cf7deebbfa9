"""Load a graph by the name of a data set or by a path; the data home comes from the environment."""

import os
from pathlib import Path

from siafu import data
from siafu.dynamic import DynamicGraph
from siafu.event_log import Progress, no_progress
from siafu.graph import Graph

AnyGraph = Graph | DynamicGraph


def load(
    source: str | Path,
    *,
    fold: int = 0,
    progress: Progress = no_progress,
    verify: bool = True,
    step: float | None = None,
    steps: int | None = None,
) -> Graph | DynamicGraph:
    """Load a graph by the name of a data set, or by the path of a store or an ``.npz``; see :func:`siafu.data.load`."""
    home = data.data_home(os.environ)
    return data.load(source, fold=fold, home=home, progress=progress, verify=verify, step=step, steps=steps)


def load_static(
    source: str | Path, *, fold: int = 0, progress: Progress = no_progress, verify: bool = True
) -> Graph:
    """Load a graph that does not change over time, with its columns encoded; a dynamic graph is refused."""
    return data.only_static(load(source, fold=fold, progress=progress, verify=verify)).encoded()
