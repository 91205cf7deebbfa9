"""Sampled training with macrobatches (https://arxiv.org/abs/2306.13814).

An epoch is many steps, each on a minibatch of training nodes and some of their neighbours. Several minibatches, a
macrobatch, are sampled together, one exchange a hop, and the rows that they read are fetched together, each once.
Which nodes are in a minibatch and which neighbours are drawn depends on the seed, the epoch, the minibatch and the
nodes alone, so it is the same for any number of threads and ranks and any size of a macrobatch. Nodes are scored by
exact passes over the whole graph, as in ``full``.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Block, Whole
from siafu.nn.dropout import mix, set_keys
from siafu.nn.layer import Layer
from siafu.nn.model import Gnn
from siafu.partition.cut import Part
from siafu.sample import Grown, SampledConfig, grow
from siafu.training.config import TrainConfig
from siafu.training.full import FullTrainer
from siafu.training.neighbourhood import Neighbourhood
from siafu.training.task import Task

_MOST_AT_ONCE = 64


class Minibatch(NamedTuple):
    """What one step reads.

    Attributes:
        number: which of the epoch's.
        seed_row: (B,) int64, its training nodes that this rank owns.
        blocks: one a layer, the first layer's first.
        x_src: (S, F), the rows of the first block.
    """

    number: int
    seed_row: Tensor
    blocks: list[Block]
    x_src: Tensor


class SampledTrainer(FullTrainer):
    """Trains on minibatches of sampled neighbours; scores and checkpoints are those of ``full``."""

    model: Gnn

    def __init__(
        self,
        model: Gnn,
        part: Part,
        block: Block,
        x_own: Tensor,
        task: Task,
        config: TrainConfig,
        *,
        sampled: SampledConfig,
        seed: int,
    ) -> None:
        super().__init__(model, block, x_own, task, config, seed=seed)
        self.sampled, self.fanouts = sampled, sampled.fanouts(len(model.layers))
        if sampled.batch_size > task.count["train"]:
            raise ValueError(
                f"sampled.batch_size is {sampled.batch_size}, but there are {task.count['train']} training nodes; "
                "expected at most so many"
            )
        self.x_own = x_own
        self.near = Neighbourhood(self.comm, part, self.block)
        self.num_batches = -(-task.count["train"] // sampled.batch_size)
        self.spent = {"sample": 0.0, "fetch": 0.0, "compute": 0.0}
        first = model.layers[0]
        assert isinstance(first, Layer)
        self.cached = sampled.cache_aggregate and first.linear
        self.num_hops = len(self.fanouts) - self.cached

    @property
    def macrobatch(self) -> int:
        """How many minibatches are sampled and fetched together; the same on all ranks."""
        if self.sampled.macrobatch != "auto":
            return self.sampled.macrobatch
        nodes = float(self.sampled.batch_size) / self.comm.world_size
        for fanout in self.fanouts[: self.num_hops]:
            nodes *= 1 + (fanout if fanout > 0 else 100)
        nodes = min(nodes, float(self.near.offset[-1]))
        wanted = self.sampled.budget_mb * 1e6 / max(1.0, 4 * nodes * self.x_own.shape[1] * (1 + self.cached))
        return max(1, min(int(wanted), _MOST_AT_ONCE, self.num_batches))

    def step(self, epoch: int) -> float:
        """Train for one epoch, counted from 1; returns the mean loss of its minibatches. Collective."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr_at(epoch)
        seeds, weight = self._minibatches(epoch)
        total = 0.0
        for first in range(0, self.num_batches, self.macrobatch):
            for minibatch in self._macrobatch(epoch, first, seeds[first : first + self.macrobatch]):
                start = time.perf_counter()
                total += self._train_on(minibatch, epoch, weight[minibatch.number])
                self.spent["compute"] += time.perf_counter() - start
        return total / self.num_batches

    def _train_on(self, minibatch: Minibatch, epoch: int, weight: float) -> float:
        self.model.train()
        set_keys(self.model, seed=self.seed, step=(epoch << 32) + minibatch.number)
        self.optimizer.zero_grad()
        out = self.model(minibatch.blocks, minibatch.x_src)
        return self._learn_from(self.task.loss_of(out, minibatch.seed_row) / weight)

    def _minibatches(self, epoch: int) -> tuple[list[Tensor], list[float]]:
        """The own training nodes of each minibatch, and the weight of each minibatch's labels. Collective.

        Training nodes stand in the order of a hash of their ids; a minibatch is the next so many of all ranks'.
        """
        rows = self.task.rows["train"]
        node_id = self.block.node_id
        mixed = _hashes(rows if node_id is None else node_id[rows], mix(mix(self.seed) ^ (epoch << 1)))
        everyone = torch.cat(self.comm.all_gather(mixed, label="sample")).sort().values
        number = torch.searchsorted(everyone, mixed) // self.sampled.batch_size
        order = (number * (1 << 40) + rows).argsort()  # by minibatch, then by row
        count = torch.bincount(number, minlength=self.num_batches)
        seeds = list(rows[order].split(count.tolist()))
        here = torch.tensor([self.task.weight_of(each) for each in seeds], dtype=torch.float64)
        return seeds, self.comm.all_reduce(here, label="sample").tolist()

    def _macrobatch(self, epoch: int, first: int, seeds: list[Tensor]) -> Iterator[Minibatch]:
        """Sample and fetch several minibatches at once. Collective."""
        start = time.perf_counter()
        keys = torch.tensor(
            [
                [_signed(self._key(epoch, first + m, hop)) for hop in range(self.num_hops)]
                for m in range(len(seeds))
            ],
            dtype=torch.int64,
        ).view(len(seeds), self.num_hops)
        grown = grow(
            self.near,
            [rows + self.near.first for rows in seeds],
            keys,
            fanouts=self.fanouts[::-1][: self.num_hops],
            replace=self.sampled.replace,
        )
        sampled = time.perf_counter()
        self.spent["sample"] += sampled - start
        unique = torch.cat([each.position for each in grown]).unique()
        facts = self.near.facts(unique)
        x = self.near.rows(unique, self.x_own)
        aggregate = self._aggregate(unique)
        self.spent["fetch"] += time.perf_counter() - sampled
        for place, each in enumerate(grown):
            row = torch.searchsorted(unique, each.position)
            yield Minibatch(first + place, seeds[place], *self._assemble(each, row, facts, x, aggregate))

    def _aggregate(self, position: Tensor) -> dict[Any, Tensor]:
        """The kept aggregates of the inputs of some nodes, by the name under which a block keeps them. Collective."""
        if not self.cached:
            return {}
        layer = self.model.layers[0]
        assert isinstance(layer, Layer)
        if self.block.others is not None:
            self.block.others.begin("halo")
        layer.aggregate(self.block, self.x_own)
        kept = {key: rows for key, rows in self.block.memo.items() if key[0] == "aggregate"}  # type: ignore[index]
        return {key: self.near.rows(position, rows) for key, rows in kept.items()}

    def _assemble(
        self, grown: Grown, row: Tensor, facts: Any, x: Tensor, aggregate: dict[Any, Tensor]
    ) -> tuple[list[Block], Tensor]:
        """The blocks of a minibatch, whose nodes are rows of what was fetched."""
        blocks = []
        for hop in reversed(grown.hops):
            src, dst = row[: hop.num_src], row[: hop.indptr.numel() - 1]
            whole = Whole(facts.degree[src], facts.missing_loop[dst], facts.num_edges[dst])
            blocks.append(
                Block(hop.indptr, hop.indices, hop.num_src, hop.weight, facts.node_id[src], whole=whole)
            )
        x_src = x[row]
        if self.cached:
            nodes = row.numel()
            nothing = torch.zeros(nodes + 1, dtype=torch.int64)
            empty = Block(nothing, torch.empty(0, dtype=torch.int32), nodes, None, facts.node_id[row])
            kept = empty.with_static(x_src)
            kept.memo.update({key: rows[row] for key, rows in aggregate.items()})
            blocks.insert(0, kept)
        return blocks, x_src

    def _key(self, epoch: int, minibatch: int, hop: int) -> int:
        """What draws of a hop of a minibatch are keyed by."""
        return mix(mix(mix(mix(self.seed) ^ epoch) ^ minibatch) ^ (hop + 1))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _hashes(node_id: Tensor, key: int) -> Tensor:
    """A number of 63 bits for each node and key, (R,) int64."""
    z = node_id.numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy(((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64))
