"""Training pairs of a step: its links, sampled negatives and remembered pairs, with a correction for the sampling.

It knows no rank and no clock.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from siafu.nn.dropout import mix
from siafu.sampling.negatives import EdgeSet, find_sorted, sample_negatives
from siafu.sampling.permutation import KeyedPermutation


class SampledPairs(NamedTuple):
    """Training pairs.

    Attributes:
        src, dst: (P,) int64.
        y: (P,) float32, 1 for links and 0 for negatives.
        offset: (P,) float32, added to the scores in the loss (sampling correction): the logarithm of the share of links
            among all pairs, over the rate at which such a pair is drawn as a negative. So a score is the logarithm of
            how many times likelier than the average pair this pair is, however negatives are sampled.
    """

    src: Tensor
    dst: Tensor
    y: Tensor
    offset: Tensor


@dataclass(frozen=True)
class PairSampling:
    """The parameters of pair sampling.

    Attributes:
        negatives: number of negatives for each link.
        key: key of the random draws.
        ends: (A,) int64, a multiset of nodes among which half of the negatives are drawn; may be empty.
        remembered: (E,) int64, the codes of pairs with a memory, ascending; or None.
    """

    negatives: int
    key: int
    ends: Tensor
    remembered: Tensor | None = None


def sample_pairs(edges: EdgeSet, sampling: PairSampling, *, learned: Tensor | None = None) -> SampledPairs:
    """Return the links (those with the codes ``learned``, or all), negatives, and remembered pairs.

    Half of the negatives join two of ``sampling.ends``, the others any two nodes. Remembered pairs are few and rank
    first, so they are sampled apart from others: as many as there are negatives, or all.
    """
    joined = edges.code if learned is None else learned
    remembered = edges.code[:0] if sampling.remembered is None else sampling.remembered
    among_ends = sampling.negatives // 2 if sampling.ends.numel() else 0  # for each link
    uniform = sampling.negatives - among_ends
    other = torch.cat(
        [
            _negatives(edges, joined.numel() * uniform, None, mix(sampling.key)),
            _negatives(edges, joined.numel() * among_ends, sampling.ends, mix(sampling.key + 1)),
        ]
    )
    other = other[~find_sorted(remembered, other)[0]]
    free = remembered[~find_sorted(edges.code, remembered)[0]]
    some = _at_most(free, joined.numel() * sampling.negatives, mix(sampling.key + 2))
    code = torch.cat([joined, other, some])
    src, dst = code // edges.num_nodes, code % edges.num_nodes
    frequency = torch.bincount(sampling.ends, minlength=edges.num_nodes).double()
    frequency *= edges.num_nodes / max(1, sampling.ends.numel())  # mean 1
    offset = -(uniform + among_ends * frequency[src] * frequency[dst]).log()
    all_pairs = edges.num_nodes**2 * max(1, some.numel()) / max(1, free.numel())
    offset[find_sorted(remembered, code)[0]] = math.log(max(1, joined.numel()) / all_pairs)
    y = (torch.arange(code.numel()) < joined.numel()).float()
    return SampledPairs(src, dst, y, offset.float())


def _negatives(edges: EdgeSet, count: int, among: Tensor | None, key: int) -> Tensor:
    src, dst = sample_negatives(torch.arange(count), key=key, edges=edges, among=among)
    return src * edges.num_nodes + dst


def _at_most(code: Tensor, most: int, key: int) -> Tensor:
    """All codes, or a sample of ``most`` of them."""
    if code.numel() <= most:
        return code
    return code[KeyedPermutation(code.numel(), key=key).at(torch.arange(most))]
