"""Pairs that are no edges, drawn by number. It knows no rank: a pair depends on a key and its number alone."""

import numpy as np
import torch
from torch import Tensor

from siafu.native.splitmix import GOLDEN_GAMMA, splitmix64

_TRIES = 256


class EdgeSet:
    """Which pairs are edges, to be asked often.

    ``code`` is (E,) int64, ``src * num_nodes + dst`` of each, ascending.
    """

    def __init__(self, src: Tensor, dst: Tensor, *, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self.code = edge_codes(src, dst, num_nodes=num_nodes).unique()

    def contains(self, src: Tensor, dst: Tensor) -> Tensor:
        """Which of some pairs are edges, (P,) bool."""
        return find_sorted(self.code, edge_codes(src, dst, num_nodes=self.num_nodes))[0]


def edge_codes(src: Tensor, dst: Tensor, *, num_nodes: int) -> Tensor:
    """One number a pair, in the order of sources and then targets: (P,) int64."""
    return src.long() * num_nodes + dst.long()


def find_sorted(code: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Which numbers are among ascending ones, (P,) bool, and where, (P,) int64."""
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
    """The negatives of some numbers, (P,) int64: their sources and targets, (P,) int64, none of which is an edge.

    Ends are drawn among all nodes, or ``among`` some, (A,); with ``src`` (P,) only the target is drawn. ``key`` is
    made of the seed, the epoch and the step. Without ``loops`` no node is paired with itself.
    """
    nodes = edges.num_nodes if among is None else among.numel()
    left = torch.arange(number.numel())
    out = torch.empty(2, number.numel(), dtype=torch.int64)
    counter = number.numpy().astype(np.uint64) * GOLDEN_GAMMA
    for attempt in range(_TRIES):
        pair = _drawn(counter[left.numpy()], key, attempt, nodes) if nodes else out[:, left]
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
        f"found no pair without an edge in {_TRIES} draws among {nodes} nodes; they are nearly all joined, so draw "
        "negatives among all nodes (link.sampling=uniform) or leave such a step out"
    )


def _drawn(counter: np.ndarray, key: int, attempt: int, nodes: int) -> Tensor:
    """Two numbers below ``nodes`` for each counter: (P,) -> (2, P) int64."""
    keyed = splitmix64(counter ^ np.uint64(key & (2**64 - 1)))
    ends = [splitmix64(keyed + np.uint64(2 * attempt + end + 1)) for end in (0, 1)]
    high = [((end >> np.uint64(32)) * np.uint64(nodes)) >> np.uint64(32) for end in ends]
    return torch.from_numpy(np.stack(high).astype(np.int64))
