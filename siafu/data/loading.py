"""Load a graph from the name or path that a user wrote. The caller reads the environment."""

import difflib
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from siafu.data import builtin
from siafu.data.npz import read_headers, read_npz
from siafu.data.public_datasets import PUBLIC_DATASETS, download_dataset
from siafu.data.temporal import ALIASES, is_temporal, read_temporal
from siafu.dynamic import DynamicGraph
from siafu.event_log import Progress, no_progress
from siafu.graph import Graph
from siafu.store import DynamicStore, open_any
from siafu.store.manifest import MANIFEST


def data_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of data sets: ``SIAFU_DATA``, else the platform's cache folder."""
    given = environ.get("SIAFU_DATA")
    return Path(given).expanduser() if given else platformdirs.user_cache_path("siafu")


def load(
    name_or_path: str | Path,
    *,
    fold: int = 0,
    home: Path | None = None,
    progress: Progress = no_progress,
    mirror: str | None = None,
    verify: bool = True,
    step: float | None = None,
    steps: int | None = None,
) -> Graph | DynamicGraph:
    """Load a graph; one that changes over time is a :class:`siafu.dynamic.DynamicGraph`.

    Args:
        name_or_path: ``karate``, ``community`` or ``rmat``, with settings (``community:nodes=20000,seed=1``);
            the path of a store or of an ``.npz`` file; or a name of the data home or of a public data set,
            which is downloaded into the data home when it isn't there.
        fold: which of several splits.
        home: the data home, see :func:`data_home`; None for the platform's cache folder.
        progress: callback for the progress of a download.
        mirror: an address with copies of the public archives.
        verify: whether to read a store's edges and features once and check their checksums; without it
            even the largest store opens at once.
        step: the length of a step of time, for a file of events; by default what is usual for a public set. Other
            graphs have their steps: another length is refused.
        steps: how many steps of time there are, instead.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, str) and builtin.is_bundled(name):
        if fold != 0:
            raise ValueError(f"{name}: fold {fold} was asked for, but it has 1 (0 to 0); set data.fold")
        return _check_steps(builtin.make(name), step, steps)
    home = data_home({}) if home is None else home
    path = _path(name_or_path) or _in_home(name, home)
    if path is None:
        if name not in PUBLIC_DATASETS:
            raise ValueError(_unknown(name, home))
        path = download_dataset(PUBLIC_DATASETS[name], home, mirror=mirror, progress=progress)
    graph = _read(path, fold, verify, step, steps)
    if isinstance(graph, DynamicGraph) and fold != 0:
        raise ValueError(f"{name}: fold {fold} was asked for, but its split is by time; set data.fold to 0")
    return _check_steps(graph, step, steps)


def _check_steps(graph: Graph | DynamicGraph, step: float | None, steps: int | None) -> Graph | DynamicGraph:
    """Return the graph; refuse steps other than its own, since only event files are cut when read."""
    if step is None and steps is None:
        return graph
    name, asked = ("step", step) if step is not None else ("steps", steps)
    if not isinstance(graph, DynamicGraph):
        raise ValueError(f"{graph.name}: does not change over time, but {name} is {asked}; leave {name} out")
    length, count = graph.protocol.step, graph.num_steps
    at = "one for each distinct time" if length is None else f"each {length:g} long"
    if asked != (length if name == "step" else count):
        raise ValueError(
            f"{graph.name}: has {count} steps, {at}, but {name} is {asked}; leave {name} "
            f'out, or import the events again with "siafu import --{name}"'
        )
    return graph


def only_static(graph: Graph | DynamicGraph) -> Graph:
    """Return a static graph; refuse a dynamic one with a hint."""
    if isinstance(graph, DynamicGraph):
        raise ValueError(
            f'{graph.name}: a graph that changes over time; only method "snapshots" trains on it'
        )
    return graph


def is_store(path: Path) -> bool:
    """Return whether a path is the folder of a store."""
    return (path / MANIFEST).is_file()


def _path(given: str | Path) -> Path | None:
    """Return the path that the user meant, or None for a name."""
    path = Path(given).expanduser()
    written_as_path = isinstance(given, Path) or len(path.parts) > 1 or path.suffix == ".npz"
    return path if written_as_path or is_store(path) or path.is_file() else None


def _in_home(name: str, home: Path) -> Path | None:
    temporal = home / "temporal" / f"{ALIASES.get(name, name)}.npz"
    candidates = [home / f"{name}.npz", home / name, temporal]
    return next((path for path in candidates if path.is_file() or is_store(path)), None)


def _read(path: Path, fold: int, verify: bool, step: float | None, steps: int | None) -> Graph | DynamicGraph:
    if path.is_dir():
        store = open_any(path)
        if isinstance(store, DynamicStore):
            return store.graph(verify=verify)
        return store.graph(fold=fold, verify=verify)
    if not path.exists():
        raise FileNotFoundError(f'{path}: no such file or store; make one with "siafu import"')
    if path.suffix != ".npz":
        raise ValueError(f'{path}: neither a store nor an .npz file; make a store of it with "siafu import"')
    if is_temporal(read_headers(path)):
        return read_temporal(path, step=step, steps=steps)
    return read_npz(path, fold=fold)


def names_in(home: Path) -> list[str]:
    """List the names of the data sets in a data home."""
    if not home.is_dir():
        return []
    files = [*home.glob("*.npz"), *home.glob("temporal/*.npz")]
    stores = [path.name for path in home.iterdir() if is_store(path)]
    return sorted(name for name in {path.stem for path in files} | set(stores) if not name.startswith("."))


def _unknown(name: str, home: Path) -> str:
    known = sorted({*builtin.NAMES, *PUBLIC_DATASETS, *names_in(home)})
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f'no data set or path {name!r}: {hint}"siafu data" lists the names; the data home is {home}'
