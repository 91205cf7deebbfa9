"""Scores of node pairs, and the ranks of scores among all pairs; plain versions in ``pairs_reference``.

The score of a pair is ``relu(a_src + b_dst) . weight``, or ``a_src . b_dst`` without a weight. No array of the size of
all pairs is ever held, and none is sorted.
"""

import torch
from torch import Tensor

from siafu.native import core
from siafu.native import pairs_reference as reference
from siafu.native.values import Csr, DistinctRows, Factors, RankCounts

_CELLS_PER_LEVEL, _FEWEST_CELLS, _MOST_CELLS = 16, 1 << 12, 1 << 16  # the cache nearest to a core holds some


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
    overall: bool = True,
) -> RankCounts:
    """Count, for P scores grouped by row, the greater and equal scores: ``indptr`` (S + 1,) int64, ``score`` (P,).

    ``given`` are pairs, row by row, each once, with scores (E,) that replace those computed from the factors. With
    ``rows`` only pairs of those sources are counted, so that counts of several ranges add up. Without ``overall``
    scores are compared within their rows alone, and the counts among all pairs are 0.
    """
    begin, end, _ = (rows or slice(None)).indices(factors.a_src.shape[0])
    if not score.numel() or begin >= end:
        return RankCounts(*(torch.zeros(score.numel(), dtype=torch.int64) for _ in range(4)))
    if core.kernels is None:
        found = reference.count_ranks(factors, indptr, score, given=given, rows=range(begin, end))
        return found if overall else found._replace(above=0 * found.above, same=0 * found.same)
    factors, score = Factors(*_plain(factors)), score.contiguous()
    level, place = score.unique(return_inverse=True) if overall else (score[:0], torch.empty(0).long())
    counts = _Counts(level, max(1, min(torch.get_num_threads(), (end - begin) // 8)))
    row_above, row_same = _count_distinct(factors, indptr, score, (begin, end), counts)
    if given is not None:
        csr, values = given
        computed = _computed_scores(factors, csr, (begin, end))
        core.kernels.replace_scores(
            *(csr.indptr, values, computed, indptr, score, level, counts.first, counts.marked),
            *(counts.between, counts.same, row_above, row_same, (begin, end)),
        )
    if not overall:
        nothing = torch.zeros_like(row_above)
        return RankCounts(nothing, nothing, row_above, row_same)
    above = counts.between.sum(0).flip(0).cumsum(0).flip(0)[1:]  # those with more levels below them
    return RankCounts(above[place], counts.same.sum(0)[place], row_above, row_same)


class _Counts:
    """Arrays of the compiled core for the counts among all pairs, by thread."""

    def __init__(self, level: Tensor, threads: int) -> None:
        levels = level.numel()
        cells = min(max(1 << (_CELLS_PER_LEVEL * levels).bit_length(), _FEWEST_CELLS), _MOST_CELLS)
        self.level, self.threads = level, threads
        self.first = torch.empty(cells + 1, dtype=torch.int32)
        self.marked = torch.empty(cells, dtype=torch.uint8)
        self.by_cell = torch.zeros(threads, cells, dtype=torch.int32).view(torch.uint32)
        self.between, self.same = (
            torch.zeros(threads, size, dtype=torch.int64) for size in (levels + 1, levels)
        )


def _count_distinct(
    factors: Factors, indptr: Tensor, score: Tensor, rows: tuple[int, int], counts: _Counts
) -> tuple[Tensor, Tensor]:
    """Count the greater and equal scores of each row, (P,) and (P,), and add those of all pairs to ``counts``.

    Equal rows of the factors have equal scores, so each pair of distinct rows is scored once.
    """
    (begin, end), width, kernels = rows, factors.a_src.shape[1], core.kernels
    row, col = distinct_rows(factors.a_src[begin:end]), distinct_rows(factors.b_dst)
    own = slice(int(indptr[begin]), int(indptr[end]))
    group = row.group.repeat_interleave(indptr[begin : end + 1].diff())
    order = group.argsort(stable=True)
    pos_ptr = torch.searchsorted(group[order], torch.arange(row.first.numel() + 1))
    panels = -(-col.first.numel() // kernels.PAIR_COLUMNS)
    col_times = torch.nn.functional.pad(col.times, (0, panels * kernels.PAIR_COLUMNS - col.times.numel()))
    found = torch.zeros(2, order.numel(), dtype=torch.int64)
    kernels.count_above(
        *(factors.a_src, factors.b_dst, factors.weight, row.first + begin, row.times, col.first, col_times),
        *(pos_ptr, score[own][order], counts.level, counts.first, counts.marked),
        torch.empty(panels, width, kernels.PAIR_COLUMNS),
        torch.empty(counts.threads, kernels.PAIR_CHUNK, width),
        *(counts.by_cell, counts.between, counts.same, found[0], found[1]),
    )
    row_above, row_same = torch.zeros(2, score.numel(), dtype=torch.int64)
    row_above[own][order], row_same[own][order] = found
    return row_above, row_same


def _computed_scores(factors: Factors, pairs: Csr, rows: tuple[int, int]) -> Tensor:
    """The scores of the pairs of some rows by the factors, (E,); those of other rows are not set."""
    begin, end = rows
    computed = torch.empty(pairs.indices.numel())
    own = slice(int(pairs.indptr[begin]), int(pairs.indptr[end]))
    src = torch.arange(begin, end).repeat_interleave(pairs.indptr[begin : end + 1].diff())
    computed[own] = pair_scores(factors, src, pairs.indices[own])
    return computed


def distinct_rows(x: Tensor) -> DistinctRows:
    """Find the distinct rows of a table (R, W), float32; rows are equal if all their bits are."""
    if core.kernels is None:
        return reference.distinct_rows(x)
    rows = x.shape[0]
    slots = 1 << (2 * rows).bit_length()
    group, first = torch.empty(2, rows, dtype=torch.int32)
    count = core.kernels.distinct_rows(
        x.contiguous(),
        torch.empty(rows, dtype=torch.uint64),
        torch.empty(slots, dtype=torch.int32),
        group,
        first,
    )
    return DistinctRows(group, first[:count], torch.bincount(group, minlength=count).int())


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
