"""Give each rank the shard of a dynamic graph that it reads: from a shared folder, else from rank 0.

A rank that can read the store maps it. Any other rank receives its shard from rank 0: the events of the steps that it
reads, packed as key frames and deltas or as sorted pairs, and the feature and label rows of those steps. Reading any
other step raises an error.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import torch
from pydantic import Field
from torch import Tensor

from siafu.array_checks import check_offsets
from siafu.comm import Comm
from siafu.comm.tensor_bytes import byte_view, tensor_from_bytes
from siafu.dynamic import Chunk, DynamicGraph, Protocol, events_of
from siafu.partition.log_shard import LogShard, array_slices, pack_events, split_steps
from siafu.prefetch import prefetch
from siafu.store import DynamicManifest, is_dynamic, open_dynamic
from siafu.store.manifest import MANIFEST, ArraySpec, StrictModel, parse_manifest
from siafu.user_input import MAX_NODES

Shares = Callable[[DynamicGraph], Sequence[LogShard]]

HEADER, DELTAS, EVENTS, ROWS = "graph", "graph deltas", "graph events", "graph rows"
_EVENTS = {"src": torch.int32, "dst": torch.int32, "weight": torch.float32, "edge_y": torch.int64}
_ROWS = {"int64": torch.int64, "float32": torch.float32}


class _ShardHeader(StrictModel):
    """The header that rank 0 sends before a shard: the fields of :class:`LogShard`, and the order of its arrays."""

    pieces: tuple[tuple[int, int], ...]
    arrays: tuple[Literal["src", "dst", "weight", "edge_y"], ...]
    events: tuple[int, ...]
    features: tuple[int, ...] | None
    labels: tuple[int, ...] | None
    weighted: bool
    as_given: bool
    classes: Annotated[int, Field(ge=0, le=MAX_NODES)]

    def check(self, manifest: DynamicManifest) -> None:
        """Refuse steps outside the log."""
        steps = range(manifest.num_steps)
        named = {*(self.features or ()), *(self.labels or ()), *self.events}
        ends = [end for piece in self.pieces for end in piece]
        in_order = ends == sorted(ends) and all(0 <= end <= len(steps) for end in ends)
        if not in_order or not all(step in steps for step in named) or not {"src", "dst"} <= set(self.arrays):
            raise ValueError(
                f"{manifest.name}: rank 0 names steps or arrays that are not there; send it again"
            )


def distribute_log(comm: Comm, path: Path, shares: Shares) -> DynamicGraph:
    """Return the graph of the store at ``path``, which rank 0 can read, or this rank's shard of it. Collective.

    ``shares`` returns the shard of each rank; rank 0 calls it if some rank cannot read the folder. Such a rank writes
    its shard to a temporary folder and maps it from there; the folder is deleted as soon as it is mapped.
    """
    read = None if comm.rank else tensor_from_bytes((path / MANIFEST).read_bytes())
    text = comm.broadcast(read, label=HEADER).numpy().tobytes()
    manifest = parse_manifest(text, str(path / MANIFEST))
    assert isinstance(manifest, DynamicManifest)
    seen = is_dynamic(path) and (path / MANIFEST).read_bytes() == text
    sees = comm.all_gather(torch.tensor([seen]), label=HEADER)
    if seen:
        graph = open_dynamic(path).graph()
        lacking = [rank for rank, it in enumerate(sees) if not it and comm.rank == 0]
        if lacking:
            each = shares(graph)
            for rank in lacking:
                for label, values in prefetch(_messages(graph, each[rank])):
                    comm.send(rank, values, label=label)
        return graph
    with tempfile.TemporaryDirectory(prefix="siafu-log-") as folder:
        return _received(comm, manifest, Path(folder))


def _messages(graph: DynamicGraph, share: LogShard) -> Iterator[tuple[str, Tensor]]:
    """Yield all messages of a rank's shard, in the order in which :func:`_received` reads them."""
    cut, names = split_steps(graph, share.events), _names(graph, share)
    about = {"pieces": [[steps.start, steps.stop] for steps in cut], "arrays": names}
    yield HEADER, tensor_from_bytes(json.dumps(about | asdict(share)).encode())
    yield HEADER, graph.step_ptr
    for steps in cut:
        if share.as_given:
            events = graph.events(steps.start, steps.stop)
            yield from ((EVENTS, getattr(graph, name)[events]) for name in names)
        else:
            yield DELTAS, pack_events(graph, steps, weighted=share.weighted).to_bytes()
    for values, read in ((graph.x, share.features), (graph.y, share.labels)):
        if values is not None:
            flat = values.reshape(-1)
            yield from ((ROWS, flat[place]) for place in array_slices(values.shape, read))


def _names(graph: DynamicGraph, share: LogShard) -> list[str]:
    """Return the names of the event arrays that a rank gets."""
    read = {"src": True, "dst": True, "weight": share.weighted, "edge_y": share.as_given}
    return [name for name in _EVENTS if read[name] and getattr(graph, name) is not None]


def _received(comm: Comm, manifest: DynamicManifest, folder: Path) -> DynamicGraph:
    """Receive this rank's shard from rank 0."""
    about = _ShardHeader.model_validate_json(comm.receive(0, label=HEADER).numpy().tobytes())
    whole_ptr = comm.receive(0, label=HEADER)
    check_offsets(whole_ptr, manifest.num_events, manifest.name, field="whole_ptr", of="events")
    about.check(manifest)
    counts = torch.zeros(manifest.num_steps, dtype=torch.int64)
    with ExitStack() as opened:
        files: dict[str, BinaryIO] = {
            name: opened.enter_context((folder / name).open("wb")) for name in about.arrays
        }
        for start, stop in about.pieces:
            if about.as_given:
                _receive_events(comm, files)
            else:
                _receive_chunk(comm, files, manifest.num_nodes)
            counts[start:stop] = whole_ptr[start : stop + 1].diff()
    ptr = torch.zeros_like(whole_ptr)
    ptr[1:] = counts.cumsum(0)
    events: dict[str, Any] = {
        name: _mapped(folder / name, (int(ptr[-1]),), _EVENTS[name]) for name in about.arrays
    }
    rows: dict[str, Any] = {
        name: _receive_rows(comm, folder / name, manifest.arrays[name], steps)
        for name, steps in (("x", about.features), ("y", about.labels))
        if name in manifest.arrays
    }
    return DynamicGraph(
        **events,
        **rows,
        step_ptr=ptr,
        whole_ptr=whole_ptr,
        num_nodes=manifest.num_nodes,
        undirected=manifest.undirected,
        name=manifest.name,
        class_names=_class_names(manifest.class_names or (), about.classes),
        protocol=Protocol(**manifest.protocol.model_dump()),
    )


def _receive_events(comm: Comm, files: dict[str, BinaryIO]) -> None:
    for file in files.values():
        file.write(byte_view(comm.receive(0, label=EVENTS)))


def _receive_chunk(comm: Comm, files: dict[str, BinaryIO], num_nodes: int) -> None:
    chunk = Chunk.from_bytes(comm.receive(0, label=DELTAS))
    if chunk.num_nodes != num_nodes or (chunk.weight is None) == ("weight" in files):
        raise ValueError(
            f"packed snapshots of {chunk.num_nodes} nodes came, with other arrays than were said; expected {num_nodes}"
        )
    for ends in events_of(chunk):
        for name, values in zip(("src", "dst"), ends, strict=True):
            files[name].write(byte_view(values.contiguous()))
    if chunk.weight is not None:
        files["weight"].write(byte_view(chunk.weight))


def _receive_rows(comm: Comm, path: Path, spec: ArraySpec, steps: Sequence[int] | None) -> Tensor:
    """Receive an array of rows; rows that are not sent are a hole in the file and read as zeros."""
    dtype = _ROWS[spec.dtype]
    with path.open("wb") as file:
        for place in array_slices(spec.shape, steps):
            file.seek(place.start * dtype.itemsize)
            file.write(byte_view(comm.receive(0, label=ROWS)))
        file.truncate(spec.num_bytes)
    return _mapped(path, spec.shape, dtype)


def _mapped(path: Path, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Map an array from a file, copy-on-write."""
    size = math.prod(shape)
    if not size:
        return torch.empty(*shape, dtype=dtype)
    found, expected = path.stat().st_size, size * dtype.itemsize
    if found != expected:
        raise ValueError(
            f"rank 0 sent {found} bytes of {path.name}; expected {expected}: send the graph again"
        )
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype).view(*shape)


def _class_names(names: Sequence[str], classes: int) -> tuple[str, ...] | None:
    """Return a name for each class, so that a rank that sees few labels knows the number of classes."""
    return (*names, *map(str, range(len(names), classes))) or None
