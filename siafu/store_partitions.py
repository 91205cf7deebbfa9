"""Create and list the partitions of a store."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from siafu.data.config import DataConfig
from siafu.data.loading import is_store
from siafu.event_log import Progress, no_progress
from siafu.graph import Graph
from siafu.partition.create import PartitionRequest, find_or_create
from siafu.partition.parts import is_partition, open_partition
from siafu.store import open_store
from siafu.training import inputs

PARTS = "parts"  # the folder of partitions within a store


def partition_request(
    graph: Graph,
    *,
    parts: int,
    by: str = "stream",
    fold: int = 0,
    reorder: Literal["auto", "on", "off"] = "auto",
) -> PartitionRequest:
    """Describe the partition of a graph into ``parts``; ``reorder`` has the values of ``data.reorder``."""
    near = inputs.resolve(DataConfig(fold=fold, reorder=reorder), graph).reorder == "on"
    return PartitionRequest(parts, by, fold, near, inputs.fingerprint(graph))


def partition_home(source: str | Path, wanted: PartitionRequest, *, otherwise: Path) -> Path:
    """Return the folder for a partition: the store's ``parts`` if it is a writable store, else ``otherwise``."""
    store = Path(source)
    if not str(source) or not is_store(store):
        return otherwise
    there = is_partition(store / PARTS / wanted.name) or os.access(store, os.W_OK)
    return store / PARTS if there else otherwise


def partition_store(
    path: Path,
    *,
    parts: int,
    by: str = "stream",
    fold: int = 0,
    reorder: Literal["auto", "on", "off"] = "auto",
    say: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Partition a store, or find an existing partition; returns its sizes.

    ``reorder`` says whether neighbours are placed near each other within a part; see ``data.reorder``.
    """
    graph = open_store(path).graph(fold=fold).encoded()
    wanted = partition_request(graph, parts=parts, by=by, fold=fold, reorder=reorder)
    found = find_or_create(path / PARTS, graph, wanted, say=say, progress=progress)
    nodes = [spec.arrays["node_id"].shape[0] for spec in found.manifest.parts]
    edges = [spec.arrays["indices"].shape[0] for spec in found.manifest.parts]
    halo = [sum(spec.recv) for spec in found.manifest.parts]
    return {
        "partition": str(found.path),
        "parts": parts,
        "by": by,
        "nodes": nodes,
        "edges": edges,
        "halo": halo,
        "bytes": sum(array.num_bytes for spec in found.manifest.parts for array in spec.arrays.values()),
    }


def list_partitions(path: Path, *, verify: bool = False) -> list[str]:
    """List the partitions of a store by name; ``verify`` checks the checksum of every array."""
    found = sorted(each for each in (path / PARTS).glob("[!.]*") if is_partition(each))
    for each in found:
        partition = open_partition(each)
        if verify:
            partition.verify()
    return [each.name for each in found]
