"""The store of a dynamic graph: its event log, memory-mapped."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.array_checks import check_classes, check_ids, check_offsets
from siafu.dynamic import DynamicGraph, Protocol
from siafu.dynamic.graph import check
from siafu.store.manifest import MANIFEST, DynamicManifest, ProtocolSpec, read_manifest, write_manifest
from siafu.store.node_names import names_from_arrays, names_to_arrays
from siafu.store.reader import Store, StoreFolder, check_sizes, open_store
from siafu.store.writer import ArrayFolderWriter, provenance_of

_LARGE = ("src", "dst", "weight", "edge_y", "x")
_FIELDS = ("src", "dst", "step_ptr", "weight", "x", "y", "edge_y", "step_time")


def open_dynamic(path: str | Path) -> "DynamicStore":
    """Open the store of a dynamic graph, as :func:`siafu.store.open_store` opens a static one."""
    folder = Path(path)
    manifest = read_manifest(folder)
    if not isinstance(manifest, DynamicManifest):
        raise ValueError(
            f"{folder}: a graph that does not change over time; make one with siafu import --events"
        )
    check_sizes(folder, manifest)
    return DynamicStore(folder, manifest)


def is_dynamic(path: str | Path) -> bool:
    """Return whether a path is the store of a dynamic graph."""
    there = (Path(path) / MANIFEST).is_file()
    return there and isinstance(read_manifest(Path(path)), DynamicManifest)


def open_any(path: str | Path) -> "Store | DynamicStore":
    """Open a store of either kind."""
    return open_dynamic(path) if is_dynamic(path) else open_store(path)


class DynamicStore(StoreFolder[DynamicManifest]):
    """A dynamic graph on disk."""

    def describe(self) -> dict[str, Any]:
        """Summarise the contents as a dict of counts and sizes."""
        manifest, ptr = self.manifest, self._steps("step_ptr")
        events = np.diff(ptr)
        return {
            "name": manifest.name,
            "nodes": manifest.num_nodes,
            "events": manifest.num_events,
            "steps": manifest.num_steps,
            "empty_steps": int((events == 0).sum()),
            **self._time(),
            "largest_step": int(events.max()),
            "edge_life": manifest.protocol.edge_life,
            "largest_snapshot": self._largest_snapshot(ptr),
            "features": manifest.num_features,
            "weights": "weight" in manifest.arrays,
            "labels": "y" in manifest.arrays,
            "edge_labels": "edge_y" in manifest.arrays,
            "undirected": manifest.undirected,
            "bytes": manifest.num_bytes,
        }

    def graph(self, *, verify: bool = True) -> DynamicGraph:
        """Return the graph with memory-mapped arrays; writing to them never changes the store.

        ``verify`` also checks the checksums of events, weights and features; those of the other arrays are always
        checked.
        """
        manifest = self.manifest
        arrays = self._mapped(unless=() if verify else _LARGE)
        tensors = {name: torch.from_numpy(arrays[name]) for name in _FIELDS if name in arrays}
        what = str(self.path)
        check_offsets(tensors["step_ptr"], manifest.num_events, what, field="step_ptr", of="events")
        for name in ("src", "dst") if verify else ():
            check_ids(tensors[name], manifest.num_nodes, what, field=name)
        for name in ("y", "edge_y"):
            if name in tensors:
                check_classes(tensors[name], what, field=name, class_names=manifest.class_names)
        return DynamicGraph(
            **tensors,
            num_nodes=manifest.num_nodes,
            undirected=manifest.undirected,
            name=manifest.name,
            node_names=names_from_arrays(arrays),
            class_names=manifest.class_names,
            protocol=Protocol(**manifest.protocol.model_dump()),
            checked=(tensors["src"], tensors["dst"]),
        )

    def _steps(self, name: str) -> np.ndarray:
        spec = self.manifest.arrays[name]
        return np.fromfile(self.path / spec.file, spec.dtype)

    def _time(self) -> dict[str, float | None]:
        """Return the begin of the first and of the last step, and the length of a step."""
        times = self._steps("step_time") if "step_time" in self.manifest.arrays else None
        first, last = (None, None) if times is None else (float(times[0]), float(times[-1]))
        return {"first_step": first, "last_step": last, "step": self.manifest.protocol.step}

    def _largest_snapshot(self, ptr: np.ndarray) -> int:
        """Return the number of edges of the largest snapshot, for the edge life of the protocol."""
        first = np.maximum(np.arange(1, ptr.size) - self.manifest.protocol.edge_life, 0)
        return int((ptr[1:] - ptr[first]).max()) * (2 if self.manifest.undirected else 1)


class DynamicWriter(ArrayFolderWriter):
    """Writes the store of a dynamic graph; :meth:`finish` moves it to its final path."""

    what = "the store"

    def finish(
        self,
        *,
        name: str,
        num_nodes: int,
        undirected: bool,
        protocol: Protocol,
        class_names: tuple[str, ...] | None = None,
        sources: Mapping[str, str],
        columns: Mapping[str, dict[str, str]] | None = None,
    ) -> DynamicStore:
        """Write the manifest, move the folder to its final path and open it."""
        manifest = DynamicManifest(
            name=name,
            undirected=undirected,
            num_nodes=num_nodes,
            protocol=ProtocolSpec(**asdict(protocol)),
            class_names=class_names,
            arrays=self.close_arrays(),
            provenance=provenance_of(sources, columns),
        )
        write_manifest(manifest, self.folder)
        self.commit()
        return open_dynamic(self.path)


def write_dynamic(
    graph: DynamicGraph, path: str | Path, *, provenance: dict[str, str] | None = None
) -> DynamicStore:
    """Write a graph as a store, a folder that must not exist yet; the graph is checked first."""
    check(graph)
    with DynamicWriter(path) as store:
        for name in _FIELDS:
            value: Tensor | None = getattr(graph, name)
            if value is not None:
                store.add(name, value)
        if graph.node_names is not None:
            for name, values in names_to_arrays(graph.node_names).items():
                store.add(name, values)
        return store.finish(
            name=graph.name,
            num_nodes=graph.num_nodes,
            undirected=graph.undirected,
            protocol=graph.protocol,
            class_names=graph.class_names,
            sources=provenance or {},
        )
