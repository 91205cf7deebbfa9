"""Assign each node to a part: by streaming, METIS, KaMinPar, a hash, or a user's file."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from siafu import native
from siafu.graph import Graph
from siafu.native.splitmix import GOLDEN_GAMMA, splitmix64
from siafu.partition.config import PartitionConfig
from siafu.partition.external import by_kaminpar, by_metis
from siafu.partition.quality import PartLoads, part_loads

PARTITIONERS = ("stream", "metis", "kaminpar", "hash")
_CHUNK = 1 << 20
_EDGE_BOUND, _TRAIN_BOUND = 1.05, 1.10  # of the mean, what the streaming partitioner lets a part hold


def assign(
    graph: Graph,
    *,
    parts: int,
    by: str = "stream",
    say: Callable[[str], None] = lambda _: None,
    seed: int = 0,
) -> Tensor:
    """Assign each node to a part, (N,) int32 from 0 to ``parts - 1``; ``say`` reports imbalance and empty parts.

    ``by`` is one of
        stream: siafu's streaming partitioner; few cut edges, balanced in-edges and training nodes, no empty part. It
            needs at most 48 bytes per node beyond the graph (reported before it starts). The result for a seed does
            not depend on the number of threads;
        metis, kaminpar: those libraries, on the graph with each edge in both directions; they balance in-edges only;
        hash: a hash of the user's row number and the seed, independent of the graph and the order of its rows;
        a path: a file with the part of each node in the user's order; see :mod:`siafu.partition.part_file`.
    """
    _check_parts(graph, parts)
    match by:
        case _ if parts == 1 and by in PARTITIONERS:
            return torch.zeros(graph.num_nodes, dtype=torch.int32)
        case "stream":
            part_of_node = _by_stream(graph, parts, say, seed)
        case "metis":
            part_of_node = by_metis(graph, parts=parts, seed=seed)
        case "kaminpar":
            part_of_node = by_kaminpar(graph, parts=parts, seed=seed)
        case "hash":
            part_of_node = _by_hash(graph, parts, seed)
        case _:
            part_of_node = _read_parts(part_file_path(by), graph, parts=parts)
    _report_balance(graph, part_loads(graph, part_of_node, parts=parts), say)
    return part_of_node


def resolve(config: PartitionConfig, graph: Graph, *, parts: int) -> PartitionConfig:
    """Return the settings with an absolute path to the user's file; refuse invalid ones early."""
    _check_parts(graph, parts)
    if config.by in PARTITIONERS:
        return config
    path = part_file_path(config.by).absolute()
    if parts > 1:
        _read_parts(path, graph, parts=parts)
    return config.model_copy(update={"by": str(path)})


def _check_parts(graph: Graph, parts: int) -> None:
    if not 1 <= parts <= graph.num_nodes:
        raise ValueError(
            f"{graph.name}: {parts} parts of {graph.num_nodes} nodes; expected at least 1 part and a node for each"
        )


def _by_stream(graph: Graph, parts: int, say: Callable[[str], None], seed: int) -> Tensor:
    megabytes = native.assign_bytes(graph.num_nodes, parts=parts) / 1e6
    say(
        f"partitioning {graph.name}, {graph.num_nodes:,} nodes and {graph.num_edges:,} edges, into {parts} parts "
        f"needs {megabytes:,.1f} MB beyond the graph"
    )
    return native.assign_parts(graph.block.csr, graph.train_mask, parts=parts, seed=seed)


def _by_hash(graph: Graph, parts: int, seed: int) -> Tensor:
    part_of_node = np.empty(graph.num_nodes, dtype=np.int32)
    for start in range(0, graph.num_nodes, _CHUNK):
        rows = slice(start, min(start + _CHUNK, graph.num_nodes))
        user_row = np.arange(rows.start, rows.stop) if graph.node_id is None else graph.node_id[rows].numpy()
        part_of_node[rows] = _hash_rows(user_row.astype(np.uint64), seed) % np.uint64(parts)
    return torch.from_numpy(part_of_node)


def _hash_rows(row: np.ndarray, seed: int) -> np.ndarray:
    """Hash each row and the seed to 64 bits."""
    return splitmix64((row - np.uint64(1)) * GOLDEN_GAMMA + np.uint64(seed % 2**64))


def _read_parts(path: Path, graph: Graph, *, parts: int) -> Tensor:
    """Read a user's file of parts; the readers of tables are imported here alone."""
    from siafu.partition.part_file import read_parts

    return read_parts(path, graph, parts=parts)


def part_file_path(by: str) -> Path:
    """Return the path of the user's file; refuse one that does not exist."""
    path = Path(by)
    if not path.is_file():
        raise ValueError(
            f"partition.by is {by!r}, and there is no such file; expected stream, metis, kaminpar, hash or the path "
            "of a file with the part of each node"
        )
    return path


def _report_balance(graph: Graph, held: PartLoads, say: Callable[[str], None]) -> None:
    """Report empty parts and parts that are out of balance."""
    empty = [str(part) for part, nodes in enumerate(held.nodes) if nodes == 0]
    if empty:
        say(f"{graph.name}: of {len(held.nodes)} parts, {len(empty)} are empty: {', '.join(empty[:10])}")
    for what, counts, bound in (
        ("edges", held.edges, _EDGE_BOUND),
        ("training nodes", held.train, _TRAIN_BOUND),
    ):
        mean, most = sum(counts) / len(counts), max(counts)
        if most > bound * mean and most > -(-sum(counts) // len(counts)):
            part = counts.index(most)
            say(f"{graph.name}: part {part} has {most:,} {what}, {most / mean:.2f} times the mean")
