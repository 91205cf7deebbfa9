"""The folder of an OGB node-property data set: ``raw/`` as text or arrays, and ``split/<scheme>/``."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from siafu.data.importing.edges import EdgeSource, array_edges, edges_in
from siafu.data.importing.features import FeatureSource, TableFeatures, array_features
from siafu.data.importing.labels import LabelKind, Labels, checked_labels, whole_classes
from siafu.data.importing.limits import DEFAULT, Limits
from siafu.data.importing.numpy_files import NpyFile, names_in_npz, open_npy, unpack_npz
from siafu.data.importing.tables import Table, open_table
from siafu.event_log import no_progress
from siafu.store import TEST, TRAIN, UNUSED, VALIDATION, split_masks

_ARRAYS = ("edge_index", "num_nodes_list", "num_nodes", "node_feat")
_PARTS = {"train": TRAIN, "valid": VALIDATION, "test": TEST}


@dataclass(frozen=True)
class OgbFolder:
    """The contents of the folder; ids are row numbers."""

    edges: EdgeSource
    num_nodes: int
    features: FeatureSource | None
    labels: Labels | None


def open_ogb(folder: Path, scratch: Path, kind: LabelKind | None, limits: Limits) -> OgbFolder:
    """Open the raw files of an OGB folder."""
    raw = folder / "raw"
    if (raw / "edge.csv.gz").exists():
        return _open_text(raw, kind, limits)
    if (raw / "data.npz").exists():
        return _open_arrays(raw, scratch, kind, limits)
    raise ValueError(
        f"{raw} has neither edge.csv.gz nor data.npz; expected the layout of an OGB node-property data set "
        "with one kind of node"
    )


def read_ogb_split(folder: Path, num_nodes: int) -> dict[str, np.ndarray] | None:
    """Read the masks of ``split/<scheme>/`` (or of a scheme's own folder); None if there is no split."""
    scheme = _scheme(folder)
    if scheme is None:
        return None
    codes = np.full(num_nodes, UNUSED, dtype=np.int8)
    for part, code in _PARTS.items():
        rows, path = _split_part(scheme, part)
        bad = (rows < 0) | (rows >= num_nodes)
        if bad.any():
            found = rows[bad.argmax()]
            raise ValueError(f"{path}: row {bad.argmax()} names node {found}; there are {num_nodes} nodes")
        taken = codes[rows] != UNUSED
        if taken.any():
            raise ValueError(
                f"{path}: row {taken.argmax()} names node {rows[taken.argmax()]}, which another part has"
            )
        codes[rows] = code
    return split_masks(codes, str(scheme))


def _open_text(raw: Path, kind: LabelKind | None, limits: Limits) -> OgbFolder:
    count = _numbers(raw / "num-node-list.csv.gz").ravel()
    edges = edges_in(open_table(raw / "edge.csv.gz", wanted=("src", "dst"), header=False, limits=limits))
    features = labels = None
    if (raw / "node-feat.csv.gz").exists():
        table = _plain_table(raw / "node-feat.csv.gz", pa.float32(), limits)
        features = TableFeatures(table, None, table.names)
    if (raw / "node-label.csv.gz").exists():
        labels = _labels(_numbers(raw / "node-label.csv.gz"), raw / "node-label.csv.gz", kind)
    return OgbFolder(edges, _one_graph(count, raw / "num-node-list.csv.gz"), features, labels)


def _open_arrays(raw: Path, scratch: Path, kind: LabelKind | None, limits: Limits) -> OgbFolder:
    arrays = unpack_npz(raw / "data.npz", scratch / "data", _ARRAYS, limits)
    counts = arrays.get("num_nodes_list", arrays.get("num_nodes"))
    if counts is None or "edge_index" not in arrays:
        raise ValueError(
            f"{raw / 'data.npz'} holds {', '.join(names_in_npz(raw / 'data.npz'))}; expected edge_index and "
            "num_nodes_list"
        )
    features = array_features(arrays["node_feat"]) if "node_feat" in arrays else None
    labels = None
    if (raw / "node-label.npz").exists():
        packed = unpack_npz(raw / "node-label.npz", scratch / "label", ("node_label",), limits)
        if "node_label" not in packed:
            found = ", ".join(names_in_npz(raw / "node-label.npz"))
            raise ValueError(f"{raw / 'node-label.npz'} holds {found}; expected node_label")
        labels = _labels(packed["node_label"].read(), raw / "node-label.npz", kind)
    num_nodes = _one_graph(counts.read().ravel(), raw / "data.npz")
    return OgbFolder(array_edges(arrays["edge_index"]), num_nodes, features, labels)


def _one_graph(counts: np.ndarray, path: Path) -> int:
    if counts.size != 1 or not counts[0] >= 1:
        raise ValueError(f"{path} counts {counts.size} graphs; expected one, with at least one node")
    return int(counts[0])


def _labels(values: np.ndarray, path: Path, kind: LabelKind | None) -> Labels:
    """Convert whole numbers of any dtype to classes, NaN to unlabelled."""
    values = whole_classes(values) if kind is None else values
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 and kind != "multilabel" else values
    return Labels(checked_labels(values, lambda row: f"{path}: row {row}", kind), None)


def _scheme(folder: Path) -> Path | None:
    if any((folder / f"train{suffix}").exists() for suffix in (".csv.gz", ".npy", ".pt")):
        return folder
    if not (folder / "split").is_dir():
        return None
    schemes = sorted(path for path in (folder / "split").iterdir() if path.is_dir())
    if len(schemes) > 1:
        names = ", ".join(path.name for path in schemes)
        raise ValueError(
            f"{folder / 'split'} holds several schemes ({names}); give one of the folders as the split"
        )
    return schemes[0] if schemes else None


def _split_part(scheme: Path, part: str) -> tuple[np.ndarray, Path]:
    for suffix in (".csv.gz", ".npy"):
        path = scheme / f"{part}{suffix}"
        if path.exists():
            values = (_numbers(path) if suffix == ".csv.gz" else _array(open_npy(path))).ravel()
            if not np.array_equal(values, np.floor(values)):  # an empty field is NaN, which equals nothing
                raise ValueError(f"{path} holds other things than row numbers; expected one a line")
            return values.astype(np.int64), path
    if (scheme / f"{part}.pt").exists():
        raise ValueError(
            f"{scheme / part}.pt is a pickle, which is never read, since that can run code; write the row "
            f"numbers to {part}.csv.gz, one a line, or to {part}.npy"
        )
    raise FileNotFoundError(f"{scheme} has no {part}.csv.gz or {part}.npy")


def _array(array: NpyFile) -> np.ndarray:
    if array.dtype.kind not in "iu":
        raise ValueError(f"{array.shown} is an array of {array.dtype}; expected row numbers")
    return array.read()


def _plain_table(path: Path, kind: pa.DataType, limits: Limits = DEFAULT) -> Table:
    table = open_table(path, wanted=(), header=False, limits=limits)
    return table.read_as(dict.fromkeys(table.names, kind))


def _numbers(path: Path) -> np.ndarray:
    """Read a table of numbers without header, (n, columns) float64 with NaN for an empty field."""
    table = _plain_table(path, pa.float64())
    batches = [b.columns for b in table.batches(table.names, label="labels", progress=no_progress)]
    return np.concatenate(
        [np.stack([c.to_numpy(zero_copy_only=False) for c in b.columns], 1) for b in batches]
    )
