"""Graph attention whose score looks at both rows together."""

from typing import Any

import torch
from torch import nn

from siafu.nn.aggregates import Aggregate, AttentionV2
from siafu.nn.dropout import Dropout
from siafu.nn.heads import head_width
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.ops import Ops


class GatV2(Layer):
    """Dynamic graph attention (https://arxiv.org/abs/2105.14491).

    ``h_i = sum_{j in N(i) + i} alpha_ij (x_j W_src + c_src) + b`` for each head, with
    ``alpha_i = softmax_j a . leaky(x_j W_src + c_src + x_i W_dst + c_dst)``. Heads stand side by side, or are
    averaged.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        project: (S, in_features) -> (S, 2 H F): rows as a source, rows as a destination.
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
        self.weight_src = nn.Parameter(torch.empty(in_features, heads * width))
        self.weight_dst = nn.Parameter(torch.empty(in_features, heads * width))
        self.bias_src = nn.Parameter(torch.empty(heads * width))
        self.bias_dst = nn.Parameter(torch.empty(heads * width))
        self.vector = nn.Parameter(torch.empty(heads, width))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        for parameter in (self.weight_src, self.weight_dst, self.vector):
            glorot(parameter, generator)
        for parameter in (self.bias_src, self.bias_dst, self.bias):
            nn.init.zeros_(parameter)

    @property
    def kind(self) -> Aggregate:
        """The attention-weighted sum."""
        return AttentionV2(self.heads, self.negative_slope)

    @property
    def z_features(self) -> int:
        """Rows as a source beside rows as a destination."""
        return 2 * self.weight_src.shape[1]

    @property
    def edge_drop(self) -> Dropout | None:
        """The dropout of attention weights."""
        return self.attention_drop

    def edge_weights(self) -> dict[str, nn.Parameter]:
        """The vector of the scores."""
        return {"vector": self.vector}

    def projection(self, ops: Ops) -> tuple[Any, Any]:
        """``x [W_src | W_dst] + [c_src | c_dst]``."""
        weight = ops.concat([self.weight_src, self.weight_dst])
        return weight, ops.concat([self.bias_src, self.bias_dst])

    def update(self, ops: Ops, m_dst: Any, x_dst: Any) -> Any:
        """Join the heads."""
        return m_dst if self.concat or self.heads == 1 else ops.mean_of_heads(m_dst, self.heads)
