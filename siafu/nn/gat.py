"""Graph attention."""

from typing import Any

import torch
from torch import nn

from siafu.nn.aggregates import Aggregate, Attention
from siafu.nn.dropout import Dropout
from siafu.nn.heads import head_width
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.ops import Ops


class Gat(Layer):
    """Graph attention (https://arxiv.org/abs/1710.10903).

    ``h_i = sum_{j in N(i) + i} alpha_ij x_j W + b`` for each head, with
    ``alpha_i = softmax_j leaky(a_src . x_j W + a_dst . x_i W)``. Heads stand side by side, or are averaged.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        project: (S, in_features) -> (S, H F + 2 H): rows, scores as a source, scores as a destination.
        returns: (D, out_features), which is H F where heads stand side by side, F where they are averaged.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        attention_dropout: float = 0.0,
        negative_slope: float = 0.2,
    ) -> None:
        super().__init__()
        width = head_width(out_features, heads=heads, concat=concat)
        self.in_features, self.out_features = in_features, out_features
        self.heads, self.concat, self.negative_slope = heads, concat, negative_slope
        self.attention_drop = Dropout(attention_dropout)
        self.weight = nn.Parameter(torch.empty(in_features, heads * width))
        self.score_src = nn.Parameter(torch.empty(heads, width))
        self.score_dst = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        for parameter in (self.weight, self.score_src, self.score_dst):
            glorot(parameter, generator)
        nn.init.zeros_(self.bias)

    @property
    def kind(self) -> Aggregate:
        """The attention-weighted sum."""
        return Attention(self.heads, self.negative_slope)

    @property
    def z_features(self) -> int:
        """The rows to sum, and two scores a head."""
        return self.weight.shape[1] + 2 * self.heads

    @property
    def edge_drop(self) -> Dropout | None:
        """The dropout of attention weights."""
        return self.attention_drop

    def projection(self, ops: Ops) -> tuple[Any, Any]:
        """``x [W | W a_src | W a_dst]``: the scores are columns of the same product."""
        scores = [ops.head_scores(self.weight, vector) for vector in (self.score_src, self.score_dst)]
        return ops.concat([self.weight, *scores]), None

    def update(self, ops: Ops, m_dst: Any, x_dst: Any) -> Any:
        """Join the heads."""
        return m_dst if self.concat or self.heads == 1 else ops.mean_of_heads(m_dst, self.heads)
