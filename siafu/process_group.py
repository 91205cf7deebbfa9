"""What a script of your own needs to be one of several ranks: the group, and its part of a graph."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from siafu.comm import Comm, single_rank_comm
from siafu.graph import Graph
from siafu.load_graph import load_static
from siafu.partition.create import find_or_create
from siafu.partition.cut import Part, whole_part
from siafu.partition.distribute import distribute_part
from siafu.store_partitions import partition_home, partition_request


@contextmanager
def join(*, deadline_s: float = 30.0, encrypt: bool = True, trust_network: bool = False) -> Iterator[Comm]:
    """The group that torchrun, Slurm or the like started this process in; a process started by itself is alone.

    An error inside ends the other ranks too, and a rank without a sign of life for ``deadline_s`` seconds is an error.
    Ranks on several hosts prove a secret to each other (``SIAFU_SECRET`` or ``SIAFU_SECRET_FILE``) unless
    ``trust_network``, and their traffic is encrypted unless ``encrypt`` is off.
    Collective.
    """
    if "RANK" not in os.environ and "SLURM_PROCID" not in os.environ:
        with closing(single_rank_comm()) as comm:
            yield comm
        return
    from siafu.launch.elastic import join as join_group

    with join_group(os.environ, deadline_s=deadline_s, encrypt=encrypt, trust_network=trust_network) as comm:
        yield comm


def part_of(source: Graph | str | Path, comm: Comm, *, by: str = "stream", fold: int = 0) -> Part:
    """The part of a graph that is this rank's; rank 0 loads and cuts it, other hosts need not have it. Collective.

    Args:
        source: a graph, or what :func:`siafu.load` takes. A store keeps its parts, as with ``siafu partition``.
        comm: the group; a part for each rank.
        by: how nodes are assigned: stream, hash, metis, kaminpar or a file.
        fold: which of several splits.
    """
    if comm.world_size == 1:
        return whole_part(_graph(source, fold))
    with tempfile.TemporaryDirectory(prefix="siafu-parts-") as scratch:
        path = None if comm.rank else str(_cut(source, comm.world_size, by, fold, Path(scratch)))
        part = distribute_part(comm, Path(comm.broadcast_text(path, label="parts")))
        comm.barrier(label="parts")  # all have mapped theirs: the folder may go
    return part


def _cut(source: Graph | str | Path, parts: int, by: str, fold: int, scratch: Path) -> Path:
    """The partition on disk: in the store that was cut, else in a folder that does not stay."""
    graph = _graph(source, fold)
    wanted = partition_request(graph, parts=parts, by=by, fold=fold)
    home = scratch if isinstance(source, Graph) else partition_home(source, wanted, otherwise=scratch)
    return find_or_create(home, graph, wanted, say=lambda _: None).path.absolute()


def _graph(source: Graph | str | Path, fold: int) -> Graph:
    return source if isinstance(source, Graph) else load_static(source, fold=fold)
