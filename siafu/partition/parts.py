"""Parts on disk: one folder of raw, checksummed arrays and a sealed ``partition.json`` that lists those of each part.

A rank reads its own arrays alone, so a part can be sent to a host that has no other.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

import siafu
from siafu import native
from siafu.array_checks import check_array, check_csr, check_ids
from siafu.comm.route import Route
from siafu.event_log import Progress, no_progress
from siafu.graph import Graph
from siafu.native import Csr, SparseRows
from siafu.partition.cut import NODE_FIELDS, Part, PartRows, user_rows
from siafu.store.manifest import (
    ArraySpec,
    DType,
    StrictModel,
    check_sparse,
    parse_checksummed,
    write_checksummed,
)
from siafu.store.reader import map_array, verify_array
from siafu.store.sparse_features import SPARSE_FEATURES, join_arrays, row_chunks
from siafu.store.writer import ArrayFolderWriter, ArrayWriter

PARTITION = "partition.json"
AGAIN = 'remove the folder and make it again with "siafu partition"'
_CHUNK_BYTES = 1 << 26
_REQUIRED = {"indptr", "indices", "node_id", "halo_id", "route"}
_ARRAYS = {*_REQUIRED, "edge_weight", *NODE_FIELDS, *SPARSE_FEATURES}
_Count = Annotated[int, Field(ge=0)]


class PartSpec(StrictModel):
    """One part on disk.

    Attributes:
        send, recv: rows that go to and come from each part.
        arrays: by name: the fields of :class:`siafu.partition.cut.Part` and of its graph.
    """

    send: tuple[_Count, ...]
    recv: tuple[_Count, ...]
    arrays: dict[str, ArraySpec]

    @model_validator(mode="after")
    def _arrays_known(self) -> "PartSpec":
        missing, unknown = _REQUIRED - self.arrays.keys(), self.arrays.keys() - _ARRAYS
        if missing or unknown:
            found = ", ".join(sorted(missing or unknown))
            raise ValueError(f"arrays {'lacks' if missing else 'has an unknown'} {found}")
        if any(len(spec.shape) not in (1, 2) for spec in self.arrays.values()):
            raise ValueError("an array has neither one nor two dimensions")
        return self


class PartitionManifest(StrictModel):
    """The contents of ``partition.json``.

    Attributes:
        siafu_version: that wrote it.
        fingerprint: of the graph that was cut.
        name, class_names: of the graph.
        num_nodes: of the graph.
        by: how nodes were assigned.
        parts: each of them.
        sparse_features: F of features that are stored as compressed sparse rows; None for dense ones.
    """

    schema_version: Literal[1] = 1
    kind: Literal["partition"] = "partition"
    siafu_version: str
    fingerprint: str
    name: str
    class_names: tuple[str, ...] | None
    num_nodes: int
    by: str
    parts: tuple[PartSpec, ...]
    sparse_features: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> "PartitionManifest":
        places = range(len(self.parts))
        if any(len(spec.send) != len(places) or len(spec.recv) != len(places) for spec in self.parts):
            raise ValueError(
                f"a part does not say what it sends to and gets from each of {len(places)} parts"
            )
        for a in places:
            for b in places:
                sent, got = self.parts[a].send[b], self.parts[b].recv[a]
                if sent != got:
                    raise ValueError(f"part {a} sends {sent} rows to part {b}, which gets {got}")
        for spec in self.parts:
            check_sparse(spec.arrays, self.sparse_features)
        owned = sum(spec.arrays["node_id"].shape[0] for spec in self.parts)
        if owned != self.num_nodes:
            raise ValueError(f"the parts own {owned} nodes of {self.num_nodes}")
        return self


class Partition:
    """A partition on disk.

    Attributes:
        path: its folder.
        manifest: what it holds.
    """

    def __init__(self, path: Path, manifest: PartitionManifest) -> None:
        self.path, self.manifest = path, manifest

    @property
    def num_edges(self) -> int:
        """The number of edges of the whole graph."""
        return sum(spec.arrays["indices"].shape[0] for spec in self.manifest.parts)

    def part(self, number: int) -> Part:
        """Map one part into memory; check its checksums and the ranges of its values."""
        spec = self.manifest.parts[number]
        arrays: dict[str, Tensor] = {}
        for name, array in spec.arrays.items():
            verify_array(self.path, array, again=AGAIN)
            arrays[name] = map_array(self.path, array, again=AGAIN)
        try:
            return self._assemble(number, spec, arrays)
        except ValueError as error:
            raise ValueError(f"{self.path}: part {number}: {error}; {AGAIN}") from None

    def _assemble(self, number: int, spec: PartSpec, arrays: dict[str, Tensor]) -> Part:
        index, halo_id = arrays.pop("route"), arrays.pop("halo_id")
        name, num_nodes = self.manifest.name, self.manifest.num_nodes
        check_array(index, "route", torch.int64, (sum(spec.send),))
        check_array(halo_id, "halo_id", torch.int64, (sum(spec.recv),))
        num_own = arrays["node_id"].shape[0]
        known = check_csr(arrays["indptr"], arrays["indices"], num_own + halo_id.numel(), name)
        fields: dict[str, Any] = dict(arrays)
        join_arrays(fields, self.manifest.sparse_features, name)
        own = Graph(
            **fields,
            name=name,
            class_names=self.manifest.class_names,
            num_halo=halo_id.numel(),
            checked=known,
        )
        check_ids(index, num_own, name, field="route")
        for field, ids in (("node_id", own.node_id), ("halo_id", halo_id)):
            assert ids is not None
            check_ids(ids, num_nodes, name, field=field)
        row = native.first_unsorted_row(Csr(own.indptr, own.indices))
        if row >= 0:
            raise ValueError(
                f"{name}: the indices of row {row} fall; expected own rows, then halo rows, ascending"
            )
        return Part(number, num_nodes, own, halo_id, Route(index, spec.send, spec.recv))

    def verify(self) -> None:
        """Read every array of every part and check its checksum."""
        for spec in self.manifest.parts:
            for array in spec.arrays.values():
                verify_array(self.path, array, again=AGAIN)


def is_partition(path: Path) -> bool:
    """Return whether a path is the folder of a partition."""
    return (path / PARTITION).is_file()


def open_partition(path: Path) -> Partition:
    """Open a partition and check its manifest; no array is read yet."""
    if not is_partition(path):
        raise FileNotFoundError(
            f'{path} is not a partition: it has no {PARTITION}; make one with "siafu partition"'
        )
    text = (path / PARTITION).read_bytes()
    return Partition(path, parse_checksummed(text, PartitionManifest, str(path / PARTITION), again=AGAIN))


def write_partition(
    path: Path,
    graph: Graph,
    cuts: Iterable[PartRows],
    *,
    fingerprint: str,
    by: str,
    progress: Progress = no_progress,
) -> Partition:
    """Write each part as it is cut; the folder, which must not exist, appears complete or not at all."""
    with _PartitionWriter(path) as writer:
        routes, arrays = [], dict[str, ArraySpec]()
        for done, one in enumerate(cuts):
            _write_part(writer, one, graph)
            arrays |= (
                writer.close_arrays()
            )  # part by part: a process may hold so many open files, and no more
            routes.append(one.route)
            progress("writing parts", done + 1, None)
        manifest = PartitionManifest(
            siafu_version=siafu.__version__,
            fingerprint=fingerprint,
            name=graph.name,
            class_names=graph.class_names,
            num_nodes=graph.num_nodes,
            by=by,
            parts=tuple(_specs(arrays, routes)),
            sparse_features=graph.x.width if isinstance(graph.x, SparseRows) else None,
        )
        write_checksummed(writer.folder / PARTITION, manifest)
        writer.commit()
    return open_partition(path)


class _PartitionWriter(ArrayFolderWriter):
    what = "the partition"


def _write_part(writer: ArrayFolderWriter, one: PartRows, graph: Graph) -> None:
    def add(name: str, values: Tensor) -> None:
        writer.add(f"part{one.number}_{name}", values)

    add("indptr", one.csr.indptr)
    add("indices", one.csr.indices)
    add("node_id", user_rows(graph, one.rows))
    add("halo_id", user_rows(graph, one.halo))
    add("route", one.route.index)
    weight = one.edge_weight(graph)
    if weight is not None:
        add("edge_weight", weight)
    for name in NODE_FIELDS:
        rows: Tensor | SparseRows | None = getattr(graph, name)
        if isinstance(rows, SparseRows):
            _write_sparse(writer, f"part{one.number}", rows, one.rows)
        elif rows is not None:
            _write_rows(writer, f"part{one.number}_{name}", rows, one.rows)


def _write_rows(writer: ArrayFolderWriter, name: str, rows: Tensor, picked: Tensor) -> None:
    """Write some rows, a range at a time, since features may be larger than memory."""
    dtype: DType = str(rows.dtype).removeprefix("torch.")  # type: ignore[assignment]
    array: ArrayWriter = writer.array(name, dtype, row=tuple(rows.shape[1:]))
    size = max(1, _CHUNK_BYTES // max(1, rows[:1].nbytes))
    for chunk in picked.split(size) if picked.numel() else []:
        array.append(native.gather(rows, chunk))


def _write_sparse(writer: ArrayFolderWriter, part: str, x: SparseRows, picked: Tensor) -> None:
    """Write some rows of sparse features, a range at a time."""
    count = x.indptr[picked + 1] - x.indptr[picked]
    writer.add(f"{part}_x_indptr", torch.cat([count.new_zeros(1), count.cumsum(0)]))
    indices, values = writer.array(f"{part}_x_indices", "int32"), writer.array(f"{part}_x_values", "float32")
    for rows in row_chunks(x, picked, most_bytes=_CHUNK_BYTES):
        indices.append(rows.indices)
        values.append(rows.values)


def _specs(arrays: dict[str, ArraySpec], routes: list[Route]) -> Iterable[PartSpec]:
    for number, route in enumerate(routes):
        prefix = f"part{number}_"
        own = {name.removeprefix(prefix): spec for name, spec in arrays.items() if name.startswith(prefix)}
        yield PartSpec(send=route.send, recv=route.recv, arrays=own)
