"""Which pairs of nodes are joined in the next step."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from siafu.methods.snapshots.pair_sampling import Draw, Drawn, draw_pairs
from siafu.methods.snapshots.task import TemporalTask
from siafu.native import Csr
from siafu.native.splitmix import splitmix64
from siafu.nn.dropout import mix
from siafu.nn.link import LinkHead
from siafu.sampling.negatives import EdgeSet, sample_negatives
from siafu.training.link.config import LinkConfig
from siafu.training.link.memory import Memory
from siafu.training.link.scores import StepScore, rank_all, rank_sampled, row_codes

Part = Literal["all", "learned", "held"]
_SCORES = ("map", "mrr", "auc")
_HELD = 10  # one link of so many is held back


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkTask(TemporalTask):
    """Links of the next step, ranked among all pairs as IBM/EvolveGCN does, or among sampled ones.

    Attributes:
        config: negatives, evaluation.
        memory: what the head reads beside rows: how lately and how often nodes and pairs met.
        lately: of how many steps the ends of events count where negatives are drawn among them.
        part: which links of a step losses are of; a tenth is held back where links are learned as they become known.
    """

    config: LinkConfig
    memory: Memory
    lately: int = 1
    part: Part = "all"

    def loss_of(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean binary cross-entropy of the next step's pairs and of negatives."""
        assert isinstance(head, LinkHead)
        known = self.memory.pair_table(step)
        drawn = self._drawn(step, epoch, known)
        if not drawn.y.numel():
            return 0 * h.sum()
        recency = self.memory.pair_features(step, drawn.src, drawn.dst)
        out = head(self.memory.append_node_features(h, step, known), drawn.src, drawn.dst, recency)
        return nn.functional.binary_cross_entropy_with_logits(
            out + drawn.offset.to(out.dtype), drawn.y.to(out.dtype)
        )

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

    def metrics(self) -> dict[str, Any]:
        """The protocol by which links are ranked."""
        return {"protocol": self.config.protocol}

    def of_part(self, part: Part) -> "LinkTask":
        """The same with losses of a part of the links."""
        return replace(self, part=part)

    def _ranked(self, head: LinkHead, step: int, h: Tensor, edges: EdgeSet) -> StepScore:
        """How well a sample ranks its links, among all pairs or among sampled targets of their sources."""
        src, dst = edges.code // self.graph.num_nodes, edges.code % self.graph.num_nodes
        known = self.memory.pair_table(step)
        h = self.memory.append_node_features(h, step, known)
        if self.config.evaluation == "all":
            return rank_all(head, h, src, dst, recency=known).scores()
        each = self.config.evaluation
        number, source = torch.arange(src.numel() * each), src.repeat_interleave(each)
        key = mix(mix(self.seed) ^ step)
        _, target = sample_negatives(number, key=key, edges=edges, src=source)
        scores = [
            head(h, first, second, self.memory.pair_features(step, first, second))
            for first, second in ((src, dst), (source, target))
        ]
        return rank_sampled(src, scores[0], scores[1].view(-1, each)).scores()

    def _edges(self, step: int) -> EdgeSet:
        """The pairs that are joined in a step."""
        if step not in self._known:
            events = self.graph.events(step, step + 1)
            src, dst = self.graph.src[events].long(), self.graph.dst[events].long()
            if self.graph.undirected:
                src, dst = torch.cat([src, dst]), torch.cat([dst, src])
            self._known[step] = EdgeSet(src, dst, num_nodes=self.graph.num_nodes)
        return self._known[step]

    def _drawn(self, step: int, epoch: int, known: tuple[Csr, Tensor] | None) -> Drawn:
        """The pairs that a step learns from."""
        edges = self._edges(step + 1)
        codes = None if known is None else row_codes(known[0], self.graph.num_nodes)
        key = mix(mix(mix(self.seed) ^ epoch) ^ step)
        how = Draw(self.config.negatives or 1, key, self._lately(step), codes)
        return draw_pairs(edges, how, learned=self._of_part(edges.code))

    def _of_part(self, code: Tensor) -> Tensor:
        """Those of the edges of a step that belong to the part; both directions of a pair go to the same."""
        if self.part == "all":
            return code
        ends = torch.stack([code // self.graph.num_nodes, code % self.graph.num_nodes])
        number = ends.min(0).values * self.graph.num_nodes + ends.max(0).values
        drawn = splitmix64(number.numpy().astype(np.uint64) ^ np.uint64(mix(self.seed)))
        held = torch.from_numpy(drawn % np.uint64(_HELD) == 0)
        return code[held if self.part == "held" else ~held]

    def _lately(self, step: int) -> Tensor:
        """Both ends of the events of late, among which half of the negatives are drawn; nobody, where all are alike.

        They ascend, so that what is drawn does not depend on the order of events within a step.
        """
        if self.config.sampling == "uniform":
            return torch.empty(0, dtype=torch.int64)
        graph, events = self.graph, self.graph.events(step + 1 - self.lately, step + 1)
        often = sum(
            torch.bincount(ends[events], minlength=graph.num_nodes) for ends in (graph.src, graph.dst)
        )
        return torch.arange(graph.num_nodes).repeat_interleave(often)

    @cached_property
    def _known(self) -> dict[int, EdgeSet]:
        return {}
