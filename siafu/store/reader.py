"""Read a store with memory-mapped arrays, so that a graph may be larger than memory."""

import mmap
import sys
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import xxhash
from torch import Tensor

from siafu.array_checks import ValidatedCsr, check_classes, check_ids, check_offsets
from siafu.columns import Columns
from siafu.graph import Graph
from siafu.store.columns import read_columns
from siafu.store.manifest import (
    EDGE_COLUMN,
    NODE_COLUMN,
    ArraySpec,
    DynamicManifest,
    Manifest,
    read_manifest,
)
from siafu.store.node_names import names_from_arrays
from siafu.store.sparse_features import SPARSE_FEATURES, join_arrays
from siafu.store.splits import MASKS, check_disjoint, pick_fold

M = TypeVar("M", bound=Manifest | DynamicManifest)
_LARGE = ("indices", "x", *SPARSE_FEATURES, "edge_weight")
_CHUNK = 1 << 22
_AGAIN = "copy or import the store again"
# A private mapping counts against the machine's memory unless no swap is reserved for it; named from 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def open_store(path: str | Path) -> "Store":
    """Open a store; check its manifest and the sizes of its files, but read no array yet."""
    folder = Path(path)
    manifest = read_manifest(folder)
    if not isinstance(manifest, Manifest):
        raise ValueError(f"{folder}: a graph that changes over time; this needs one that does not")
    check_sizes(folder, manifest)
    return Store(folder, manifest)


class StoreFolder(Generic[M]):
    """The folder of a store of either kind.

    Attributes:
        path: its folder.
        manifest: what it holds.
    """

    def __init__(self, path: Path, manifest: M) -> None:
        self.path = path
        self.manifest = manifest

    def verify(self) -> None:
        """Read every array and check its checksum."""
        for spec in self.manifest.arrays.values():
            verify_array(self.path, spec)

    def _mapped(self, *, unless: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Map all arrays but columns of edges; verify the checksums of those not named in ``unless``."""
        arrays = {}
        for name, spec in self.manifest.arrays.items():
            if name.startswith(EDGE_COLUMN):
                continue
            if name not in unless:
                verify_array(self.path, spec)
            arrays[name] = _map_file(self.path / spec.file, spec)
        return arrays


class Store(StoreFolder[Manifest]):
    """A graph on disk."""

    def describe(self) -> dict[str, Any]:
        """Summarise the contents as a dict of counts and sizes."""
        manifest = self.manifest
        return {
            "name": manifest.name,
            "nodes": manifest.num_nodes,
            "edges": manifest.num_edges,
            "features": manifest.num_features,
            "feature_dtype": self._feature_dtype,
            "sparse_features": manifest.sparse_features is not None,
            "columns": {column.name: column.kind for column in manifest.columns} or None,
            "edge_columns": {column.name: column.kind for column in manifest.edge_columns} or None,
            "classes": len(manifest.class_names) if manifest.class_names else None,
            "labels": "y" in manifest.arrays,
            "folds": manifest.num_folds,
            "undirected": manifest.undirected,
            "bytes": manifest.num_bytes,
        }

    @property
    def _feature_dtype(self) -> str | None:
        arrays = self.manifest.arrays
        return next((arrays[name].dtype for name in ("x", "x_values") if name in arrays), None)

    def graph(self, *, fold: int = 0, verify: bool = True) -> Graph:
        """Return the graph, its arrays mapped into memory; writing to them never changes the store.

        Args:
            fold: which of several splits to use.
            verify: whether to hold the edges, their weights and the features to their checksums as well; the
                other arrays always are.
        """
        self._check_fold(fold)
        return self._assemble(self._mapped(unless=() if verify else _LARGE), fold, verify=verify)

    def _assemble(self, arrays: dict[str, np.ndarray], fold: int, *, verify: bool) -> Graph:
        tensors: dict[str, Any] = {name: torch.from_numpy(arrays[name]) for name in _FIELDS if name in arrays}
        masks: dict[str, Any] = {name: pick_fold(arrays[name], fold) for name in MASKS if name in arrays}
        tensors["checked"] = self._check(tensors, masks, ids=verify)
        join_arrays(tensors, self.manifest.sparse_features, str(self.path), check=verify)
        if "x" in self.manifest.arrays and self.manifest.arrays["x"].dtype == "bfloat16":
            tensors["x"] = tensors["x"].view(torch.bfloat16)
        return Graph(
            **tensors,
            **masks,
            name=self.manifest.name,
            node_names=names_from_arrays(arrays),
            class_names=self.manifest.class_names,
            columns=read_columns(arrays, NODE_COLUMN, self.manifest.columns, str(self.path)) or None,
        )

    def edge_columns(self) -> Columns:
        """Return the typed columns of the edges, in the order of ``indices``; their checksums are verified."""
        specs = {n: s for n, s in self.manifest.arrays.items() if n.startswith(EDGE_COLUMN)}
        for spec in specs.values():
            verify_array(self.path, spec)
        arrays = {name: _map_file(self.path / spec.file, spec) for name, spec in specs.items()}
        return read_columns(arrays, EDGE_COLUMN, self.manifest.edge_columns, str(self.path))

    def _check(self, tensors: dict[str, Tensor], masks: dict[str, Tensor], *, ids: bool) -> ValidatedCsr:
        """Refuse arrays that are intact but out of range; without ``ids`` the edges' ids are not read."""
        what, num_nodes, indices = str(self.path), self.manifest.num_nodes, tensors["indices"]
        check_offsets(tensors["indptr"], indices.numel(), what)
        if ids:
            check_ids(indices, num_nodes, what)
        if "y" in tensors:
            check_classes(tensors["y"], what, class_names=self.manifest.class_names)
        check_disjoint({name: mask.numpy() for name, mask in masks.items()}, what)
        return ValidatedCsr(tensors["indptr"], indices, num_nodes)

    def _check_fold(self, fold: int) -> None:
        folds = self.manifest.num_folds
        if fold != 0 and not 0 <= fold < folds:
            has = f"{folds} splits, 0 to {folds - 1}" if folds else "no split"
            raise ValueError(
                f"{self.path}: fold {fold} was asked for, but the store has {has}; set data.fold"
            )


_FIELDS = ("indptr", "indices", "x", *SPARSE_FEATURES, "x_scale", "y", "edge_weight", "node_id")


def check_sizes(folder: Path, manifest: Manifest | DynamicManifest) -> None:
    """Refuse a store with missing files, or files of another size than the manifest says."""
    for spec in manifest.arrays.values():
        _check_size(folder / spec.file, spec)


def verify_array(folder: Path, spec: ArraySpec, *, again: str = _AGAIN) -> None:
    """Read an array's file and check its size and checksum; ``again`` says how to get it anew."""
    path = folder / spec.file
    _check_size(path, spec, again)
    found = _checksum(path)
    if found != spec.xxh3_128:
        raise ValueError(
            f"{path}: checksum is {found}, but the manifest says {spec.xxh3_128}: it was changed or damaged; {again}"
        )


def map_array(folder: Path, spec: ArraySpec, *, again: str = _AGAIN) -> Tensor:
    """Map an array into memory; writing to it never changes the file."""
    _check_size(folder / spec.file, spec, again)
    values = torch.from_numpy(_map_file(folder / spec.file, spec))
    match spec.dtype:
        case "bfloat16":
            return values.view(torch.bfloat16)
        case "bool":
            return values != 0
    return values


def _checksum(path: Path) -> str:
    state, buffer = xxhash.xxh3_128(), bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(view[:count])
    return state.hexdigest()


def _check_size(path: Path, spec: ArraySpec, again: str = _AGAIN) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; {again}") from None
    if not path.is_file() or found != spec.num_bytes:
        raise ValueError(
            f"{path}: {found} bytes; expected {spec.num_bytes} for {spec.shape} {spec.dtype}: it was cut "
            f"off or changed; {again}"
        )


def _map_file(path: Path, spec: ArraySpec) -> np.ndarray:
    """Map an array copy-on-write; bfloat16 comes as int16, since NumPy has no such type."""
    dtype = np.dtype("int16" if spec.dtype == "bfloat16" else spec.dtype).newbyteorder("<")
    if spec.num_bytes == 0:
        return np.empty(spec.shape, dtype)
    with path.open("rb") as file:
        flags, access = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        mapped = mmap.mmap(file.fileno(), spec.num_bytes, flags=flags, prot=access)
    if spec.dtype == "bool":
        dtype = np.dtype(np.uint8)  # read as numbers: bytes other than 0 and 1 are no booleans
    return np.frombuffer(mapped, dtype=dtype).reshape(spec.shape)
