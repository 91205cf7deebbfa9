"""Link prediction on a static graph: the loss and the scores.

Training edges are learned against sampled negatives. The area under the ROC curve and average precision (``map``)
compare the edges of a split with as many negatives, drawn once. Ranks (``mrr``, ``hits_k``) are filtered: each edge is
ranked among all targets of its source, or sampled ones, that are no edges themselves.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm, single_rank_comm
from siafu.graph import Graph
from siafu.native import Csr, Factors
from siafu.nn.dropout import mix
from siafu.nn.link import LinkHead
from siafu.sampling.negatives import EdgeSet, edge_codes, sample_negatives
from siafu.sampling.permutation import KeyedPermutation
from siafu.training import metrics
from siafu.training.classes import LabelNames, check_no_classes
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.link.loss import pair_loss
from siafu.training.link.scores import (
    NAMES,
    check_all_pairs,
    hits_at_k,
    mean_over_sources,
    rank_sampled,
    rank_targets,
    ranking_work,
    reciprocal_ranks,
)
from siafu.training.link.split import SPLIT_CODES, PairSplit
from siafu.training.scorer import Scorer
from siafu.training.task import SPLITS, SeedBatch, Task, zero_if_finite

_MAX_SCORED = 10_000  # training edges that are scored
_AREAS = ("roc_auc", "map")
_PAIR_WORK = 8000.0  # multiplications of a product in the time that an edge and its negative take in an area


@dataclass(frozen=True, eq=False)
class PairBatch(SeedBatch):
    """The seeds of one minibatch of pairs.

    Attributes:
        positive: (2, P) int64, edges, by the user's row numbers.
        negative: (2, Q) int64, pairs that are no edges.
    """

    positive: Tensor
    negative: Tensor


@dataclass(frozen=True, eq=False)
class LinkTask(Task):
    """A link prediction task on a static graph; rows and labels of nodes are empty.

    Attributes:
        head: scores pairs of the model's outputs.
        link: settings of link prediction.
        pairs: (2, P) int64 of each split, by the user's row numbers; see :class:`PairSplit`.
        all_edges: the edges of all splits.
        row: (N,) int64, the row of each of the user's row numbers; None if they are the same.
        seed: seed of the training negatives.
        fold: seed of the negatives of evaluation.
    """

    head: LinkHead
    link: LinkConfig
    pairs: dict[str, Tensor]
    all_edges: EdgeSet
    row: Tensor | None
    seed: int
    fold: int

    @property
    def negatives(self) -> int:
        """The number of negatives for each training edge."""
        return self.link.negatives or 1

    def loss(self, out: Tensor, split: str = "train") -> Tensor:
        """The mean loss over the edges of a split and their negatives of evaluation."""
        return self.loss_on(out, self.pairs[split], self._scored_negatives[split])

    def training_loss(self, out: Tensor, epoch: int) -> Tensor:
        """The mean loss over all training edges and the negatives of this epoch."""
        return self.loss_on(
            out, self.pairs["train"], self.training_negatives(torch.arange(self.count["train"]), epoch)
        )

    def seed_batches(
        self, epoch: int, *, batch_size: int, seed: int, node_id: Tensor | None
    ) -> "list[PairBatch]":
        """Shuffle the training edges into minibatches; the seeds are the ends of edges and of their negatives."""
        count = self.count["train"]
        order = KeyedPermutation(count, key=mix(mix(seed) ^ (epoch << 1))).at(torch.arange(count))
        batches = []
        for number in order.split(batch_size):
            positive, negative = self.pairs["train"][:, number], self.training_negatives(number, epoch)
            ends = torch.cat([positive, negative], 1).unique()
            rows = ends if self.row is None else self.row[ends]
            batches.append(PairBatch(rows, 1.0, positive, negative))
        return batches

    def batch_loss(self, out: Tensor, batch: SeedBatch) -> Tensor:
        """The mean loss of a minibatch's edges and negatives, given the outputs of their ends: (B, H) -> ()."""
        assert isinstance(batch, PairBatch)
        place = torch.zeros(self.all_edges.num_nodes, dtype=torch.int64)
        place[batch.rows] = torch.arange(batch.rows.numel())
        place = place if self.row is None else place[self.row]
        return self.loss_on(out, batch.positive, batch.negative, place=place)

    def training_negatives(self, positive: Tensor, epoch: int) -> Tensor:
        """The negatives of some training edges, given by number, in an epoch: (P,) -> (2, P K), user's row numbers."""
        each = self.negatives
        number = (positive[:, None] * each + torch.arange(each)).reshape(-1)
        key = mix(mix(mix(self.seed) ^ epoch) ^ (1 << 48))
        found = sample_negatives(
            number, key=key, edges=self._train_edges, among=self._negative_pool, loops=False
        )
        return torch.stack(found)

    def loss_on(
        self, out: Tensor, positive: Tensor, negative: Tensor, *, place: Tensor | None = None
    ) -> Tensor:
        """The mean loss of pairs, (2, P) and (2, Q), given the outputs (N, H); ``place`` maps a node to its row."""
        src, dst = self._rows(torch.cat([positive, negative], 1), place)
        y = torch.zeros(src.numel())
        y[: positive.shape[1]] = 1
        return pair_loss(self.head, out, src, dst, y)

    @torch.no_grad()
    def evaluate(self, out: Tensor) -> tuple[dict[str, float | None], float]:
        """The chosen metric of each split, and the loss on the validation edges."""
        loss = self.loss(out, "val") if self.count["val"] else out.new_zeros(())
        loss = loss.double() + zero_if_finite(out)
        return {split: self.score(out, split) for split in SPLITS}, float(loss)

    @torch.no_grad()
    def scores(self, out: Tensor, split: str) -> dict[str, float | None]:
        """Every metric of a split; for training, of a sample of its edges."""
        if not self.count[split]:
            return dict.fromkeys(NAMES)
        areas = {name: self._compared(out, split, name) for name in _AREAS}
        return {**areas, **self._ranks(out, split)}

    @torch.no_grad()
    def score(self, out: Tensor, split: str) -> float | None:
        """The chosen metric of a split; edges are ranked only if it is a rank."""
        if not self.count[split]:
            return None
        return self._ranks(out, split)[self.metric] if self.ranks else self._compared(out, split, self.metric)

    @property
    def ranks(self) -> bool:
        """Whether the chosen metric is a rank, for which edges are ranked."""
        return self.metric not in _AREAS

    @property
    def comparison_work(self) -> float:
        """The work of comparing the scored edges of all splits with negatives, for an area."""
        return _PAIR_WORK * sum(pairs.shape[1] for pairs in self._scored_pairs.values())

    @property
    def ranking_work(self) -> float:
        """The work of ranking the scored edges of all splits among all targets of their sources."""
        if self.link.evaluation != "all":
            return 0.0
        nodes, width = self.all_edges.num_nodes, self.head.source.shape[1]
        sources = [pairs[0].unique().numel() for pairs in self._scored_pairs.values()]
        return sum(ranking_work(each, nodes, width, overall=False) for each in sources)

    def metrics(self) -> dict[str, Any]:
        """The protocol by which edges are ranked."""
        return {"protocol": self.link.protocol}

    @torch.no_grad()
    def _compared(self, out: Tensor, split: str, metric: str) -> float | None:
        """The area under the ROC curve, or average precision (``map``)."""
        factors = self.head.pair_factors(out)
        positive, negative = (
            native.pair_scores(factors, *self._rows(pairs))
            for pairs in (self._scored_pairs[split], self._scored_negatives[split])
        )
        score = torch.cat([positive, negative])
        y = torch.arange(score.numel()) < positive.numel()
        if metric == "map":
            return metrics.average_precision(score, y)
        return metrics.roc_auc(score[:, None], y[:, None])

    def _ranks(self, out: Tensor, split: str) -> dict[str, float | None]:
        factors = self.head.pair_factors(out)
        src, dst = self._rows(self._scored_pairs[split])
        order = edge_codes(src, dst, num_nodes=out.shape[0]).argsort()
        src, dst = src[order], dst[order]
        if self.link.evaluation == "all":
            check_all_pairs(out.shape[0], width=factors.a_src.shape[1], most=self.link.most_pairs)
            above, same = rank_targets(factors, src, dst, known=self._known_rows)
        else:
            above, same = self._sampled_ranks(factors, src, dst, split, self.link.evaluation)
        ranks = mean_over_sources(reciprocal_ranks(above, same), src)
        return {"mrr": ranks, **{f"hits_{k}": share for k, share in hits_at_k(above, same).items()}}

    def _sampled_ranks(
        self, factors: Factors, src: Tensor, dst: Tensor, split: str, each: int
    ) -> tuple[Tensor, Tensor]:
        """Filtered ranks among ``each`` sampled targets, some edges at a time."""
        user = torch.arange(factors.a_src.shape[0]) if self.row is None else self.row.argsort()
        key = mix(mix(self.fold) ^ (SPLIT_CODES[split] + 11))
        found = []
        for part in torch.arange(src.numel()).split(max(1, (1 << 20) // each)):
            number = edge_codes(user[src[part]], user[dst[part]], num_nodes=user.numel())
            number = (number[:, None] * each + torch.arange(each)).reshape(-1)
            source = user[src[part]].repeat_interleave(each)
            u, v = sample_negatives(number, key=key, edges=self.all_edges, src=source, loops=False)
            negative = native.pair_scores(factors, *self._rows(torch.stack([u, v]))).view(-1, each)
            score = native.pair_scores(factors, src[part].int(), dst[part].int())
            found.append(rank_sampled(src[part], score, negative).above)
        return torch.cat([one.row_above for one in found]), torch.cat([one.row_same for one in found])

    def _rows(self, pairs: Tensor, place: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The rows of both ends: (2, P) -> 2 x (P,)."""
        place = self.row if place is None else place
        rows = pairs if place is None else place[pairs]
        return rows[0], rows[1]

    @cached_property
    def _train_edges(self) -> EdgeSet:
        return EdgeSet(*self.pairs["train"], num_nodes=self.all_edges.num_nodes)

    @cached_property
    def _negative_pool(self) -> Tensor | None:
        return self.pairs["train"].unique() if self.link.sampling == "smart" else None

    @cached_property
    def _scored_pairs(self) -> dict[str, Tensor]:
        """The edges that are scored: all, but an even sample of the training edges."""
        every = -(-self.count["train"] // _MAX_SCORED)
        return {**self.pairs, "train": self.pairs["train"][:, ::every]}

    @cached_property
    def _scored_negatives(self) -> dict[str, Tensor]:
        """As many negatives, drawn once."""
        found = {}
        for split, pairs in self._scored_pairs.items():
            key = mix(mix(self.fold) ^ (SPLIT_CODES[split] + 1))
            number = torch.arange(pairs.shape[1])
            found[split] = torch.stack(sample_negatives(number, key=key, edges=self.all_edges, loops=False))
        return found

    @cached_property
    def _known_rows(self) -> Csr:
        """All edges and self-loops, as a CSR by source."""
        num_nodes = self.all_edges.num_nodes
        ids = torch.stack([self.all_edges.code // num_nodes, self.all_edges.code % num_nodes])
        src, dst = self._rows(ids)
        loop = torch.arange(num_nodes)
        src, dst = torch.cat([src, loop]).int(), torch.cat([dst, loop]).int()
        return native.deduplicate(native.sort_rows(native.build_csr(src, dst, num_rows=num_nodes)))


def build_link_task(
    graph: Graph,
    split: PairSplit,
    head: LinkHead,
    *,
    config: TrainConfig,
    link: LinkConfig,
    seed: int,
    fold: int,
    comm: Comm | None = None,
) -> LinkTask:
    """Build the task of a graph whose edges are split."""
    count = {name: pairs.shape[1] for name, pairs in split.pairs.items()}
    if config.metric not in ("auto", *NAMES):
        raise ValueError(
            f"train.metric is {config.metric}, which does not fit task link; expected one of {', '.join(NAMES)}"
        )
    check_no_classes(config)
    return LinkTask(
        kind="link",
        num_outputs=head.source.shape[0],
        metric="roc_auc" if config.metric == "auto" else config.metric,
        rows={name: torch.empty(0, dtype=torch.int64) for name in SPLITS},
        count=count,
        weight={name: float(number) for name, number in count.items()},
        y=torch.empty(0),
        class_weight=None,
        comm=single_rank_comm() if comm is None else comm,
        scorer=Scorer("labels", 1),
        labels=LabelNames("labels", 1),
        gamma=0.0,
        train_count=(),
        rule=None,
        head=head,
        link=link,
        pairs=split.pairs,
        all_edges=split.all_edges,
        row=None if graph.node_id is None else graph.node_id.argsort(),
        seed=seed,
        fold=fold,
    )
