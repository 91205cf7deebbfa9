"""Temporal link prediction: the links of the next step."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from siafu.methods.snapshots.pair_sampling import PairSampling, SampledPairs, sample_pairs
from siafu.methods.snapshots.task import TemporalTask
from siafu.native import Csr
from siafu.native.splitmix import splitmix64
from siafu.nn.dropout import mix
from siafu.nn.link import LinkHead
from siafu.sampling.negatives import EdgeSet, sample_negatives
from siafu.training.link.config import LinkConfig
from siafu.training.link.memory import LinkMemory
from siafu.training.link.scores import StepScore, rank_all, rank_sampled, row_codes

LinkPart = Literal["all", "learned", "held"]
_SCORES = ("map", "mrr", "auc")
_HELD_OUT = 10  # one link of so many is held out


@dataclass(frozen=True, eq=False, kw_only=True)
class TemporalLinkTask(TemporalTask):
    """Predicts the links of the next step, ranked among all pairs, as IBM/EvolveGCN does, or among sampled ones.

    Attributes:
        config: negatives, evaluation.
        memory: further inputs of the head: recency and frequency of contacts of nodes and pairs.
        num_recent_steps: number of steps whose events supply the ends of negatives.
        part: the links of a step that losses are computed on: all, or for live updates nine tenths or the held-out
            rest.
    """

    config: LinkConfig
    memory: LinkMemory
    num_recent_steps: int = 1
    part: LinkPart = "all"

    def sample_loss(self, head: nn.Module, step: int, h: Tensor, *, epoch: int) -> Tensor:
        """The mean binary cross-entropy of the next step's links and of negatives."""
        assert isinstance(head, LinkHead)
        remembered = self.memory.pair_table(step)
        pairs = self._training_pairs(step, epoch, remembered)
        if not pairs.y.numel():
            return 0 * h.sum()
        recency = self.memory.pair_features(step, pairs.src, pairs.dst)
        out = head(self.memory.append_node_features(h, step, remembered), pairs.src, pairs.dst, recency)
        return nn.functional.binary_cross_entropy_with_logits(
            out + pairs.offset.to(out.dtype), pairs.y.to(out.dtype)
        )

    def evaluate_sample(self, head: nn.Module, step: int, h: Tensor, split: str) -> Tensor:
        """Average precision, reciprocal rank, AUC, 1 if there are links to predict, and the loss."""
        assert isinstance(head, LinkHead)
        loss, edges = float(self.sample_loss(head, step, h, epoch=0)), self._edges(step + 1)
        found = [0.0] * (len(_SCORES) + 1)
        if edges.code.numel():
            score = self._ranked(head, step, h, edges)
            found = [score.average_precision, score.reciprocal_rank, score.area, 1.0]
        return torch.tensor([*found, loss], dtype=torch.float64)

    def scores_from_counts(self, counts: Tensor) -> dict[str, float | None]:
        """The means over the steps that have links to predict."""
        ranked = counts[counts[:, len(_SCORES)] > 0, : len(_SCORES)]
        if not len(ranked):
            return dict.fromkeys(_SCORES)
        return dict(zip(_SCORES, ranked.mean(0).tolist(), strict=True))

    def metrics(self) -> dict[str, Any]:
        """The protocol by which links are ranked."""
        return {"protocol": self.config.protocol}

    def for_part(self, part: LinkPart) -> "TemporalLinkTask":
        """The same task with losses on a part of the links."""
        return replace(self, part=part)

    def _ranked(self, head: LinkHead, step: int, h: Tensor, edges: EdgeSet) -> StepScore:
        """Rank the links of a sample among all pairs, or among sampled targets of their sources."""
        src, dst = edges.code // self.graph.num_nodes, edges.code % self.graph.num_nodes
        remembered = self.memory.pair_table(step)
        h = self.memory.append_node_features(h, step, remembered)
        if self.config.evaluation == "all":
            return rank_all(head, h, src, dst, recency=remembered).scores()
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
        """The links of a step."""
        if step not in self._edges_by_step:
            events = self.graph.events(step, step + 1)
            src, dst = self.graph.src[events].long(), self.graph.dst[events].long()
            if self.graph.undirected:
                src, dst = torch.cat([src, dst]), torch.cat([dst, src])
            self._edges_by_step[step] = EdgeSet(src, dst, num_nodes=self.graph.num_nodes)
        return self._edges_by_step[step]

    def _training_pairs(self, step: int, epoch: int, remembered: tuple[Csr, Tensor] | None) -> SampledPairs:
        """The training pairs of a step."""
        edges = self._edges(step + 1)
        codes = None if remembered is None else row_codes(remembered[0], self.graph.num_nodes)
        key = mix(mix(mix(self.seed) ^ epoch) ^ step)
        sampling = PairSampling(self.config.negatives or 1, key, self._recent_ends(step), codes)
        return sample_pairs(edges, sampling, learned=self._edges_of_part(edges.code))

    def _edges_of_part(self, code: Tensor) -> Tensor:
        """The edges of a step that belong to the part; both directions of a pair are in the same part."""
        if self.part == "all":
            return code
        ends = torch.stack([code // self.graph.num_nodes, code % self.graph.num_nodes])
        number = ends.min(0).values * self.graph.num_nodes + ends.max(0).values
        hashes = splitmix64(number.numpy().astype(np.uint64) ^ np.uint64(mix(self.seed)))
        held = torch.from_numpy(hashes % np.uint64(_HELD_OUT) == 0)
        return code[held if self.part == "held" else ~held]

    def _recent_ends(self, step: int) -> Tensor:
        """The ends of recent events, among which half of the negatives are drawn; empty with uniform sampling.

        They ascend, so that negatives do not depend on the order of events within a step.
        """
        if self.config.sampling == "uniform":
            return torch.empty(0, dtype=torch.int64)
        graph, events = self.graph, self.graph.events(step + 1 - self.num_recent_steps, step + 1)
        frequency = sum(
            torch.bincount(ends[events], minlength=graph.num_nodes) for ends in (graph.src, graph.dst)
        )
        return torch.arange(graph.num_nodes).repeat_interleave(frequency)

    @cached_property
    def _edges_by_step(self) -> dict[int, EdgeSet]:
        return {}
