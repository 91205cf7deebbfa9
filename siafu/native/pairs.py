"""Scores of pairs of rows, and what of all pairs lies above some of them; twins in ``pairs_reference``.

The score of a pair is ``relu(a_src + b_dst) . weight``, or ``a_src . b_dst`` where there is no weight. Nothing of the
size of all pairs exists, and nothing of it is sorted.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

import siafu.native as native
from siafu.native import pairs_reference as reference

if TYPE_CHECKING:
    from siafu.native import Csr


class Factors(NamedTuple):
    """What scores of pairs are made of, float32.

    Attributes:
        a_src: (S, D), of sources.
        b_dst: (C, D), of candidates.
        weight: (D,), or None for the plain product of the two.
    """

    a_src: Tensor
    b_dst: Tensor
    weight: Tensor | None


class Above(NamedTuple):
    """How many scores are greater than that of each positive, and how many are the same, itself included; int64, (P,).

    Attributes:
        above, same: among all pairs.
        row_above, row_same: among the pairs of its source.
    """

    above: Tensor
    same: Tensor
    row_above: Tensor
    row_same: Tensor


def pair_scores(factors: Factors, src: Tensor, dst: Tensor) -> Tensor:
    """The scores of some pairs, (P,) int32 and int32 -> (P,), equal to the last bit to what all pairs are scored by."""
    if native._core is None:
        return reference.pair_scores(factors, src, dst)
    out = torch.empty(src.numel())
    native._core.pair_scores(*_plain(factors), src.int().contiguous(), dst.int().contiguous(), out)
    return out


def count_above(
    factors: Factors,
    indptr: Tensor,
    score: Tensor,
    *,
    given: "tuple[Csr, Tensor] | None" = None,
    rows: slice | None = None,
) -> Above:
    """Count what lies above each of P scores that stand row by row: ``indptr`` is (S + 1,) int64, ``score`` (P,).

    ``given`` are pairs, row by row, whose scores, (E,), stand instead of those that are made of the factors. With
    ``rows`` only pairs of those sources are looked at, so that counts of several ranges add up.
    """
    num_src, num_dst = factors.a_src.shape[0], factors.b_dst.shape[0]
    begin, end, _ = (rows or slice(None)).indices(num_src)
    level, place = score.unique(return_inverse=True)
    if not level.numel() or begin >= end:
        return Above(*(torch.zeros(score.numel(), dtype=torch.int64) for _ in range(4)))
    if native._core is None:
        return reference.count_above(factors, indptr, score, given=given, rows=range(begin, end))
    core, threads = native._core, max(1, min(torch.get_num_threads(), (end - begin) // 8))
    a_src, b_dst, weight = _plain(factors)
    padded = -(-num_dst // core.PAIR_COLUMNS) * core.PAIR_COLUMNS
    b_t = torch.zeros(b_dst.shape[1], padded)
    b_t[:, :num_dst] = b_dst.T
    csr, values = given if given is not None else (None, None)
    sparse = (None, None, None) if csr is None else (csr.indptr, csr.indices, values)
    between = torch.zeros(threads, level.numel() + 1, dtype=torch.int64)
    same = torch.zeros(threads, level.numel(), dtype=torch.int64)
    row_above, row_same = (torch.zeros(score.numel(), dtype=torch.int64) for _ in range(2))
    first = torch.empty(core.PAIR_CELLS + 1, dtype=torch.int32)
    room = torch.empty(threads, core.PAIR_ROWS, padded)
    core.count_above(
        *(a_src, b_t, weight, num_dst, *sparse, indptr, score.contiguous(), level, first, room),
        *(between, same, row_above, row_same, (begin, end)),
    )
    above = between.sum(0).flip(0).cumsum(0).flip(0)[1:]  # those with more levels below them
    return Above(above[place], same.sum(0)[place], row_above, row_same)


def _plain(factors: Factors) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arrays as kernels take them."""
    a_src, b_dst, weight = factors
    return (
        a_src.detach().contiguous(),
        b_dst.detach().contiguous(),
        None if weight is None else weight.detach(),
    )
