"""Link prediction on a graph that does not change: ``full`` learns from all edges in each step, ``sampled`` from some.

A minibatch of ``sampled`` is some edges and their negatives; its seeds are the ends of both.
"""

import torch
from torch import Tensor

from siafu.methods.sampled.procedure import Minibatch, SampledTrainer
from siafu.nn.dropout import mix, set_keys
from siafu.sampling import Shuffled
from siafu.training.full import FullTrainer
from siafu.training.link.task import LinkTask


class LinkTrainer(FullTrainer):
    """``full``: each epoch is one step on all edges and as many negatives as are asked for."""

    task: LinkTask

    def step(self, epoch: int) -> float:
        """Train for one epoch, counted from 1; returns its loss."""
        self.model.train()
        set_keys(self.model, seed=self.seed, step=epoch)
        self._set_lr(epoch)
        self.optimizer.zero_grad()
        return self._learn_from(self.task.loss_at(self._forward("halo"), epoch))


class SampledLinkTrainer(SampledTrainer):
    """``sampled``: each step is on some edges, their negatives, and the neighbourhood of the ends of both."""

    task: LinkTask

    def _minibatches(self, epoch: int) -> tuple[list[Tensor], list[float]]:
        """The rows of the ends of each minibatch, and what its loss is divided by."""
        count, size = self.task.count["train"], self.sampled.batch_size
        order = Shuffled(count, key=mix(mix(self.seed) ^ (epoch << 1))).at(torch.arange(count))
        self._pairs = []
        for number in order.split(size):
            positive = self.task.pairs["train"][:, number]
            self._pairs.append((positive, self.task.drawn(number, epoch)))
        row = self.task.row
        ends = [torch.cat(pairs, 1).unique() for pairs in self._pairs]
        return [each if row is None else row[each] for each in ends], [1.0] * len(ends)

    def _train_on(self, minibatch: Minibatch, epoch: int, weight: float) -> float:
        self.model.train()
        set_keys(self.model, seed=self.seed, step=(epoch << 32) + minibatch.number)
        self.optimizer.zero_grad()
        out = self.model(minibatch.blocks, minibatch.x_src)
        place = torch.zeros(self.block.num_dst, dtype=torch.int64)
        place[minibatch.seed_row] = torch.arange(minibatch.seed_row.numel())
        place = place if self.task.row is None else place[self.task.row]
        positive, negative = self._pairs[minibatch.number]
        return self._learn_from(self.task.loss_on(out, positive, negative, place=place))
