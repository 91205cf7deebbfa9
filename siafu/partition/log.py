"""Bring each rank the log of a graph that changes over time: from a folder it sees, else over the wire from rank 0."""

import tempfile
from pathlib import Path

import torch

from siafu.comm import Comm
from siafu.comm.memory import from_bytes
from siafu.dynamic import DynamicGraph
from siafu.partition.deliver import receive_file, send_file
from siafu.store import DynamicManifest, is_dynamic, open_dynamic
from siafu.store.manifest import MANIFEST, parse_manifest

_LABEL = "graph"


def deliver_log(comm: Comm, path: Path) -> DynamicGraph:
    """The graph of the store at ``path``, a folder that rank 0 sees. Collective.

    What comes over the wire is written to a temporary folder and mapped from there; the folder is gone as soon as it is
    mapped.
    """
    read = None if comm.rank else from_bytes((path / MANIFEST).read_bytes())
    text = comm.broadcast(read, label=_LABEL).numpy().tobytes()
    manifest = parse_manifest(text, str(path / MANIFEST))
    assert isinstance(manifest, DynamicManifest)
    seen = is_dynamic(path) and (path / MANIFEST).read_bytes() == text
    sees = comm.all_gather(torch.tensor([seen]), label=_LABEL)
    if seen:
        graph = open_dynamic(path).graph()
        for rank in (rank for rank, it in enumerate(sees) if not it and comm.rank == 0):
            for spec in manifest.arrays.values():
                send_file(comm, rank, path / spec.file, label=_LABEL)
        return graph
    with tempfile.TemporaryDirectory(prefix="siafu-log-") as folder:
        (Path(folder) / MANIFEST).write_bytes(text)
        for spec in manifest.arrays.values():
            receive_file(comm, Path(folder), spec, label=_LABEL)
        return open_dynamic(folder).graph()
