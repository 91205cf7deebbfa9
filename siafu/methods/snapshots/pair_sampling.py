"""Which pairs of nodes a step learns from, and how often each kind of them is drawn. It knows no rank, no clock."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from siafu.nn.dropout import mix
from siafu.sampling.negatives import EdgeSet, find_sorted, sample_negatives
from siafu.sampling.permutation import KeyedPermutation


class Drawn(NamedTuple):
    """Pairs that are learned from.

    Attributes:
        src, dst: (P,) int64.
        y: (P,) float32, 1 where they are joined, 0 where not.
        offset: (P,) float32, what the loss adds to their scores: the logarithm of the share of all pairs that are
            joined, over how often a pair such as this is drawn where it is not. So a score is the logarithm of how many
            times likelier than any pair this one is, in whatever way negatives are drawn.
    """

    src: Tensor
    dst: Tensor
    y: Tensor
    offset: Tensor


@dataclass(frozen=True)
class Draw:
    """How pairs are drawn.

    Attributes:
        negatives: for each edge that is learned from.
        key: of everything random.
        ends: (A,) int64, nodes as often as they are to be drawn; may be empty.
        known: (E,) int64, the codes of pairs that are remembered, ascending; or None.
    """

    negatives: int
    key: int
    ends: Tensor
    known: Tensor | None = None


def draw_pairs(edges: EdgeSet, how: Draw, *, learned: Tensor | None = None) -> Drawn:
    """Edges, those with the codes ``learned`` or all, negatives, and as many pairs that are remembered or all of those.

    Half of the negatives join two of ``how.ends``, the others any nodes. Pairs that are remembered are drawn apart from
    others, because there are few of them and they rank first.
    """
    joined = edges.code if learned is None else learned
    known = edges.code[:0] if how.known is None else how.known
    lately = how.negatives // 2 if how.ends.numel() else 0  # for each edge
    any_pair = _negatives(edges, joined.numel() * (how.negatives - lately), None, mix(how.key))
    other = torch.cat([any_pair, _negatives(edges, joined.numel() * lately, how.ends, mix(how.key + 1))])
    other = other[~find_sorted(known, other)[0]]
    free = known[~find_sorted(edges.code, known)[0]]
    some = _some(free, joined.numel() * how.negatives, mix(how.key + 2))
    code = torch.cat([joined, other, some])
    src, dst = code // edges.num_nodes, code % edges.num_nodes
    often = torch.bincount(how.ends, minlength=edges.num_nodes).double()
    often *= edges.num_nodes / max(1, how.ends.numel())  # 1 in the mean
    offset = -(how.negatives - lately + lately * often[src] * often[dst]).log()
    all_pairs = edges.num_nodes**2 * max(1, some.numel()) / max(1, free.numel())
    offset[find_sorted(known, code)[0]] = math.log(max(1, joined.numel()) / all_pairs)
    y = (torch.arange(code.numel()) < joined.numel()).float()
    return Drawn(src, dst, y, offset.float())


def _negatives(edges: EdgeSet, count: int, among: Tensor | None, key: int) -> Tensor:
    src, dst = sample_negatives(torch.arange(count), key=key, edges=edges, among=among)
    return src * edges.num_nodes + dst


def _some(code: Tensor, most: int, key: int) -> Tensor:
    """All of some codes, or as many as there may be."""
    if code.numel() <= most:
        return code
    return code[KeyedPermutation(code.numel(), key=key).at(torch.arange(most))]
