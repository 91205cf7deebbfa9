"""The split of edges into training, validation and test; messages pass over training edges alone."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.native.splitmix import splitmix64
from siafu.sampling.negatives import EdgeSet, edge_codes

SPLIT_CODES = {"train": 0, "val": 1, "test": 2}


@dataclass(frozen=True, eq=False)
class PairSplit:
    """The edges of a graph by split, in the user's own row numbers, and the graph without the edges to predict.

    Attributes:
        graph: the graph with training edges alone.
        pairs: (2, P) int64 for each split, sources above targets, each once, ascending; for an undirected graph in both
            directions. Self-loops are left out.
        all_edges: the edges of all splits.
    """

    graph: Graph
    pairs: dict[str, Tensor]
    all_edges: EdgeSet


def split_edges(graph: Graph, *, shares: tuple[float, float, float], fold: int) -> PairSplit:
    """Split by ``graph.edge_split`` if there is one, else by a hash of the fold and both ends.

    If every edge has its reverse, or the split is made here, both directions are in the same split. An edge that a
    given split puts into several is in the first of them.
    """
    num_nodes, block = graph.num_nodes, graph.block
    src, dst = _ids(graph, block.indices), _ids(graph, block.row_edge)
    there, back = (edge_codes(*ends, num_nodes=num_nodes) for ends in ((src, dst), (dst, src)))
    alike = torch.equal(there.unique(), back.unique())
    pair = torch.minimum(there, back) if alike or graph.edge_split is None else there
    own = src != dst
    code, place = pair.unique(return_inverse=True)
    if graph.edge_split is None:
        side = _hash_split(code, shares, fold)
    else:
        side = torch.full((code.numel(),), 2, dtype=torch.uint8)
        side = side.scatter_reduce(0, place, graph.edge_split, "amin")
    side_edge = torch.where(own, side[place], 0)
    pairs = {}
    for name, number in SPLIT_CODES.items():
        found = there[own & (side_edge == number)].unique()
        pairs[name] = torch.stack([found // num_nodes, found % num_nodes])
    _check(graph, pairs)
    return PairSplit(_keep_edges(graph, side_edge == 0), pairs, EdgeSet(src, dst, num_nodes=num_nodes))


def _ids(graph: Graph, rows: Tensor) -> Tensor:
    return rows.long() if graph.node_id is None else graph.node_id[rows.long()]


def _hash_split(code: Tensor, shares: tuple[float, float, float], fold: int) -> Tensor:
    """The split of each pair, uint8: the lowest hashes are for test, the next for validation."""
    key = splitmix64(np.array([fold], dtype=np.uint64))
    order = np.argsort(splitmix64(splitmix64(code.numpy().astype(np.uint64)) ^ key), kind="stable")
    num_test, num_val = (round(share * len(order)) for share in (shares[2], shares[1]))
    side = torch.zeros(code.numel(), dtype=torch.uint8)
    side[torch.from_numpy(order[:num_test])] = 2
    side[torch.from_numpy(order[num_test : num_test + num_val])] = 1
    return side


def _keep_edges(graph: Graph, kept: Tensor) -> Graph:
    """The graph with some of its edges."""
    count = torch.cat([torch.zeros(1, dtype=torch.int64), kept.long().cumsum(0)])
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    return replace(
        graph,
        indptr=count[graph.indptr],
        indices=graph.indices[kept],
        edge_weight=weight,
        edge_split=None,
    )


def _check(graph: Graph, pairs: dict[str, Tensor]) -> None:
    count = {split: of.shape[1] for split, of in pairs.items()}
    if not count["train"]:
        found = ", ".join(f"{number} {split}" for split, number in count.items())
        raise ValueError(
            f"{graph.name}: no edge between two nodes to learn from ({found}); expected some, so look at edge_split or "
            "link.split"
        )
