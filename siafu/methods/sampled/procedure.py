"""Sampled training with macrobatches (https://arxiv.org/abs/2306.13814).

An epoch is many steps, each on a minibatch of training nodes and some of their neighbours. Several minibatches, a
macrobatch, are sampled together, one exchange a hop, and the rows of other ranks that they read are fetched together,
each once, while the macrobatch before is trained on. Which nodes are in a minibatch and which neighbours are drawn
depends on the seed, the epoch, the minibatch and the nodes alone, so it is the same for any number of threads and
ranks and any size of a macrobatch. Nodes are scored by exact passes over the whole graph, as in ``full``, layer by
layer where activations would not fit into memory.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from siafu import native
from siafu.comm.config import CommConfig, Precision
from siafu.context import AnyBlock, Context
from siafu.graph import Block, Whole
from siafu.methods.full.procedure import infer_whole
from siafu.methods.sampled.config import SampledConfig
from siafu.methods.sampled.fetched import FetchedRows, StaticRows, Table
from siafu.methods.sampled.neighbourhood import Neighbourhood
from siafu.nn.aggregates import aggregate_static, widened
from siafu.nn.dropout import mix, set_keys
from siafu.nn.embedded import Embedded, model_of
from siafu.nn.gnn import Gnn
from siafu.nn.model import Model
from siafu.nn.ops import TorchOps
from siafu.nn.product import PROJECTED
from siafu.nn.streamed import Rows, Streamed
from siafu.partition.cut import Part
from siafu.prefetch import prefetch
from siafu.sampling import Minibatch, sample_minibatches
from siafu.training.byte_counter import ByteCounter
from siafu.training.config import TrainConfig
from siafu.training.layerwise import Room, outputs_by_layer
from siafu.training.optimizer import DistributedOptimizer
from siafu.training.procedure import EpochPosition, EpochStats, Procedure, State
from siafu.training.residuals import load_residuals, residuals_of
from siafu.training.task import SeedBatch, Task

_MOST_AT_ONCE, _MOST_ALONE = 64, 16  # minibatches; alone nothing is exchanged, and few stay in the cache
_X, _ID, _FACTS, _AGGREGATE = 0, 1, 2, 3  # which table is which


class Macrobatch(NamedTuple):
    """Minibatches that were sampled together, and the rows fetched for them.

    Attributes:
        first: which minibatch of the epoch the first one is.
        grown: their nodes and edges.
        fetched: the rows of other ranks' nodes.
    """

    first: int
    grown: list[Minibatch]
    fetched: FetchedRows


class _ProjectedInputs(NamedTuple):
    """Projected inputs of some nodes: (R,) int32, ascending, and (R, Z)."""

    position: Tensor
    rows: Tensor

    def of(self, position: Tensor) -> Tensor:
        """The rows of some of them."""
        return native.gather(self.rows, torch.searchsorted(self.position, position))


class SampledProcedure(Procedure):
    """Trains on minibatches of sampled neighbours; scores by exact passes over the whole graph."""

    model: Model | Embedded

    def __init__(
        self,
        model: Model | Embedded,
        part: Part,
        context: Context,
        x_own: Rows,
        task: Task,
        config: TrainConfig,
        *,
        sampled: SampledConfig,
        seed: int,
        wire: CommConfig | None = None,
        room: Room | None = None,
    ) -> None:
        self.model, self.task, self.comm, self.seed = model, task, task.comm, seed
        self.context, self.x_src, self.in_features = context.with_static(x_own), x_own, x_own.shape[1]
        self.optimizer = DistributedOptimizer(model, config, task.comm, wire=wire)
        self.sent = ByteCounter(task.comm)
        core = model_of(model)
        self.sampled, self.fanouts = sampled, sampled.fanouts(core.num_aggregates)
        if sampled.share_projection:
            _check_shared(model)
        self.room = room
        self.spent = {"sample": 0.0, "fetch": 0.0, "compute": 0.0}
        self.num_batches = -(-task.count["train"] // sampled.batch_size)
        self._aside = self.comm.channel("sample")  # so that what is done ahead never meets the gradients
        self.near = Neighbourhood(self._aside, part, spill=room.spill if room else None)
        caches = sampled.cache_aggregate and not isinstance(model, Embedded)
        self.cached = core.num_kept(x_own) if caches else 0  # leading aggregates
        self.num_hops = len(self.fanouts) - self.cached
        precision: Precision = "fp32" if wire is None else wire.precision
        tables = self._tables(
            part, any(core.kind(number).reads_whole for number in range(core.num_aggregates)), precision
        )
        self.static = StaticRows(self._aside, self.near, tables, hot_bytes=sampled.hot_mb * 10**6)
        self.prefetch = sampled.prefetch and (self.comm.world_size > 1 or isinstance(x_own, Streamed))
        self.macrobatch = self._macrobatch_size()

    def outputs(self) -> Tensor:
        """The model's output for every row here, without dropout; by layer where ``room`` is given. Collective."""
        if self.room is None or isinstance(self.model, Embedded):
            return infer_whole(self.model, self.context, self.x_src, self.task)
        self.model.eval()
        context = self.context if self.cached else replace(self.context, static_src=None)
        return outputs_by_layer(self.model, context, self.x_src, room=self.room)

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        """Train one epoch, or the rest of it."""
        epoch, loss = epochs.start, position.loss
        self.optimizer.set_lr(epoch)
        batches = self.task.seed_batches(
            epoch, batch_size=self.sampled.batch_size, seed=self.seed, node_id=self.context.node_id
        )
        made = self._macrobatches(epoch, batches, first=position.minibatch)
        for macrobatch in prefetch(made) if self.prefetch else made:
            loss = self._train_on(macrobatch, epoch, batches, loss)
            done = macrobatch.first + len(macrobatch.grown)
            if done < self.num_batches:
                position.advance(done, loss)
        return [EpochStats(loss / self.num_batches)]

    def _train_on(
        self, macrobatch: Macrobatch, epoch: int, batches: Sequence[SeedBatch], total: float
    ) -> float:
        """Take a step on each minibatch of a macrobatch; returns ``total`` and their losses. Collective."""
        shared = self._projected(macrobatch) if self.sampled.share_projection else None
        for number, grown in enumerate(macrobatch.grown, macrobatch.first):
            start = time.perf_counter()
            blocks, x_src = self._assemble(grown, macrobatch.fetched)
            if shared is not None:
                blocks[0].cache[PROJECTED] = shared.of(grown.position)
            self.model.train()
            set_keys(self.model, seed=self.seed, step=(epoch << 32) + number)
            self.optimizer.zero_grad()
            out = self.model(blocks, x_src)
            total += self.optimizer.learn_from(self.task.batch_loss(out, batches[number]))
            self.spent["compute"] += time.perf_counter() - start
        return total

    def state(self) -> State:
        """The residuals of this rank."""
        return State({}, residuals_of(self.context, self.optimizer))

    def load_state(self, state: State) -> None:
        """Take residuals back."""
        load_residuals(self.context, self.optimizer, state.tensors)

    def metrics(self, seconds: float) -> dict[str, float]:
        """Seconds spent on sampling, fetching and computing."""
        return {f"{part}_seconds": spent for part, spent in self.spent.items()}

    def _macrobatches(self, epoch: int, batches: Sequence[SeedBatch], *, first: int) -> Iterator[Macrobatch]:
        """Sample and fetch the minibatches of an epoch from ``first`` on. Collective."""
        while first < self.num_batches:
            last = min(first + self.macrobatch - first % self.macrobatch, self.num_batches)
            yield self._sampled(epoch, first, [batch.rows for batch in batches[first:last]])
            first = last

    def _sampled(self, epoch: int, first: int, seeds: Sequence[Tensor]) -> Macrobatch:
        start = time.perf_counter()
        grown = sample_minibatches(
            self.near,
            [(rows + self.near.own.start).int() for rows in seeds],
            self._keys(epoch, first, len(seeds)),
            fanouts=self.fanouts[::-1][: self.num_hops],
            replace=self.sampled.replace,
        )
        sampled = time.perf_counter()
        read = torch.cat([each.position for each in grown])
        fetched = self.static.fetch(read[~self.near.is_own(read)].unique())
        self.spent["sample"] += sampled - start
        self.spent["fetch"] += time.perf_counter() - sampled
        return Macrobatch(first, grown, fetched)

    def _keys(self, epoch: int, first: int, count: int) -> Tensor:
        """The keys of the draws of each hop of some minibatches, (count, hops) int64."""
        size = self.macrobatch if self.sampled.share_draws else 1
        numbers = [number - number % size for number in range(first, first + count)]
        keys = [
            [mix(mix(mix(mix(self.seed) ^ epoch) ^ number) ^ (hop + 1)) for hop in range(self.num_hops)]
            for number in numbers
        ]
        return torch.from_numpy(np.array(keys, dtype=np.uint64).reshape(count, self.num_hops).view(np.int64))

    def _tables(self, part: Part, whole: bool, precision: Precision) -> list[Table]:
        """The static tables of own nodes: inputs, ids, degrees, kept aggregates. Collective."""
        own, block = part.own, self.context.block
        ids = torch.arange(own.num_nodes) if own.node_id is None else own.node_id
        facts = torch.empty(own.num_nodes, 0, dtype=torch.float64)
        if whole:
            facts = torch.stack(
                [block.in_degree + block.missing_loop, block.missing_loop, block.indptr.diff().double()], 1
            )
        tables = [Table(self.x_src, precision), Table(ids.int()[:, None]), Table(facts)]
        if self.cached:
            self.context.exchange.begin("halo")
            kept = aggregate_static(self.context, model_of(self.model).kinds(self.cached), self.x_src)
            tables.append(Table(kept, precision))
        return tables

    @torch.no_grad()
    def _projected(self, macrobatch: Macrobatch) -> "_ProjectedInputs":
        """Project all inputs of a macrobatch by the weights of now."""
        position = torch.cat([grown.position for grown in macrobatch.grown]).unique()
        place = self.static.place(position, macrobatch.fetched)
        assert isinstance(self.model, Gnn)
        rows = widened(self.static.read(_X, place, macrobatch.fetched))
        return _ProjectedInputs(position, self.model.layer(0).project(TorchOps(None), rows))

    def _assemble(self, grown: Minibatch, fetched: FetchedRows) -> tuple[list[AnyBlock], Rows]:
        """The blocks of a minibatch, and the rows that the first of them reads."""
        place = self.static.place(grown.position, fetched)
        node_id = self.static.read_dense(_ID, place, fetched)[:, 0].long()
        facts = self.static.read_dense(_FACTS, place, fetched)
        blocks: list[AnyBlock] = []
        for hop in reversed(grown.hops):
            src, dst = slice(hop.num_src), slice(hop.indptr.numel() - 1)
            whole = Whole(facts[src, 0], facts[dst, 1], facts[dst, 2].long()) if facts.shape[1] else None
            blocks.append(Block(hop.indptr, hop.indices, hop.num_src, hop.weight, node_id[src], whole=whole))
        x_src = self.static.read(_X, place, fetched)
        if self.cached:
            nothing = torch.zeros(place.numel() + 1, dtype=torch.int64)
            empty = Block(nothing, torch.empty(0, dtype=torch.int32), place.numel(), None, node_id)
            kept = empty.with_static(x_src)
            name = ("aggregate", *model_of(self.model).kinds(self.cached))
            kept.cache[name] = self.static.read(_AGGREGATE, place, fetched)
            blocks = [*[kept] * self.cached, *blocks]
        return blocks, x_src

    def _macrobatch_size(self) -> int:
        """The number of minibatches of a macrobatch; the same on all ranks."""
        needed = self._minibatch_bytes() * (2 if self.prefetch else 1)  # one is used while one is made
        if needed > self.sampled.budget_mb * 1e6:
            raise ValueError(
                f"sampled.budget_mb is {self.sampled.budget_mb}, but one minibatch takes up to {needed / 1e6:.0f} MB; "
                f"set it to {-(-needed // 10**6)} or more, or lower sampled.batch_size or sampled.fanout"
            )
        if self.sampled.macrobatch != "auto":
            return self.sampled.macrobatch
        most = _MOST_AT_ONCE if self.prefetch or self.comm.world_size > 1 else _MOST_ALONE
        return max(1, min(int(self.sampled.budget_mb * 1e6 / needed), most, self.num_batches))

    def _minibatch_bytes(self) -> int:
        """The most bytes that edges and fetched rows of a minibatch take on a rank; the same on all ranks."""
        num_nodes, ranks = int(self.near.offset[-1]), self.comm.world_size
        mean_degree = (
            self.comm.all_reduce(torch.tensor([self.context.num_edges]), label="sample").item() / num_nodes
        )
        nodes, num_bytes = float(min(num_nodes, -(-self.sampled.batch_size // ranks) + 1)), 0.0
        for fanout in self.fanouts[::-1][: self.num_hops]:
            edges = nodes * (fanout if fanout > 0 else mean_degree)
            num_bytes += 4 * edges
            nodes = min(num_nodes, nodes + edges)
        each = sum(table.width * table.rows.dtype.itemsize for table in self.static.tables)
        away = nodes * (ranks - 1) / ranks
        return int(num_bytes + 4 * nodes + each * away) + 1


def _check_shared(model: Model | Embedded) -> None:
    if isinstance(model, Embedded):
        raise ValueError(
            "sampled.share_projection needs features, but a row is learned for each node; set it to false"
        )
    config = model.config
    if config.kind not in ("gat", "gatv2"):
        raise ValueError(
            f"sampled.share_projection is for gat and gatv2, but the model is {config.kind}, whose aggregate of the "
            "inputs can be computed once; set it to false"
        )
    if config.input_rate or config.residual:
        raise ValueError(
            "sampled.share_projection needs inputs that are the same in all minibatches and read once; set "
            "model.input_dropout to 0 and model.residual to false"
        )
