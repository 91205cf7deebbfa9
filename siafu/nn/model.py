"""``Model``: tensor stages with an aggregate between each two, and the pass over a whole graph or a minibatch.

Stage k reads the aggregate k - 1, and some earlier rows, and gives the rows that aggregate k reads. Stages are row by
row and know no graph; aggregates know no weights but those they are handed. Full-graph training, minibatches, the
pipeline, inference layer by layer and inputs on disk run the same stages and aggregates in different orders.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from siafu.context import AnyBlock, Context, context_of
from siafu.nn.aggregates import Aggregate, aggregate, aggregate_static, widened
from siafu.nn.config import ModelConfig
from siafu.nn.dropout import Dropout
from siafu.nn.ops import Ops, TorchOps
from siafu.nn.product import PROJECTED
from siafu.nn.streamed import Rows, in_memory


class Order(NamedTuple):
    """The order of aggregates and projections in one pass.

    Attributes:
        first: for each aggregate, whether it comes before the projection.
        kept: how many leading aggregates are of static inputs and kept, so that the pass begins after them.
    """

    first: tuple[bool, ...]
    kept: int = 0


@dataclass(frozen=True)
class StageRows:
    """The rows that a stage reads, all of the same nodes.

    Attributes:
        m: the aggregate before the stage; None for stage 0.
        x: the model's inputs, where the stage reads them.
        h: rows of earlier stages, by their numbers, where the stage reads them.
        branch: called with rows that are both projected and read again by a later stage; returns them twice.
    """

    m: Any = None
    x: Any = None
    h: Mapping[int, Any] = field(default_factory=dict)
    branch: Callable[[Any], tuple[Any, Any]] = lambda rows: (rows, rows)


class Model(nn.Module):
    """K aggregates, and the K + 1 tensor stages around them.

    Attributes:
        config: the settings it was made with.
        in_features, out_features: the widths of its inputs and outputs.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        returns: (D, out_features).
    """

    config: ModelConfig
    in_features: int
    out_features: int

    @property
    def num_aggregates(self) -> int:
        """K."""
        raise NotImplementedError

    def kind(self, number: int) -> Aggregate:
        """The kind of an aggregate."""
        raise NotImplementedError

    def z_features(self, number: int, *, first: bool) -> int:
        """The width of the rows that an aggregate reads; ``first``: before a projection."""
        raise NotImplementedError

    def num_weights(self, number: int) -> int:
        """The multiplications of a row by the weights around an aggregate."""
        return self.z_features(number, first=True) * self.z_features(number, first=False)

    def m_features(self, number: int, order: Order) -> int:
        """The width of what an aggregate gives."""
        first = order.first[number] or number < order.kept
        return self.kind(number).m_features(self.z_features(number, first=first))

    def edge_drop(self, number: int) -> Dropout | None:
        """The dropout of edges of an aggregate, or None."""
        return None

    def edge_weights(self, number: int) -> dict[str, nn.Parameter]:
        """The weights that an aggregate reads, by their names in the model."""
        return {}

    def reads(self, stage: int) -> tuple[str, ...]:
        """The rows that a stage reads beside the aggregate before it: ``x``, the inputs, or ``h0``, ``h1``, ..."""
        return ("x",) if stage == 0 else ()

    def h_features(self, stage: int) -> int:
        """The width of the rows of a stage that later stages read."""
        raise NotImplementedError

    def stage(self, ops: Ops, number: int, rows: StageRows, order: Order) -> tuple[Any, Any]:
        """Compute a stage: the rows that later stages read, and those that the next aggregate reads (h, z).

        Both are the outputs after the last stage.
        """
        raise NotImplementedError

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        raise NotImplementedError

    def num_kept(self, x_src: Rows) -> int:
        """Return how many leading aggregates can be kept if the inputs are static."""
        return 0

    def aggregates_first(self, number: int, context: Context) -> bool:
        """Say whether an aggregate comes before the projection."""
        return True

    def order(self, contexts: Sequence[Context], x_src: Rows) -> Order:
        """The order of a pass over blocks, one for each aggregate."""
        kept = self.num_kept(x_src) if contexts and x_src is contexts[0].static_src else 0
        firsts = (self.aggregates_first(number, context) for number, context in enumerate(contexts))
        return Order(tuple(firsts), kept)

    def forward(self, block: AnyBlock | Sequence[AnyBlock], x_src: Rows) -> Tensor:
        """Scores of the destinations; of several blocks, one for each aggregate, those of the last."""
        if isinstance(block, AnyBlock):
            return _Pass(self, [context_of(block)] * self.num_aggregates, x_src).run()
        return _Pass(self, [context_of(each) for each in block], x_src).run()

    @property
    def embedding_stage(self) -> int:
        """The stage that makes embeddings, the rows that the last layer reads."""
        raise NotImplementedError

    def embedding(self, ops: Ops, rows: StageRows, order: Order) -> Any:
        """Make embeddings of the rows that their stage reads."""
        raise NotImplementedError

    def embed(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """The rows that the last layer reads: (S, in_features) -> (D, hidden)."""
        one = _Pass(self, [context_of(block)] * self.num_aggregates, x_src)
        ops, rows = one.before(self.embedding_stage)
        found = self.embedding(ops, rows, one.order)
        return in_memory(widened(found[: block.num_dst]))

    @property
    def widest(self) -> int:
        """The width of the widest rows that an aggregate reads, or of the outputs."""
        firsts = ((number, first) for number in range(self.num_aggregates) for first in (True, False))
        widths = (self.z_features(number, first=first) for number, first in firsts if number or not first)
        return max([self.out_features, *widths])

    def dense_layers(self) -> list[nn.Module]:
        """The layers before the first aggregate and after the last, which may have a weight decay of their own."""
        return []

    def edge_dropout(self, number: int) -> Any:
        """The dropout of edges in this step."""
        drop = self.edge_drop(number)
        return None if drop is None else drop.now()

    def kinds(self, count: int) -> tuple[Aggregate, ...]:
        """The kinds of the leading aggregates."""
        return tuple(self.kind(number) for number in range(count))


class _Pass:
    """One pass of a model over blocks, under autograd."""

    def __init__(self, model: Model, contexts: Sequence[Context], x_src: Rows) -> None:
        self.model, self.contexts, self.x_src = model, contexts, x_src
        self.order = model.order(contexts, x_src)
        self._needed = {name for stage in range(len(contexts) + 1) for name in model.reads(stage)}
        self._h: dict[int, Tensor] = {}  # of earlier stages that later ones read

    def run(self) -> Tensor:
        """Run all stages; returns the outputs."""
        last = self.model.num_aggregates
        ops, rows = self.before(last)
        return self.model.stage(ops, last, rows, self.order)[0]

    def before(self, last: int) -> tuple[TorchOps, StageRows]:
        """Run everything before a stage."""
        if last < self.order.kept:
            self.order = self.order._replace(kept=0)
        model, kept = self.model, self.order.kept
        m = aggregate_static(self.contexts[0], model.kinds(kept), self.x_src) if kept else None
        x_src, x_dst = self._inputs(kept)
        for number in range(kept, last):
            rows = self._rows(number, m, x_dst if number else x_src)
            h, z = model.stage(self._ops(number), number, rows, self.order)
            if f"h{number}" in self._needed:
                self._h[number] = h
            m = aggregate(
                model.kind(number),
                self.contexts[number],
                z,
                weights=tuple(model.edge_weights(number).values()),
                dropout=model.edge_dropout(number),
            )
        return self._ops(last), self._rows(last, m, x_dst if last else x_src)

    def _inputs(self, kept: int) -> tuple[Rows, Rows]:
        """The inputs as stage 0 reads them, and as stage 1 reads them."""
        if kept or "x" not in self.model.reads(1):
            return (self.x_src if kept else widened(self.x_src)), self.x_src
        return branch(widened(self.x_src), self.contexts[0].num_dst)

    def _rows(self, number: int, m: Rows | None, x: Rows) -> StageRows:
        """The rows that a stage reads."""
        names = self.model.reads(number)
        if number:
            num_rows = self.contexts[number - 1].num_dst
            x = widened(x[:num_rows]) if "x" in names else x
            earlier = {int(name[1:]): self._h[int(name[1:])][:num_rows] for name in names if name != "x"}
        else:
            earlier = {}
        return StageRows(m=m, x=x, h=earlier, branch=self._branch(number))

    def _branch(self, number: int) -> Callable[[Rows], tuple[Rows, Rows]]:
        if f"h{number}" not in self._needed or number == len(self.contexts):
            return lambda rows: (rows, rows)
        return lambda rows: branch(rows, self.contexts[number].num_dst)

    def _ops(self, number: int) -> TorchOps:
        """The operations on the rows of a stage."""
        if number:
            context, node_id = self.contexts[number - 1], self.contexts[number - 1].node_id
            return TorchOps(None if node_id is None else node_id[: context.num_dst], context)
        return TorchOps(self.contexts[0].given_id, projected=self.contexts[0].cache.get(PROJECTED))


def branch(x_src: Rows, num_dst: int) -> tuple[Rows, Rows]:
    """All rows, and the first of them once more, for two readers whose gradients are added up in place."""
    if isinstance(x_src, Tensor) and x_src.requires_grad:
        return _Branch.apply(x_src, num_dst)
    return x_src, x_src[:num_dst]


class _Branch(torch.autograd.Function):
    """The gradients of the first rows are added to those of all where these are, which nobody else reads."""

    @staticmethod
    def forward(ctx: Any, x_src: Tensor, num_dst: int) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.shape = x_src.shape
        return x_src.view_as(x_src), x_src[:num_dst]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        of_all, of_first = grads
        if of_first is None:
            return of_all, None
        if of_all is None:
            of_all = of_first.new_zeros(ctx.shape)
        of_all[: of_first.shape[0]] += of_first
        return of_all, None
