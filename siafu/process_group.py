"""For training scripts of your own on several ranks: join the process group, and get this rank's part of a graph."""

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
    """Join the process group that torchrun, Slurm or the like started; a process without one is a group of one rank.

    An error inside ends the other ranks, too. A rank without a heartbeat for ``deadline_s`` seconds counts as lost,
    which is an error. Ranks on several hosts authenticate with a shared secret (``SIAFU_SECRET`` or
    ``SIAFU_SECRET_FILE``) unless ``trust_network``; their traffic is encrypted unless ``encrypt`` is off. Collective.
    """
    if "RANK" not in os.environ and "SLURM_PROCID" not in os.environ:
        with closing(single_rank_comm()) as comm:
            yield comm
        return
    from siafu.launch.elastic import join as join_group

    with join_group(os.environ, deadline_s=deadline_s, encrypt=encrypt, trust_network=trust_network) as comm:
        yield comm


def part_of(source: Graph | str | Path, comm: Comm, *, by: str = "stream", fold: int = 0) -> Part:
    """Get this rank's part of a graph, which rank 0 loads and cuts; other hosts need not have it. Collective.

    Args:
        source: a graph, or a name or path that :func:`siafu.load` takes. A store keeps its parts, as with
            ``siafu partition``.
        comm: the group; each rank gets one part.
        by: the partitioner: stream, hash, metis, kaminpar, or a file with the part of each node.
        fold: the number of the split, if there are several.
    """
    if comm.world_size == 1:
        return whole_part(_load(source, fold))
    with tempfile.TemporaryDirectory(prefix="siafu-parts-") as scratch:
        path = None if comm.rank else str(_cut(source, comm.world_size, by, fold, Path(scratch)))
        part = distribute_part(comm, Path(comm.broadcast_text(path, label="parts")))
        comm.barrier(label="parts")  # all ranks have mapped their part, so the folder can be deleted
    return part


def _cut(source: Graph | str | Path, parts: int, by: str, fold: int, scratch: Path) -> Path:
    """Make the partition on disk: in the store that is cut, else in the temporary folder ``scratch``."""
    graph = _load(source, fold)
    wanted = partition_request(graph, parts=parts, by=by, fold=fold)
    home = scratch if isinstance(source, Graph) else partition_home(source, wanted, otherwise=scratch)
    return find_or_create(home, graph, wanted, say=lambda _: None).path.absolute()


def _load(source: Graph | str | Path, fold: int) -> Graph:
    return source.encoded() if isinstance(source, Graph) else load_static(source, fold=fold)
