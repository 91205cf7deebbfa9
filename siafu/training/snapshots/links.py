"""Which pairs of nodes are joined in the next step."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from siafu.nn.dropout import mix
from siafu.nn.link import LinkHead
from siafu.sample.negatives import Edges, draw_negatives
from siafu.training.link.config import LinkConfig
from siafu.training.link.recency import Recency
from siafu.training.link.scores import StepScore, rank_all, rank_sampled
from siafu.training.snapshots.task import TemporalTask

_SCORES = ("map", "mrr", "auc")


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkTask(TemporalTask):
    """Links of the next step, ranked among all pairs as IBM/EvolveGCN does, or among sampled ones.

    Attributes:
        config: negatives, evaluation.
        memory: how lately and how often pairs met; None where the head does not read it.
    """

    config: LinkConfig
    memory: Recency | None

    def loss_of(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean binary cross-entropy of the next step's pairs and of negatives."""
        assert isinstance(head, LinkHead)
        src, dst, y = self._pairs(step, epoch)
        if not y.numel():
            return 0 * h.sum()
        out = head(h, src, dst, self._remembered(step, src, dst))
        return nn.functional.binary_cross_entropy_with_logits(out, y.to(out.dtype))

    def judged(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """Average precision, reciprocal rank and area, whether there is anything to predict, and the loss."""
        assert isinstance(head, LinkHead)
        loss, edges = float(self.loss_of(head, step, h, epoch=0)), self._edges(step + 1)
        found = [0.0] * (len(_SCORES) + 1)
        if edges.code.numel():
            score = self._ranked(head, step, h, edges)
            found = [score.average_precision, score.reciprocal_rank, score.area, 1.0]
        return torch.tensor([*found, loss], dtype=torch.float64)

    def scores_of(self, judged: Tensor) -> dict[str, float | None]:
        """The means over the steps that have something to predict."""
        told = judged[judged[:, len(_SCORES)] > 0, : len(_SCORES)]
        if not len(told):
            return dict.fromkeys(_SCORES)
        return dict(zip(_SCORES, told.mean(0).tolist(), strict=True))

    def _ranked(self, head: LinkHead, step: int, h: Tensor, edges: Edges) -> StepScore:
        """How well a sample ranks its links, among all pairs or among sampled targets of their sources."""
        src, dst = edges.code // self.graph.num_nodes, edges.code % self.graph.num_nodes
        if self.config.evaluation == "all":
            memory = None if self.memory is None else self.memory.all_at(step)
            return rank_all(head, h, src, dst, recency=memory).scores()
        each = self.config.evaluation
        number, source = torch.arange(src.numel() * each), src.repeat_interleave(each)
        key = mix(mix(self.seed) ^ step)
        _, target = draw_negatives(number, key=key, edges=edges, src=source)
        scores = [
            head(h, first, second, self._remembered(step, first, second))
            for first, second in ((src, dst), (source, target))
        ]
        return rank_sampled(src, scores[0], scores[1].view(-1, each)).scores()

    def _remembered(self, step: int, src: Tensor, dst: Tensor) -> Tensor | None:
        return None if self.memory is None else self.memory.at(step, src, dst)

    def _edges(self, step: int) -> Edges:
        """The pairs that are joined in a step."""
        if step not in self._known:
            events = self.graph.events(step, step + 1)
            src, dst = self.graph.src[events].long(), self.graph.dst[events].long()
            if self.graph.undirected:
                src, dst = torch.cat([src, dst]), torch.cat([dst, src])
            self._known[step] = Edges(src, dst, num_nodes=self.graph.num_nodes)
        return self._known[step]

    def _pairs(self, step: int, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs of the next step and negatives: sources, targets, whether they are joined."""
        edges, nodes = self._edges(step + 1), self.graph.num_nodes
        positives = edges.code.numel()
        among = self.graph.seen(step).nonzero()[:, 0] if self.config.sampling == "smart" else None
        number = torch.arange(positives * (self.config.negatives or 1))
        key = mix(mix(mix(self.seed) ^ epoch) ^ step)
        src, dst = draw_negatives(number, key=key, edges=edges, among=among)
        y = torch.cat([torch.ones(positives), torch.zeros(number.numel())])
        return torch.cat([edges.code // nodes, src]), torch.cat([edges.code % nodes, dst]), y

    @cached_property
    def _known(self) -> dict[int, Edges]:
        return {}
