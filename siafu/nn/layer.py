"""``Layer``: three steps, of which only the middle one touches the graph. It knows no rank, no file, no clock."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from siafu.context import AnyBlock, Context, context_of
from siafu.nn.aggregates import Aggregate, aggregate, widened
from siafu.nn.dropout import Dropout
from siafu.nn.ops import Finish, Ops, TorchOps
from siafu.nn.streamed import Rows


class Layer(nn.Module):
    """One layer: project rows, aggregate them over a block, update the destinations.

    Project and update are row by row and written over :class:`siafu.nn.ops.Ops`; the aggregate is one of
    :mod:`siafu.nn.aggregates`. A linear aggregate may come before the projection. It does so where that makes the
    aggregated rows narrower (unless the context forbids it), where it leaves far fewer rows to project, and where the
    rows are the context's static inputs, whose aggregate is kept. Where other ranks hold the halo, S below is the
    number of own rows.

    Shapes:
        project: (S, in_features) -> (S, Z)
        aggregate: block, (S, Z) -> (D, Z)
        update: (D, Z), (D, in_features) -> (D, out_features), without the bias
        join: (D, in_features), (D, in_features) -> (D, out_features): project an aggregate, then update
        forward: block, (S, in_features) -> (D, out_features)
    """

    reads_dst: ClassVar[bool] = False  # update reads the destinations' own rows
    in_features: int
    out_features: int
    bias: nn.Parameter

    @property
    def kind(self) -> Aggregate:
        """The kind of its aggregate."""
        raise NotImplementedError

    @property
    def z_features(self) -> int:
        """Z, the width of projected rows."""
        return self.out_features

    @property
    def edge_drop(self) -> Dropout | None:
        """The dropout of edges, or None."""
        return None

    def edge_weights(self) -> dict[str, nn.Parameter]:
        """The weights that the aggregate reads, by name."""
        return {}

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        raise NotImplementedError

    def projection(self, ops: Ops) -> tuple[Any, Any]:
        """The weight and the bias of the projection: (in_features, Z), and (Z,) or None."""
        raise NotImplementedError

    def project(self, ops: Ops, x_src: Any) -> Any:
        """Project rows."""
        weight, bias = self.projection(ops)
        return ops.project(x_src, weight, bias)

    def update(self, ops: Ops, m_dst: Any, x_dst: Any) -> Any:
        """Update the destinations by the aggregate of projected rows."""
        return m_dst

    def join(self, ops: Ops, m_dst: Any, x_dst: Any, finish: Finish | None = None) -> Any:
        """Project the aggregate of rows as they are, and update, and finish."""
        weight, bias = self.projection(ops)
        return ops.linear([(m_dst, weight)], add=bias, finish=finish)

    def aggregate(self, block: AnyBlock, z_src: Rows) -> Rows:
        """Aggregate rows over a block."""
        drop = self.edge_drop
        return aggregate(
            self.kind,
            block,
            z_src,
            weights=tuple(self.edge_weights().values()),
            dropout=None if drop is None else drop.now(),
        )

    @property
    def always_first(self) -> bool:
        """True if the aggregate always comes before the projection."""
        return False

    def aggregates_first(self, context: Context) -> bool:
        """Say whether rows are aggregated before they are projected."""
        if self.always_first or not self.kind.linear:
            return self.always_first
        few = 2 * context.num_dst < context.num_given
        return few or self.in_features < self.z_features or not context.narrow

    def keeps(self, x_src: Rows) -> bool:
        """Say whether the aggregate of static rows can be kept, so that a pass begins with it."""
        return self.kind.linear or (self.always_first and isinstance(x_src, Tensor))

    def forward(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """One layer with its bias and without an activation."""
        context = context_of(block)
        x_src = x_src if x_src is context.static_src else widened(x_src)
        x_dst = widened(x_src[: context.num_dst])
        given, own = TorchOps(context.given_id), TorchOps(context.given_id, context)
        if self.aggregates_first(context) or (x_src is context.static_src and self.keeps(x_src)):
            return self.join(own, self.aggregate(context, x_src), x_dst) + self.bias
        z_dst = self.aggregate(context, self.project(given, widened(x_src)))
        return self.update(own, z_dst, x_dst) + self.bias


def glorot(parameter: Tensor, generator: torch.Generator) -> None:
    """Fill (in, out) uniformly in +-sqrt(6 / (in + out))."""
    bound = (6.0 / (parameter.shape[-2] + parameter.shape[-1])) ** 0.5
    with torch.no_grad():
        parameter.uniform_(-bound, bound, generator=generator)


def first_generator() -> torch.Generator:
    """The generator of a layer made without a model: always the same."""
    return torch.Generator().manual_seed(0)
