"""How well pairs are ranked: exactly, over all pairs of a step, or against some sampled negatives.

Average precision takes pairs of equal score as one (a threshold lies above or below all of them). A reciprocal rank
among equal scores is its mean over all orders of them, so it depends on no order of nodes. Pairs of a node with itself
count as any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from siafu import native
from siafu.native import Csr, Factors, RankCounts
from siafu.nn.link import LinkHead
from siafu.sampling.negatives import edge_codes, find_sorted

MOST_PAIRS = 10**10  # of a step: minutes, beyond which somebody has to ask for it
HITS = (1, 3, 10, 50)
NAMES = ("map", "mrr", "roc_auc", *(f"hits_{k}" for k in HITS))


@dataclass(frozen=True)
class StepScore:
    """The scores of one step, or of one split of a static graph.

    Attributes:
        average_precision: over all pairs that were looked at.
        reciprocal_rank: of each positive among the pairs of its source; the mean over a source's positives, then over
            sources.
        area: under the ROC curve.
        positives: how many there are.
        pairs: how many were looked at.
        hits: for some k, the share of positives among the first k pairs of their source.
    """

    average_precision: float
    reciprocal_rank: float
    area: float
    positives: int
    pairs: int
    hits: Mapping[int, float] = field(default_factory=dict)


def mean_scores(steps: Sequence[StepScore]) -> dict[str, float | None]:
    """MAP, MRR, hits and AUC: the means over steps that have positives; None where none has."""
    told = [step for step in steps if step.positives]
    if not told:
        return dict.fromkeys(NAMES)
    each = [
        (step.average_precision, step.reciprocal_rank, step.area, *(step.hits[k] for k in HITS))
        for step in told
    ]
    return {
        name: sum(values) / len(told) for name, values in zip(NAMES, zip(*each, strict=True), strict=True)
    }


def check_all_pairs(num_nodes: int, *, steps: int = 1, width: int = 64, most: int = MOST_PAIRS) -> None:
    """Refuse an evaluation over all pairs that would take too long, saying how large it is."""
    pairs = num_nodes**2
    if pairs > most:
        hours = pairs * steps * width / 4e9 / 3600  # a core scores about so many columns of pairs a second
        raise ValueError(
            f"all pairs of {num_nodes:,} nodes are {pairs:.3g} a step, {pairs * steps:.3g} in {steps:,} steps: about "
            f"{hours:.1f} hours of one core each time; set link.evaluation=1000 to rank each edge among 1000 sampled "
            f"negatives instead, or link.most_pairs={pairs} to do it all the same"
        )


def all_pairs(
    factors: Factors,
    src: Tensor,
    dst: Tensor,
    *,
    given: tuple[Csr, Tensor] | None = None,
    rows: slice | None = None,
) -> "Counted":
    """Rank positives (P,), (P,) among all pairs; ``given`` pairs have scores that stand instead of the factors'.

    A positive that stands twice counts once. With ``rows`` only pairs of those sources are looked at: the counts of
    ranks that take a range each add up, see :meth:`Counted.plus`.
    """
    num_src, num_dst = factors.a_src.shape[0], factors.b_dst.shape[0]
    code = edge_codes(src, dst, num_nodes=num_dst).unique()
    src, dst = code // num_dst, code % num_dst
    score = native.pair_scores(factors, src.int(), dst.int())
    if given is not None:
        csr, values = given
        there, place = find_sorted(row_codes(csr, num_dst), code)
        score = torch.where(there, values[place], score) if values.numel() else score
    _check_finite(score)
    indptr = torch.searchsorted(src, torch.arange(num_src + 1))
    above = native.count_ranks(factors, indptr, score, given=given, rows=rows)
    return Counted(src, score, above, num_src * num_dst)


@torch.no_grad()
def rank_all(
    head: LinkHead,
    h: Tensor,
    src: Tensor,
    dst: Tensor,
    *,
    recency: tuple[Csr, Tensor] | None = None,
    rows: slice | None = None,
) -> "Counted":
    """Rank positives (P,), (P,) among all pairs by a head on the rows (N, H) of all nodes.

    ``recency`` are the pairs that are remembered and what of them, (E, K); see :meth:`.recency.Recency.all_at`.
    """
    factors, given = head.all_pairs(h), None
    if recency is not None and head.recencies:
        csr, seen = recency
        row = torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())
        of_pairs = head.pairs(factors.a_src, factors.b_dst, row, csr.indices.long(), seen)
        given = csr, (of_pairs - head.bias).float()
    weight = None if factors.weight is None else factors.weight.float()
    single = Factors(factors.a_src.float(), factors.b_dst.float(), weight)
    return all_pairs(single, src, dst, given=given, rows=rows)


def rank_by_memory(
    src: Tensor, dst: Tensor, *, recency: tuple[Csr, Tensor], rows: slice | None = None
) -> "Counted":
    """Rank positives among all pairs by what is remembered alone, its first decay: the floor, without learning."""
    csr, seen = recency
    nothing = torch.zeros(csr.indptr.numel() - 1, 1)
    return all_pairs(
        Factors(nothing, nothing, None), src, dst, given=(csr, seen[:, 0].contiguous()), rows=rows
    )


def rank_sampled(src: Tensor, score: Tensor, negative: Tensor) -> "Counted":
    """Rank positives (P,), by sources that ascend, each among K negatives of its own source: (P,), (P, K)."""
    row_above, row_same = (negative > score[:, None]).sum(1), (negative == score[:, None]).sum(1) + 1
    every = torch.cat([negative.reshape(-1), score]).sort().values
    below, up_to = (torch.searchsorted(every, score, right=right) for right in (False, True))
    return Counted(
        src, score, RankCounts(every.numel() - up_to, up_to - below, row_above, row_same), every.numel()
    )


def rank_targets(factors: Factors, src: Tensor, dst: Tensor, *, known: Csr) -> tuple[Tensor, Tensor]:
    """Rank each pair (P,), (P,) among all targets of its source but other known ones: a filtered rank.

    ``known`` stand row by row, and the pairs are among them. Returns how many targets are greater and how many are the
    same, itself included. Only rows of sources that occur are looked at; ``src`` ascends.
    """
    source, indptr = _rows(src)
    there = native.take_rows(known, source, name=torch.arange(factors.b_dst.shape[0], dtype=torch.int32))
    score = native.pair_scores(factors, src.int(), dst.int())
    _check_finite(score)
    left_out = torch.full((there.indices.numel(),), -torch.inf)
    some = Factors(factors.a_src[source], factors.b_dst, factors.weight)
    found = native.count_ranks(some, indptr, score, given=(there, left_out))
    return found.row_above, found.row_same + 1


def _rows(src: Tensor) -> tuple[Tensor, Tensor]:
    """The sources that occur, and where the pairs of each begin and the last ends; ``src`` ascends."""
    source, count = src.unique_consecutive(return_counts=True)
    return source, torch.cat([count.new_zeros(1), count.cumsum(0)])


def row_codes(csr: Csr, num_dst: int) -> Tensor:
    """One number for each pair that stands in rows, see :func:`siafu.sampling.negatives.edge_codes`: (E,) int64."""
    row = torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())
    return edge_codes(row, csr.indices, num_nodes=num_dst)


@dataclass(frozen=True, eq=False)
class Counted:
    """What was counted of each positive, whose scores follow from it.

    Attributes:
        src: (P,) int64, ascending.
        score: (P,) float32.
        above: what lies above each, itself being among the same.
        pairs: all there are.
    """

    src: Tensor
    score: Tensor
    above: RankCounts
    pairs: int

    def plus(self, counts: Tensor) -> "Counted":
        """The same with the counts of all ranks, (4, P); see :attr:`counts`."""
        return Counted(self.src, self.score, RankCounts(*counts), self.pairs)

    @property
    def counts(self) -> Tensor:
        """(4, P) int64, which add up over ranges of sources."""
        return torch.stack(list(self.above))

    def scores(self) -> StepScore:
        """The scores that follow."""
        positives = self.score.numel()
        if not positives:
            return StepScore(0.0, 0.0, 0.0, 0, self.pairs)
        ordered = self.score.sort().values
        over = positives - torch.searchsorted(ordered, self.score, right=True)  # positives above each
        equal = torch.searchsorted(ordered, self.score, right=True) - torch.searchsorted(ordered, self.score)
        above, same = self.above.above, self.above.same
        precision = ((over + equal).double() / (above + same)).mean()
        negatives = self.pairs - positives
        lost = ((above - over) + 0.5 * (same - equal)).double().sum() / max(1, positives * negatives)
        return StepScore(
            float(precision),
            mean_over_sources(reciprocal_ranks(self.above.row_above, self.above.row_same), self.src),
            float(1 - lost),
            positives,
            self.pairs,
            hits_of(self.above.row_above, self.above.row_same),
        )


def reciprocal_ranks(above: Tensor, same: Tensor) -> Tensor:
    """The mean of 1 / rank over all orders of ``same`` equal scores, itself included, below ``above`` others: (P,)."""
    last = int((above + same).max()) if above.numel() else 0
    harmonic = torch.cat([torch.zeros(1), 1 / torch.arange(1, last + 1)]).double().cumsum(0)
    return (harmonic[above + same] - harmonic[above]) / same


def hits_of(above: Tensor, same: Tensor) -> dict[int, float]:
    """The mean over positives of the chance to be among the first k, in any order of equal scores."""
    return {k: float(((k - above) / same).clamp(0, 1).double().mean()) for k in HITS}


def mean_over_sources(values: Tensor, src: Tensor) -> float:
    """The mean over sources of the mean over each one's values; ``src`` is (P,) and ascends."""
    _, place, count = src.unique_consecutive(return_inverse=True, return_counts=True)
    total = torch.zeros(count.numel(), dtype=torch.float64).index_add_(0, place, values.double())
    return float((total / count).mean())


def _check_finite(score: Tensor) -> None:
    if not bool(score.isfinite().all()):
        raise ValueError("the scores of some pairs are not finite; lower --lr or set train.clip")
