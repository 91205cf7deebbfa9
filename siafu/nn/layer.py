"""The three steps every layer has; only the middle one touches the graph. No rank, no file, no clock."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from siafu.graph import Block
from siafu.native import After
from siafu.nn.aggregate import widened
from siafu.nn.product import finished
from siafu.nn.streamed import Rows

Drop = Callable[[Rows], Rows]


def no_drop(rows: Rows) -> Rows:
    """The dropout that drops nothing."""
    return rows


class Layer(nn.Module):
    """One layer: project rows, aggregate them over a block, update the destinations.

    Where the aggregate is linear it may change places with project, and does where that makes the aggregated rows
    narrower (unless the block forbids it) or leaves far fewer rows to project, or where the rows are the block's static
    inputs, whose aggregate is kept.
    Where others hold the block's halo, S below is the number of rows given: those of the destinations.

    Shapes:
        project: (S, in_features) -> (S, Z)
        aggregate: block, (S, Z) -> (D, Z)
        update: (D, Z), (D, in_features) -> (D, out_features), without the bias
        forward: block, (S, in_features) -> (D, out_features)
    """

    linear: ClassVar[bool] = True
    reads_dst: ClassVar[bool] = False  # update reads x_dst
    reads_whole: ClassVar[bool] = (
        False  # where edges were drawn, aggregate reads what is known of the whole graph
    )
    saves_output: ClassVar[bool] = (
        False  # the backward pass reads what combine returned, so nobody may overwrite it
    )
    in_features: int
    out_features: int
    bias: nn.Parameter

    @property
    def z_features(self) -> int:
        """Z, the width that project gives."""
        return self.out_features

    def project(self, x_src: Rows) -> Tensor:
        """Tensor work on sources, row by row."""
        raise NotImplementedError

    def aggregate(self, block: Block, z_src: Rows) -> Rows:
        """Graph work."""
        raise NotImplementedError

    def project_on(self, block: Block, x_src: Rows) -> Tensor:
        """Project the rows that a block reads, or take what is known of that."""
        return self.project(x_src)

    def update(self, m_dst: Tensor, x_dst: Rows) -> Tensor:
        """Tensor work on destinations, row by row."""
        return m_dst

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        raise NotImplementedError

    def join(self, m_dst: Rows, x_dst: Rows, after: After | None = None) -> Tensor:
        """Project and update rows that are aggregated: two times (D, in_features) -> (D, out_features)."""
        return _followed(self.update(self.project(m_dst), x_dst), self, after)

    def combine(self, block: Block, x_src: Rows, drop: Drop = no_drop, after: After | None = None) -> Tensor:
        """All three steps without the bias, with ``drop`` on the rows that enter, and then what follows ``after``.

        Where the kept aggregate of static inputs is used, ``drop`` acts after the aggregate instead of before it.
        """
        if self.linear and x_src is block.static_src:
            x_dst = x_src[: block.num_dst]
            m_dst = drop(self.aggregate(block, x_src))
            return self.join(m_dst, drop(widened(x_dst)) if self.reads_dst else x_dst, after)
        x_src, x_dst = _twice(drop(widened(x_src)), block.num_dst)
        if self.aggregates_first(block):
            return self.join(self.aggregate(block, x_src), x_dst, after)
        z_dst = self.aggregate(block, self.project_on(block, x_src))
        assert isinstance(z_dst, Tensor)
        return _followed(self.update(z_dst, x_dst), self, after)

    def aggregates_first(self, block: Block) -> bool:
        """Whether rows are aggregated before they are projected.

        That may be where the aggregate is linear, and is where aggregated rows are narrower so, or far fewer rows are
        projected.
        """
        if not self.linear:
            return False
        few = 2 * block.num_dst < block.num_given
        return few or self.in_features < self.z_features or not block.narrow

    def keeps(self, x_src: Rows) -> bool:
        """Whether the aggregate of static rows can be kept, so that a pass begins with it."""
        return self.linear

    def forward(self, block: Block, x_src: Tensor) -> Tensor:
        """One layer with its bias and without an activation."""
        return self.combine(block, x_src) + self.bias


def _followed(z_dst: Tensor, layer: Layer, after: After | None) -> Tensor:
    return z_dst if after is None else finished(z_dst, after, in_place=not layer.saves_output)


def _twice(x_src: Rows, num_dst: int) -> tuple[Rows, Rows]:
    """All rows, and the first of them once more."""
    if isinstance(x_src, Tensor) and x_src.requires_grad:
        return _Twice.apply(x_src, num_dst)
    return x_src, x_src[:num_dst]


class _Twice(torch.autograd.Function):
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


def glorot(parameter: Tensor, generator: torch.Generator) -> None:
    """Fill (in, out) uniformly in +-sqrt(6 / (in + out))."""
    bound = (6.0 / (parameter.shape[-2] + parameter.shape[-1])) ** 0.5
    with torch.no_grad():
        parameter.uniform_(-bound, bound, generator=generator)


def first_generator() -> torch.Generator:
    """What a layer made without a model draws its first parameters from: always the same."""
    return torch.Generator().manual_seed(0)
