"""Scores of node pairs, and the ranks of scores among all pairs; plain versions in ``pairs_reference``.

The score of a pair is ``relu(a_src + b_dst) . weight``, or ``a_src . b_dst`` without a weight. No array of the size of
all pairs is ever held, and none is sorted.
"""

import torch
from torch import Tensor

from siafu.native import core
from siafu.native import pairs_reference as reference
from siafu.native.values import Csr, Factors, RankCounts


def pair_scores(factors: Factors, src: Tensor, dst: Tensor) -> Tensor:
    """Score some pairs, (P,) int32 and int32 -> (P,), bit for bit as :func:`count_ranks` scores all pairs."""
    if core.kernels is None:
        return reference.pair_scores(factors, src, dst)
    out = torch.empty(src.numel())
    core.kernels.pair_scores(*_plain(factors), src.int().contiguous(), dst.int().contiguous(), out)
    return out


def count_ranks(
    factors: Factors,
    indptr: Tensor,
    score: Tensor,
    *,
    given: tuple[Csr, Tensor] | None = None,
    rows: slice | None = None,
) -> RankCounts:
    """Count, for P scores grouped by row, the greater and equal scores: ``indptr`` (S + 1,) int64, ``score`` (P,).

    ``given`` are pairs, row by row, with scores (E,) that replace those computed from the factors. With ``rows`` only
    pairs of those sources are counted, so that counts of several ranges add up.
    """
    num_src, num_dst = factors.a_src.shape[0], factors.b_dst.shape[0]
    begin, end, _ = (rows or slice(None)).indices(num_src)
    level, place = score.unique(return_inverse=True)
    if not level.numel() or begin >= end:
        return RankCounts(*(torch.zeros(score.numel(), dtype=torch.int64) for _ in range(4)))
    if core.kernels is None:
        return reference.count_ranks(factors, indptr, score, given=given, rows=range(begin, end))
    threads = max(1, min(torch.get_num_threads(), (end - begin) // 8))
    a_src, b_dst, weight = _plain(factors)
    padded = -(-num_dst // core.kernels.PAIR_COLUMNS) * core.kernels.PAIR_COLUMNS
    b_t = torch.zeros(b_dst.shape[1], padded)
    b_t[:, :num_dst] = b_dst.T
    csr, values = given if given is not None else (None, None)
    sparse = (None, None, None) if csr is None else (csr.indptr, csr.indices, values)
    between = torch.zeros(threads, level.numel() + 1, dtype=torch.int64)
    same = torch.zeros(threads, level.numel(), dtype=torch.int64)
    row_above, row_same = (torch.zeros(score.numel(), dtype=torch.int64) for _ in range(2))
    first = torch.empty(core.kernels.PAIR_CELLS + 1, dtype=torch.int32)
    room = torch.empty(threads, core.kernels.PAIR_ROWS, padded)
    core.kernels.count_above(
        *(a_src, b_t, weight, num_dst, *sparse, indptr, score.contiguous(), level, first, room),
        *(between, same, row_above, row_same, (begin, end)),
    )
    above = between.sum(0).flip(0).cumsum(0).flip(0)[1:]  # those with more levels below them
    return RankCounts(above[place], same.sum(0)[place], row_above, row_same)


def pair_rows(factors: Factors, pairs: Csr) -> Tensor:
    """Score pairs grouped by row, (E,), for training; sums are in another order than in :func:`pair_scores`."""
    if core.kernels is None:
        return reference.pair_rows(factors, pairs)
    score = torch.empty(pairs.indices.numel())
    core.kernels.pair_rows(pairs.indptr, pairs.indices, *_widened(factors), score)
    return score


def pair_rows_backward(
    factors: Factors, pairs: Csr, grad: Tensor, *, with_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of sources, (S, D), and of the weight, (D,), from those of the scores, (E,).

    For the gradients of candidates, exchange sources and candidates. The order of sums does not depend on the threads.
    """
    if core.kernels is None:
        return reference.pair_rows_backward(factors, pairs, grad, with_weight=with_weight)
    a_src, b_dst, weight = _widened(factors)
    out, width = torch.empty_like(a_src), factors.a_src.shape[1]
    parts = torch.zeros(core.kernels.PAIR_PARTS, a_src.shape[1]) if with_weight else None
    core.kernels.pair_rows_backward(
        pairs.indptr, pairs.indices, a_src, b_dst, weight, grad.contiguous(), out, parts
    )
    return out[:, :width], None if parts is None else parts.sum(0)[:width]


def _widened(factors: Factors) -> tuple[Tensor, Tensor, Tensor | None]:
    """Pad the arrays with zero columns to a multiple of the vector width."""
    a_src, b_dst, weight = _plain(factors)
    more = -a_src.shape[1] % core.kernels.PAIR_WIDTH
    if not more:
        return a_src, b_dst, weight
    a_src, b_dst = (torch.nn.functional.pad(rows, (0, more)) for rows in (a_src, b_dst))
    return a_src, b_dst, None if weight is None else torch.nn.functional.pad(weight, (0, more))


def _plain(factors: Factors) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the arrays detached and contiguous."""
    a_src, b_dst, weight = factors
    weight = None if weight is None else weight.detach().contiguous()
    return a_src.detach().contiguous(), b_dst.detach().contiguous(), weight
