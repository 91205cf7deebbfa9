"""Negative sampling: pairs that are not edges. A pair depends on a key and its number alone, not on ranks."""

import numpy as np
import torch
from torch import Tensor

from siafu.native.splitmix import GOLDEN_GAMMA, splitmix64

_MAX_TRIES = 256


class EdgeSet:
    """A set of edges with fast membership tests.

    ``code`` is (E,) int64, ``src * num_nodes + dst`` of each, ascending.
    """

    def __init__(self, src: Tensor, dst: Tensor, *, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self.code = edge_codes(src, dst, num_nodes=num_nodes).unique()

    def contains(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return which pairs are edges, (P,) bool."""
        return find_sorted(self.code, edge_codes(src, dst, num_nodes=self.num_nodes))[0]


def edge_codes(src: Tensor, dst: Tensor, *, num_nodes: int) -> Tensor:
    """Encode each pair as one number, ordered by source and then target: (P,) int64."""
    return src.long() * num_nodes + dst.long()


def find_sorted(code: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Find values in an ascending array: whether each is there, (P,) bool, and at which index, (P,) int64."""
    if not code.numel():
        return torch.zeros(wanted.numel(), dtype=torch.bool), torch.zeros(wanted.numel(), dtype=torch.int64)
    place = torch.searchsorted(code, wanted).clamp_(max=code.numel() - 1)
    return code[place] == wanted, place


def sample_negatives(
    number: Tensor,
    *,
    key: int,
    edges: EdgeSet,
    among: Tensor | None = None,
    src: Tensor | None = None,
    loops: bool = True,
) -> tuple[Tensor, Tensor]:
    """Sample a non-edge for each number, (P,) int64: returns sources and targets, (P,) int64.

    Both ends are sampled from all nodes, or from ``among``, (A,); with ``src`` (P,) only the target is. ``key`` is made
    of seed, epoch and step. Without ``loops`` no node is paired with itself.
    """
    nodes = edges.num_nodes if among is None else among.numel()
    left = torch.arange(number.numel())
    out = torch.empty(2, number.numel(), dtype=torch.int64)
    counter = number.numpy().astype(np.uint64) * GOLDEN_GAMMA
    for attempt in range(_MAX_TRIES):
        pair = _candidates(counter[left.numpy()], key, attempt, nodes) if nodes else out[:, left]
        pair = pair if among is None else among.long()[pair]
        if src is not None:
            pair[0] = src[left]
        bad = edges.contains(pair[0], pair[1])
        bad = bad if loops else bad | (pair[0] == pair[1])
        out[:, left] = pair
        left = left[bad]
        if not left.numel():
            return out[0], out[1]
    raise ValueError(
        f"found no pair without an edge in {_MAX_TRIES} draws among {nodes} nodes; they are nearly all joined, so draw "
        "negatives among all nodes (link.sampling=uniform) or leave such a step out"
    )


def _candidates(counter: np.ndarray, key: int, attempt: int, nodes: int) -> Tensor:
    """Return two numbers below ``nodes`` for each counter: (P,) -> (2, P) int64."""
    keyed = splitmix64(counter ^ np.uint64(key & (2**64 - 1)))
    ends = [splitmix64(keyed + np.uint64(2 * attempt + end + 1)) for end in (0, 1)]
    high = [((end >> np.uint64(32)) * np.uint64(nodes)) >> np.uint64(32) for end in ends]
    return torch.from_numpy(np.stack(high).astype(np.int64))
