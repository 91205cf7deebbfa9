"""Graph attention whose score looks at both rows together."""

import torch
from torch import Tensor, nn

from siafu.graph import Block
from siafu.nn.attend import attend_v2
from siafu.nn.dropout import Dropout
from siafu.nn.heads import head_width, join_heads
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.product import PROJECTED, known_product, product
from siafu.nn.streamed import Rows


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

    linear = False
    saves_output = True  # the aggregate's backward reads its output

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

    def project(self, x_src: Rows) -> Tensor:
        """``x [W_src | W_dst] + [c_src | c_dst]``."""
        return product(x_src, *self._weights())

    def project_on(self, block: Block, x_src: Rows) -> Tensor:
        """The same, or what was projected before, see :func:`siafu.nn.product.known_product`."""
        return known_product(block.memo.get(PROJECTED), x_src, *self._weights())

    def _weights(self) -> tuple[Tensor, Tensor]:
        weight = torch.cat([self.weight_src, self.weight_dst], 1)
        return weight, torch.cat([self.bias_src, self.bias_dst])

    def aggregate(self, block: Block, z_src: Rows) -> Rows:
        """The attention-weighted sum."""
        assert isinstance(z_src, Tensor)
        return attend_v2(
            block, z_src, self.vector, slope=self.negative_slope, dropout=self.attention_drop.now()
        )

    def update(self, m_dst: Tensor, x_dst: Rows) -> Tensor:
        """Join the heads."""
        return m_dst if self.concat else join_heads(m_dst, self.heads)
