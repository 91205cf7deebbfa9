"""Create the partition that a run needs, or find an existing one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash
from torch import Tensor

from siafu import native
from siafu.event_log import Progress, no_progress
from siafu.graph import Graph
from siafu.native import Csr
from siafu.partition.assign import PARTITIONERS, assign, part_file_path
from siafu.partition.cut import Part, cut
from siafu.partition.parts import AGAIN, Partition, is_partition, open_partition, write_partition


@dataclass(frozen=True)
class PartitionRequest:
    """A description of the partition that a run needs.

    Attributes:
        parts: the number of parts.
        by: how nodes are assigned; see :func:`siafu.partition.assign`.
        fold: the split whose training nodes are balanced.
        reorder: whether neighbours are put near each other within a part.
        fingerprint: of the graph.
    """

    parts: int
    by: str
    fold: int
    reorder: bool
    fingerprint: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        by = self.by
        if by not in PARTITIONERS:
            by = f"given-{xxhash.xxh3_64_hexdigest(part_file_path(by).read_bytes())}"
        ordered = "-ordered" if self.reorder else ""
        return f"{self.parts}-{by}{ordered}" + (f"-fold{self.fold}" if self.fold else "")


def cut_in_memory(graph: Graph, wanted: PartitionRequest, *, say: Callable[[str], None]) -> list[Part]:
    """Cut a graph into all its parts in memory, for ranks that share this process."""
    part_of_node = assign(graph, parts=wanted.parts, by=wanted.by, say=say)
    return [
        one.part(graph) for one in cut(graph, part_of_node, parts=wanted.parts, order=_order(graph, wanted))
    ]


def find_or_create(
    home: Path,
    graph: Graph,
    wanted: PartitionRequest,
    *,
    say: Callable[[str], None],
    progress: Progress = no_progress,
) -> Partition:
    """Open the requested partition below ``home``, or create it; refuse one of another graph."""
    path = home / wanted.name
    if not is_partition(path):
        _make(path, graph, wanted, say, progress)
    found = open_partition(path)
    if found.manifest.fingerprint != wanted.fingerprint:
        raise ValueError(
            f"{path}: was made for another graph: its fingerprint is {found.manifest.fingerprint}, but "
            f"{graph.name} has {wanted.fingerprint}; {AGAIN}"
        )
    return found


def _make(
    path: Path, graph: Graph, wanted: PartitionRequest, say: Callable[[str], None], progress: Progress
) -> None:
    part_of_node = assign(graph, parts=wanted.parts, by=wanted.by, say=say)
    say(f"writing {wanted.parts} parts to {path}")
    cuts = cut(graph, part_of_node, parts=wanted.parts, order=_order(graph, wanted))
    path.parent.mkdir(exist_ok=True)
    try:
        write_partition(path, graph, cuts, fingerprint=wanted.fingerprint, by=wanted.by, progress=progress)
    except FileExistsError:
        if not is_partition(path):  # else another run has made it meanwhile
            raise


def _order(graph: Graph, wanted: PartitionRequest) -> Tensor | None:
    return native.locality_order(Csr(graph.indptr, graph.indices)) if wanted.reorder else None
