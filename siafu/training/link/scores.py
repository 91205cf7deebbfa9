"""Ranking scores of pairs: exact over all pairs of a step, or against sampled negatives.

Average precision treats pairs of equal score as one, since a threshold lies above or below all of them. A reciprocal
rank among equal scores is its mean over all their orders, so it does not depend on the order of nodes. Pairs of a node
with itself count like any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from siafu import native
from siafu.native import Csr, Factors, RankCounts
from siafu.nn.link import LinkHead
from siafu.sampling.negatives import edge_codes, find_sorted

MAX_PAIRS = 10**10  # of a step, half a minute of a core if all nodes differ; more has to be asked for
# In multiplications of a product that take as long, measured on one core:
_COLUMN_WORK = 0.8  # one column of a pair
_COUNT_WORK, _ROW_COUNT_WORK = 45.0, 3.0  # to count the score of a pair among all pairs, or in its row alone
_FACTOR_WORK = 30.0  # one number of the factors, whose equal rows are found
HITS = (1, 3, 10, 50)
NAMES = ("map", "mrr", "roc_auc", *(f"hits_{k}" for k in HITS))


@dataclass(frozen=True)
class StepScore:
    """The scores of one step, or of one split of a static graph.

    Attributes:
        average_precision: over all ranked pairs.
        reciprocal_rank: of each positive among the pairs of its source; the mean over a source's positives, then over
            sources.
        area: under the ROC curve.
        positives: number of positives.
        pairs: number of ranked pairs.
        hits: for some k, the share of positives among the first k pairs of their source.
    """

    average_precision: float
    reciprocal_rank: float
    area: float
    positives: int
    pairs: int
    hits: Mapping[int, float] = field(default_factory=dict)


def mean_scores(steps: Sequence[StepScore]) -> dict[str, float | None]:
    """MAP, MRR, hits and AUC: the means over steps that have positives; None if no step has."""
    scored = [step for step in steps if step.positives]
    if not scored:
        return dict.fromkeys(NAMES)
    each = [
        (step.average_precision, step.reciprocal_rank, step.area, *(step.hits[k] for k in HITS))
        for step in scored
    ]
    return {
        name: sum(values) / len(scored) for name, values in zip(NAMES, zip(*each, strict=True), strict=True)
    }


def check_all_pairs(num_nodes: int, *, steps: int = 1, width: int = 64, most: int = MAX_PAIRS) -> None:
    """Refuse an evaluation over all pairs that would take too long; the error says how long."""
    pairs = num_nodes**2
    if pairs > most:
        hours = pairs * steps * width / 2e10 / 3600  # a core scores about so many columns of pairs a second
        raise ValueError(
            f"all pairs of {num_nodes:,} nodes are {pairs:.3g} a step, {pairs * steps:.3g} in {steps:,} steps: about "
            f"{hours:.1f} hours of one core each time; set link.evaluation=1000 to rank each edge among 1000 sampled "
            f"negatives instead, or link.most_pairs={pairs} to do it all the same"
        )


def ranking_work(num_src: int, num_dst: int, width: int, *, rows: int = 0, overall: bool = True) -> float:
    """The work of ranking among all pairs of distinct rows, in the multiplications of a product that take as long.

    ``rows`` is the number of rows of all factors, equal ones included; ``overall`` as in :func:`native.count_ranks`.
    """
    of_pair = _COLUMN_WORK * width + (_COUNT_WORK if overall else _ROW_COUNT_WORK)
    return num_src * num_dst * of_pair + max(rows, num_src + num_dst) * width * _FACTOR_WORK


def rank_factors(
    factors: Factors,
    src: Tensor,
    dst: Tensor,
    *,
    given: tuple[Csr, Tensor] | None = None,
    rows: slice | None = None,
) -> "PairRanking":
    """Rank positives (P,), (P,) among all pairs; the scores of ``given`` pairs replace those of the factors.

    A positive that occurs twice counts once. With ``rows`` only pairs of those sources are looked at: the counts of
    ranks that take a range each add up, see :meth:`PairRanking.with_counts`.
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
    return PairRanking(src, score, above, num_src * num_dst)


@torch.no_grad()
def rank_all(
    head: LinkHead,
    h: Tensor,
    src: Tensor,
    dst: Tensor,
    *,
    recency: tuple[Csr, Tensor] | None = None,
    rows: slice | None = None,
) -> "PairRanking":
    """Rank positives (P,), (P,) among all pairs by a head, given the embeddings (N, H) of all nodes.

    ``recency`` are the pairs with a memory and their values, (E, K); see :meth:`.recency.Recency.all_at`.
    """
    factors, given = head.pair_factors(h), None
    if recency is not None and head.memory_columns:
        csr, memory = recency
        row = torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())
        pair_features = head.pairs(factors.a_src, factors.b_dst, row, csr.indices.long(), memory)
        given = csr, (pair_features - head.bias).float()
    weight = None if factors.weight is None else factors.weight.float()
    single = Factors(factors.a_src.float(), factors.b_dst.float(), weight)
    return rank_factors(single, src, dst, given=given, rows=rows)


def rank_by_memory(
    src: Tensor, dst: Tensor, *, recency: tuple[Csr, Tensor], rows: slice | None = None
) -> "PairRanking":
    """Rank positives among all pairs by the first column of the memory alone: the baseline without learning."""
    csr, memory = recency
    nothing = torch.zeros(csr.indptr.numel() - 1, 1)
    return rank_factors(
        Factors(nothing, nothing, None), src, dst, given=(csr, memory[:, 0].contiguous()), rows=rows
    )


def rank_sampled(src: Tensor, score: Tensor, negative: Tensor) -> "PairRanking":
    """Rank positives (P,), with ascending sources, each among K negatives of its own source: (P,), (P, K)."""
    row_above, row_same = (negative > score[:, None]).sum(1), (negative == score[:, None]).sum(1) + 1
    all_scores = torch.cat([negative.reshape(-1), score]).sort().values
    below, up_to = (torch.searchsorted(all_scores, score, right=right) for right in (False, True))
    return PairRanking(
        src,
        score,
        RankCounts(all_scores.numel() - up_to, up_to - below, row_above, row_same),
        all_scores.numel(),
    )


def rank_targets(factors: Factors, src: Tensor, dst: Tensor, *, known: Csr) -> tuple[Tensor, Tensor]:
    """Rank each pair (P,), (P,) among all targets of its source except other known edges: a filtered rank.

    ``known`` are rows by source, and contain the pairs. Returns the number of targets with a greater score, and of
    those with the same score, itself included. ``src`` ascends; only rows of sources that occur are looked at.
    """
    source, indptr = _rows(src)
    there = native.take_rows(known, source, name=torch.arange(factors.b_dst.shape[0], dtype=torch.int32))
    score = native.pair_scores(factors, src.int(), dst.int())
    _check_finite(score)
    left_out = torch.full((there.indices.numel(),), -torch.inf)
    rows = Factors(factors.a_src[source], factors.b_dst, factors.weight)
    found = native.count_ranks(rows, indptr, score, given=(there, left_out), overall=False)
    return found.row_above, found.row_same + 1


def _rows(src: Tensor) -> tuple[Tensor, Tensor]:
    """The sources that occur, and the bounds of the pairs of each; ``src`` ascends."""
    source, count = src.unique_consecutive(return_counts=True)
    return source, torch.cat([count.new_zeros(1), count.cumsum(0)])


def row_codes(csr: Csr, num_dst: int) -> Tensor:
    """The code of each pair of a CSR, see :func:`siafu.sampling.negatives.edge_codes`: (E,) int64."""
    row = torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())
    return edge_codes(row, csr.indices, num_nodes=num_dst)


@dataclass(frozen=True, eq=False)
class PairRanking:
    """The counts of each positive from which its scores follow.

    Attributes:
        src: (P,) int64, ascending.
        score: (P,) float32.
        above: the number of pairs above each positive, and of equal ones, itself included.
        pairs: number of all pairs.
    """

    src: Tensor
    score: Tensor
    above: RankCounts
    pairs: int

    def with_counts(self, counts: Tensor) -> "PairRanking":
        """The same with the summed counts of all ranks, (4, P); see :attr:`counts`."""
        return PairRanking(self.src, self.score, RankCounts(*counts), self.pairs)

    @property
    def counts(self) -> Tensor:
        """(4, P) int64, which add up over ranges of sources."""
        return torch.stack(list(self.above))

    def scores(self) -> StepScore:
        """The scores."""
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
            hits_at_k(self.above.row_above, self.above.row_same),
        )


def reciprocal_ranks(above: Tensor, same: Tensor) -> Tensor:
    """The mean of 1 / rank over all orders of ``same`` equal scores, itself included, below ``above`` others: (P,)."""
    last = int((above + same).max()) if above.numel() else 0
    harmonic = torch.cat([torch.zeros(1), 1 / torch.arange(1, last + 1)]).double().cumsum(0)
    return (harmonic[above + same] - harmonic[above]) / same


def hits_at_k(above: Tensor, same: Tensor) -> dict[int, float]:
    """The mean over positives of the chance to be among the first k, over all orders of equal scores."""
    return {k: float(((k - above) / same).clamp(0, 1).double().mean()) for k in HITS}


def mean_over_sources(values: Tensor, src: Tensor) -> float:
    """The mean over sources of the mean over the values of each; ``src`` (P,) ascends."""
    _, place, count = src.unique_consecutive(return_inverse=True, return_counts=True)
    total = torch.zeros(count.numel(), dtype=torch.float64).index_add_(0, place, values.double())
    return float((total / count).mean())


def _check_finite(score: Tensor) -> None:
    if not bool(score.isfinite().all()):
        raise ValueError("the scores of some pairs are not finite; lower --lr or set train.clip")
