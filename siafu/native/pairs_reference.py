"""Scores of pairs in plain torch; see :mod:`siafu.native.pairs`."""

import torch
from torch import Tensor

from siafu.native.values import Csr, DistinctRows, Factors, RankCounts

_AT_ONCE = 1 << 22  # numbers


def pair_scores(factors: Factors, src: Tensor, dst: Tensor) -> Tensor:
    """Score some pairs; see :func:`siafu.native.pair_scores`."""
    step = max(1, _AT_ONCE // max(1, factors.a_src.shape[1]))
    found = [
        _scores(factors, factors.a_src[u.long()], factors.b_dst[v.long()])
        for u, v in zip(src.split(step), dst.split(step), strict=True)
    ]
    return torch.cat(found) if found else torch.empty(0)


def count_ranks(
    factors: Factors,
    indptr: Tensor,
    score: Tensor,
    *,
    given: tuple[Csr, Tensor] | None,
    rows: range,
) -> RankCounts:
    """Count what lies above; see :func:`siafu.native.count_ranks`."""
    level, place = score.unique(return_inverse=True)
    between, same = (torch.zeros(level.numel() + 1, dtype=torch.int64) for _ in range(2))
    row_above, row_same = (torch.zeros(score.numel(), dtype=torch.int64) for _ in range(2))
    num_dst = factors.b_dst.shape[0]
    for row in rows:
        found = pair_scores(factors, torch.full((num_dst,), row), torch.arange(num_dst))
        if given is not None:
            csr, values = given
            its = slice(int(csr.indptr[row]), int(csr.indptr[row + 1]))
            found[csr.indices[its].long()] = values[its]
        below = torch.searchsorted(level, found)
        between += torch.bincount(below, minlength=level.numel() + 1)
        met = below[level[below.clamp(max=level.numel() - 1)] == found]
        same += torch.bincount(met, minlength=level.numel() + 1)
        own = slice(int(indptr[row]), int(indptr[row + 1]))
        row_above[own] = (found > score[own, None]).sum(1)
        row_same[own] = (found == score[own, None]).sum(1)
    above = between.flip(0).cumsum(0).flip(0)[1:]
    return RankCounts(above[place], same[place], row_above, row_same)


def distinct_rows(x: Tensor) -> DistinctRows:
    """Find the distinct rows; see :func:`siafu.native.distinct_rows`."""
    rows = [row.numpy().tobytes() for row in x.detach()]
    first = dict[bytes, int]()
    for place, row in enumerate(rows):
        first.setdefault(row, place)
    number = {row: group for group, row in enumerate(first)}
    group = torch.tensor([number[row] for row in rows], dtype=torch.int32)
    count = torch.bincount(group, minlength=len(first)).int()
    return DistinctRows(group, torch.tensor(list(first.values()), dtype=torch.int32), count)


def _scores(factors: Factors, a: Tensor, b: Tensor) -> Tensor:
    """One number a pair, added up in the order of the columns: two times (P, D) -> (P,)."""
    each = a * b if factors.weight is None else (a + b).relu() * factors.weight
    total = torch.zeros(each.shape[0])
    for column in each.unbind(1):
        total = total + column
    return total


def pair_rows(factors: Factors, pairs: Csr) -> Tensor:
    """Score pairs row by row; see :func:`siafu.native.pair_rows`."""
    row = torch.arange(pairs.indptr.numel() - 1).repeat_interleave(pairs.indptr.diff())
    return pair_scores(factors, row, pairs.indices)


def pair_rows_backward(
    factors: Factors, pairs: Csr, grad: Tensor, *, with_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of that; see :func:`siafu.native.pair_rows_backward`."""
    row = torch.arange(pairs.indptr.numel() - 1).repeat_interleave(pairs.indptr.diff())
    a, b = factors.a_src[row], factors.b_dst[pairs.indices.long()]
    z = a + b
    each = b if factors.weight is None else (z > 0) * factors.weight
    out = torch.zeros_like(factors.a_src).index_add(0, row, each * grad[:, None])
    return out, (z.relu() * grad[:, None]).sum(0) if with_weight else None
