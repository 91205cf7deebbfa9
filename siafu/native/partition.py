"""Which part owns which node: the streaming partitioner, and what a partition is like.

The plain twins are in ``siafu.native.partition_reference``; that of the partitioner keeps the same promises, but it
is another algorithm, which cuts more edges.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

import siafu.native as native
from siafu.native import partition_reference as reference

if TYPE_CHECKING:
    from siafu.native import Csr


class PartCounts(NamedTuple):
    """What each part holds; every tensor is (parts,) int64.

    Attributes:
        nodes: its own nodes.
        edges: in-edges of its nodes.
        train: its training nodes.
        inside: those of its edges that come from its own nodes.
        halo: nodes of other parts that its edges come from, each counted once.
    """

    nodes: Tensor
    edges: Tensor
    train: Tensor
    inside: Tensor
    halo: Tensor


def assign_bytes(num_nodes: int, *, parts: int) -> int:
    """The bytes that :func:`assign_parts` allocates, its result included; they grow with the threads in use."""
    if native._core is None:
        return reference.assign_bytes(num_nodes, parts=parts)
    return native._core.partition_bytes(num_nodes, parts) + 4 * num_nodes


def assign_parts(csr: "Csr", train: Tensor | None, *, parts: int, seed: int) -> Tensor:
    """The part of each node, (N,) int32, of a square CSR: few edges between parts, edges and training nodes even.

    ``train`` is (N,) bool; without it all nodes are as good as training nodes. No part is empty: there must be at
    least as many nodes as parts. The result depends on the seed, but not on the number of threads.
    """
    num_nodes = csr.indptr.numel() - 1
    if not 1 <= parts <= num_nodes:
        raise ValueError(
            f"{num_nodes} nodes into {parts} parts; expected a part at least and a node for each"
        )
    if native._core is None:
        return reference.assign_parts(csr, train, parts=parts, seed=seed)
    if parts == 1:
        return torch.zeros(num_nodes, dtype=torch.int32)
    work = torch.empty(native._core.partition_bytes(num_nodes, parts), dtype=torch.uint8)
    part_of_node = torch.empty(num_nodes, dtype=torch.int32)
    native._core.partition(csr.indptr, csr.indices, _bytes(train), parts, seed % 2**64, work, part_of_node)
    return part_of_node


def count_parts(csr: "Csr", train: Tensor | None, part_of_node: Tensor, *, parts: int) -> PartCounts:
    """What each part of a square CSR holds, (N,) int32 -> 5 x (parts,)."""
    if native._core is None:
        return PartCounts(*reference.count_parts(csr, train, part_of_node, parts=parts))
    counts = PartCounts(*(torch.empty(parts, dtype=torch.int64) for _ in PartCounts._fields))
    work = torch.empty(native._core.quality_bytes(part_of_node.numel(), parts), dtype=torch.uint8)
    native._core.partition_quality(
        csr.indptr, csr.indices, _bytes(train), part_of_node.contiguous(), work, *counts
    )
    return counts


def _bytes(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.contiguous().view(torch.uint8)
