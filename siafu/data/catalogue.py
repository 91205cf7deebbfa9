"""List the data sets: generated ones, those in the data home, and those that can be downloaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.data.loading import is_store, names_in
from siafu.data.npz import Header, read_arrays, read_headers
from siafu.data.public_datasets import PUBLIC_DATASETS, PublicDataset
from siafu.data.temporal import is_temporal
from siafu.store import DynamicStore, open_any


@dataclass(frozen=True)
class Description:
    """A line of the list of data sets.

    Attributes:
        name: what ``load`` takes.
        nodes, edges, features, classes: what it holds; None where that is not known or is up to the user.
        where: its path, the address it would come from, or what makes it.
    """

    name: str
    nodes: int | None
    edges: int | None
    features: int | None
    classes: int | None
    where: str


_BUNDLED = [
    Description("karate", 34, 156, 34, 4, "bundled"),
    Description("community", None, None, 100, 47, "generated: community:nodes=20000,degree=25,seed=0"),
    Description("rmat", None, None, None, None, "generated: rmat:nodes=65536,edges=1048576,seed=0"),
    Description(
        *("transactions", None, None, 2, 2),
        "generated: transactions:nodes=20000,steps=150,events=120000,seed=0 (changes over time)",
    ),
]


def available(home: Path) -> list[Description]:
    """List the data sets: bundled ones, those in the data home, and those that can be downloaded."""
    there = names_in(home)
    missing = [source for name, source in PUBLIC_DATASETS.items() if name not in there]
    return [*_BUNDLED, *(_in_home(name, home) for name in there), *map(_published, missing)]


def _published(source: PublicDataset) -> Description:
    return Description(
        source.name,
        source.nodes,
        source.edges,
        source.features,
        source.classes,
        f"download: {source.url} (licence: {source.licence})",
    )


def _in_home(name: str, home: Path) -> Description:
    path = home / f"{name}.npz"
    try:
        if is_store(home / name) and not path.is_file():
            return _stored(name, home / name)
        return _file(name, path if path.is_file() else home / "temporal" / path.name)
    except (ValueError, OSError) as error:  # one bad file must not hide the others
        return Description(name, None, None, None, None, f"unreadable: {error}")


def _file(name: str, path: Path) -> Description:
    headers = read_headers(path)
    if is_temporal(headers):
        return _events(name, path, headers)
    if "edge_index" not in headers:
        raise ValueError(f"{path}: no array called edge_index")
    small = read_arrays(path, ("num_nodes", "x_shape", "y"))
    y = small.get("y")
    nodes = int(small["num_nodes"]) if "num_nodes" in small else None if y is None else len(y)
    features = int(small["x_shape"][-1]) if "x_shape" in small else 0
    if "x" in headers:
        features = headers["x"].shape[-1]
    return Description(name, nodes, headers["edge_index"].shape[-1], features, _num_classes(y), str(path))


def _stored(name: str, path: Path) -> Description:
    store = open_any(path)
    if isinstance(store, DynamicStore):
        about = store.manifest
        size = about.num_nodes, about.num_events, about.num_features
        return Description(name, *size, None, f"{path} (changes over time: {about.num_steps} steps)")
    manifest = store.manifest
    classes = None if manifest.class_names is None else len(manifest.class_names)
    y = manifest.arrays.get("y")
    if classes is None and (y is None or y.dtype != "float32"):
        classes = _num_classes(None if y is None else np.fromfile(path / y.file, y.dtype).reshape(y.shape))
    size = manifest.num_nodes, manifest.num_edges, manifest.num_features
    return Description(name, *size, classes, str(path))


def _num_classes(y: NDArray[Any] | None) -> int:
    """Count the classes of labels; 0 for regression targets."""
    if y is None or y.dtype.kind == "f":
        return 0
    return y.shape[1] if y.ndim == 2 else int(y.max(initial=-1)) + 1


def _events(name: str, path: Path, headers: dict[str, Header]) -> Description:
    small = read_arrays(path, ("num_nodes",))
    nodes = int(small["num_nodes"]) if "num_nodes" in small else None
    features = headers["x"].shape[-1] if "x" in headers else 0
    return Description(name, nodes, headers["src"].shape[0], features, 0, f"{path} (changes over time)")
