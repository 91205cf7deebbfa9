"""Simple graph convolution: several hops with nothing between them, then one linear layer."""

from typing import Any

import torch

from siafu.nn.aggregates import GCN_SUM, Aggregate
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.dropout import Dropout
from siafu.nn.model import Model, Order, StageRows
from siafu.nn.ops import Ops
from siafu.nn.streamed import Rows


class Sgc(Model):
    """SGC (https://arxiv.org/abs/1902.07153): ``S^K x W + b``, S GCN's normalised sum, K ``model.layers``.

    All hops of static inputs are computed once and kept; what is trained is a linear layer.

    Shapes:
        x_src: (N, in_features), rows ordered as in the block.
        returns: (N, out_features).
    """

    def __init__(self, config: ModelConfig, in_features: int, out_features: int) -> None:
        super().__init__()
        self.config, self.in_features, self.out_features = config, in_features, out_features
        self.drop = Dropout(config.input_rate)
        self.head = Dense(in_features, out_features)

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        self.head.reset(generator)

    @property
    def num_aggregates(self) -> int:
        """K."""
        return self.config.layers

    def kind(self, number: int) -> Aggregate:
        """The normalised sum."""
        return GCN_SUM

    def z_features(self, number: int, *, first: bool) -> int:
        """The width of the inputs."""
        return self.in_features

    def num_kept(self, x_src: Rows) -> int:
        """All of them."""
        return self.num_aggregates

    def stage(self, ops: Ops, number: int, rows: StageRows, order: Order) -> tuple[Any, Any]:
        """Pass rows on from hop to hop; the last stage is the linear layer."""
        if number < self.num_aggregates:
            h = rows.m if number else rows.x
        else:
            h = ops.add(self.head.join(ops, ops.drop(rows.m, self.drop), None), self.head.bias)
        return h, h

    @property
    def embedding_stage(self) -> int:
        """The last one."""
        return self.num_aggregates

    def embedding(self, ops: Ops, rows: StageRows, order: Order) -> Any:
        """The inputs after all hops."""
        return rows.m
