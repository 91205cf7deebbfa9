"""The streaming partitioner, and the sizes of the parts of a partition.

The plain versions are in ``siafu.native.partition_reference``; that of the partitioner keeps the same guarantees, but
it is another algorithm, which cuts more edges.
"""

import torch
from torch import Tensor

from siafu.native import core
from siafu.native import partition_reference as reference
from siafu.native.values import Csr, PartCounts


def assign_bytes(num_nodes: int, *, parts: int) -> int:
    """Return the bytes that :func:`assign_parts` allocates, with its result; they grow with the number of threads."""
    if core.kernels is None:
        return reference.assign_bytes(num_nodes, parts=parts)
    return core.kernels.partition_bytes(num_nodes, parts) + 4 * num_nodes


def assign_parts(csr: Csr, train: Tensor | None, *, parts: int, seed: int) -> Tensor:
    """Assign the nodes of a square CSR to parts, (N,) int32: few cut edges, balanced edges and training nodes.

    ``train`` is (N,) bool; without it all nodes count as training nodes. No part is empty, so there must be at least as
    many nodes as parts. The result depends on the seed, but not on the number of threads.
    """
    num_nodes = csr.indptr.numel() - 1
    if not 1 <= parts <= num_nodes:
        raise ValueError(
            f"{num_nodes} nodes into {parts} parts; expected a part at least and a node for each"
        )
    if core.kernels is None:
        return reference.assign_parts(csr, train, parts=parts, seed=seed)
    if parts == 1:
        return torch.zeros(num_nodes, dtype=torch.int32)
    work = torch.empty(core.kernels.partition_bytes(num_nodes, parts), dtype=torch.uint8)
    part_of_node = torch.empty(num_nodes, dtype=torch.int32)
    core.kernels.partition(csr.indptr, csr.indices, _bytes(train), parts, seed % 2**64, work, part_of_node)
    return part_of_node


def count_parts(csr: Csr, train: Tensor | None, part_of_node: Tensor, *, parts: int) -> PartCounts:
    """Count the sizes of each part of a square CSR, (N,) int32 -> 5 x (parts,)."""
    if core.kernels is None:
        return PartCounts(*reference.count_parts(csr, train, part_of_node, parts=parts))
    counts = PartCounts(*(torch.empty(parts, dtype=torch.int64) for _ in PartCounts._fields))
    work = torch.empty(core.kernels.quality_bytes(part_of_node.numel(), parts), dtype=torch.uint8)
    core.kernels.partition_quality(
        csr.indptr, csr.indices, _bytes(train), part_of_node.contiguous(), work, *counts
    )
    return counts


def _bytes(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.contiguous().view(torch.uint8)
