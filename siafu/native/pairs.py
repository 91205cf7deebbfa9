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


def count_ranks(
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
        return reference.count_ranks(factors, indptr, score, given=given, rows=range(begin, end))
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
    core.count_ranks(
        *(a_src, b_t, weight, num_dst, *sparse, indptr, score.contiguous(), level, first, room),
        *(between, same, row_above, row_same, (begin, end)),
    )
    above = between.sum(0).flip(0).cumsum(0).flip(0)[1:]  # those with more levels below them
    return Above(above[place], same.sum(0)[place], row_above, row_same)


def pair_rows(factors: Factors, pairs: "Csr") -> Tensor:
    """The scores of pairs that stand row by row, (E,), to be learned from: they are added up in another order."""
    if native._core is None:
        return reference.pair_rows(factors, pairs)
    score = torch.empty(pairs.indices.numel())
    native._core.pair_rows(pairs.indptr, pairs.indices, *_widened(factors), score)
    return score


def pair_rows_backward(
    factors: Factors, pairs: "Csr", grad: Tensor, *, with_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of sources, (S, D), and of the weight, (D,), given those of the scores, (E,).

    Those of candidates are had with the two exchanged. Sums run in an order that depends on no thread.
    """
    if native._core is None:
        return reference.pair_rows_backward(factors, pairs, grad, with_weight=with_weight)
    a_src, b_dst, weight = _widened(factors)
    out, width = torch.empty_like(a_src), factors.a_src.shape[1]
    parts = torch.zeros(native._core.PAIR_PARTS, a_src.shape[1]) if with_weight else None
    native._core.pair_rows_backward(
        pairs.indptr, pairs.indices, a_src, b_dst, weight, grad.contiguous(), out, parts
    )
    return out[:, :width], None if parts is None else parts.sum(0)[:width]


def _widened(factors: Factors) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arrays as kernels take them, with columns of zeros up to a whole number of vectors."""
    a_src, b_dst, weight = _plain(factors)
    more = -a_src.shape[1] % native._core.PAIR_WIDTH
    if not more:
        return a_src, b_dst, weight
    a_src, b_dst = (torch.nn.functional.pad(rows, (0, more)) for rows in (a_src, b_dst))
    return a_src, b_dst, None if weight is None else torch.nn.functional.pad(weight, (0, more))


def _plain(factors: Factors) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arrays as kernels take them."""
    a_src, b_dst, weight = factors
    weight = None if weight is None else weight.detach().contiguous()
    return a_src.detach().contiguous(), b_dst.detach().contiguous(), weight
