"""Graph attention."""

import torch
from torch import Tensor, nn

from siafu.graph import Block
from siafu.nn.attend import attend
from siafu.nn.dropout import Dropout
from siafu.nn.heads import head_width, join_heads
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.product import PROJECTED, known_product, product
from siafu.nn.streamed import Rows


class Gat(Layer):
    """Graph attention (https://arxiv.org/abs/1710.10903).

    ``h_i = sum_{j in N(i) + i} alpha_ij x_j W + b`` for each head, with
    ``alpha_i = softmax_j leaky(a_src . x_j W + a_dst . x_i W)``. Heads stand side by side, or are averaged.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        project: (S, in_features) -> (S, H F + 2 H): rows, scores as a source, scores as a destination.
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

    def project(self, x_src: Rows) -> Tensor:
        """``x [W | W a_src | W a_dst]``: the scores are columns of the same product."""
        return product(x_src, self._weights())

    def project_on(self, block: Block, x_src: Rows) -> Tensor:
        """The same, or what was projected before, see :func:`siafu.nn.product.known_product`."""
        return known_product(block.memo.get(PROJECTED), x_src, self._weights())

    def _weights(self) -> Tensor:
        by_head = self.weight.view(self.in_features, self.heads, -1)
        scores = [(by_head * vector).sum(2) for vector in (self.score_src, self.score_dst)]
        return torch.cat([self.weight, *scores], 1)

    def aggregate(self, block: Block, z_src: Rows) -> Rows:
        """The attention-weighted sum."""
        assert isinstance(z_src, Tensor)
        dropout = self.attention_drop.now()
        return attend(block, z_src, heads=self.heads, slope=self.negative_slope, dropout=dropout)

    def update(self, m_dst: Tensor, x_dst: Rows) -> Tensor:
        """Join the heads."""
        return m_dst if self.concat else join_heads(m_dst, self.heads)
