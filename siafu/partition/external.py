"""Partition with METIS or KaMinPar, if installed.

Both take undirected graphs without self-loops, so each edge is given in both directions, once. Both balance one weight
per node, here its in-degree plus one (pymetis reads one weight per node, although METIS supports more); training nodes
are not balanced. Both hold the graph several times over in memory. KaMinPar on several threads need not return the same
parts twice.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from siafu import native
from siafu.extras import require_extra
from siafu.graph import Graph
from siafu.native import Csr

_KAMINPAR_IMBALANCE = 0.03


def by_metis(graph: Graph, *, parts: int, seed: int) -> Tensor:
    """Assign nodes by METIS (Karypis and Kumar 1998), (N,) int32."""
    with require_extra("partition.by = metis", "pymetis"):
        import pymetis
    integer = pymetis.zero_copy_dtype()
    csr = undirected(graph)
    adjacency = pymetis.CSRAdjacency(csr.indptr.numpy().astype(integer), csr.indices.numpy().astype(integer))
    weight = _weight(graph).astype(integer)
    options = pymetis.Options(seed=seed % 2**31)
    _, part_of_node = pymetis.part_graph(parts, adjacency, vweights=weight, options=options)
    return torch.tensor(part_of_node, dtype=torch.int32)


def by_kaminpar(graph: Graph, *, parts: int, seed: int) -> Tensor:
    """Assign nodes by KaMinPar (Gottesbüren et al. 2021), (N,) int32."""
    with require_extra("partition.by = kaminpar", "kaminpar"):
        import kaminpar
    with tempfile.TemporaryDirectory() as folder:  # its binding reads graphs from files alone
        file = Path(folder) / "graph.parhip"
        write_parhip(file, undirected(graph), _weight(graph))
        loaded = kaminpar.load_graph(str(file), kaminpar.GraphFileFormat.PARHIP)
    kaminpar.reseed(seed % 2**31)
    partitioner = kaminpar.KaMinPar(torch.get_num_threads(), kaminpar.default_context())
    part_of_node = partitioner.compute_partition(loaded, parts, _KAMINPAR_IMBALANCE)
    return torch.tensor(part_of_node, dtype=torch.int32)


def undirected(graph: Graph) -> Csr:
    """Return each edge in both directions, once, without self-loops."""
    src, dst = graph.indices, graph.block.row_edge
    kept = src != dst
    src, dst = src[kept], dst[kept]
    both = native.build_csr(torch.cat([dst, src]), torch.cat([src, dst]), num_rows=graph.num_nodes)
    return native.deduplicate(native.sort_rows(both))


def write_parhip(path: Path, csr: Csr, weight: np.ndarray) -> None:
    """Write a graph with weights of its nodes in ParHIP's binary format.

    Three words (flags, nodes, edges), where each row begins in bytes of the file, the rows, the weights.
    """
    no_edge_weights, narrow_ids = 1, 8
    num_nodes, num_edges = csr.indptr.numel() - 1, csr.indices.numel()
    begin = 8 * (3 + num_nodes + 1)
    with path.open("wb") as file:
        np.array([no_edge_weights | narrow_ids, num_nodes, num_edges], dtype=np.uint64).tofile(file)
        (begin + 4 * csr.indptr.numpy()).astype(np.uint64).tofile(file)
        csr.indices.numpy().astype(np.uint32).tofile(file)
        weight.astype(np.int64).tofile(file)


def _weight(graph: Graph) -> np.ndarray:
    return graph.indptr.diff().numpy() + 1
