"""GCNII: deep graph convolution with initial residual and identity mapping."""

from math import log
from typing import Any

import torch
from torch import nn

from siafu.nn.aggregates import GCN_SUM, Aggregate
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.dropout import Dropout
from siafu.nn.model import Model, Order, StageRows
from siafu.nn.ops import Finish, Ops


class Gcn2(Model):
    """GCNII (https://arxiv.org/abs/2007.02133), between a dense layer that encodes and one that decodes.

    ``h_0 = relu(x W + b)``, ``s_l = (1 - a) S h_{l-1} + a h_0``, ``h_l = relu((1 - c_l) s_l + c_l s_l W_l)`` with
    ``c_l = ln(1 + e / l)``. S is GCN's normalised sum, a ``model.teleport``, e ``model.identity``.

    Shapes:
        x_src: (N, in_features), rows ordered as in the block.
        W_l: (hidden, hidden).
        returns: (N, out_features).
    """

    def __init__(self, config: ModelConfig, in_features: int, out_features: int) -> None:
        super().__init__()
        self.config, self.in_features, self.out_features = config, in_features, out_features
        self.encoder = Dense(in_features, config.hidden)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(config.hidden, config.hidden)) for _ in range(config.layers)
        )
        self.decoder = Dense(config.hidden, out_features)
        rates = [config.input_rate, *[config.dropout] * (config.layers + 1)]
        self.drops = nn.ModuleList(Dropout(rate) for rate in rates)

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        self.encoder.reset(generator)
        bound = self.config.hidden**-0.5
        with torch.no_grad():
            for weight in self.weights:
                weight.uniform_(-bound, bound, generator=generator)
        self.decoder.reset(generator)

    @property
    def num_aggregates(self) -> int:
        """One for each layer."""
        return self.config.layers

    def kind(self, number: int) -> Aggregate:
        """The normalised sum."""
        return GCN_SUM

    def z_features(self, number: int, *, first: bool) -> int:
        """The width of hidden rows."""
        return self.config.hidden

    def reads(self, stage: int) -> tuple[str, ...]:
        """The encoded inputs, in every layer."""
        return ("h0",) if stage else ("x",)

    def h_features(self, stage: int) -> int:
        """The width of hidden rows."""
        return self.config.hidden

    def dense_layers(self) -> list[nn.Module]:
        """The encoder and the decoder."""
        return [self.encoder, self.decoder]

    def stage(self, ops: Ops, number: int, rows: StageRows, order: Order) -> tuple[Any, Any]:
        """The encoder, then one layer after the other, the decoder after the last."""
        if number == 0:
            h = self.encoder.join(
                ops, ops.drop(rows.x, self._drop(0)), None, Finish(self.encoder.bias, "relu")
            )
            h_src, h_dst = rows.branch(h)
            return h_dst, ops.drop(h_src, self._drop(1))
        h = self._layer(ops, number, rows)
        if number == self.num_aggregates:
            h = ops.add(self.decoder.join(ops, h, None), self.decoder.bias)
        return h, h

    @property
    def embedding_stage(self) -> int:
        """The last one."""
        return self.num_aggregates

    def embedding(self, ops: Ops, rows: StageRows, order: Order) -> Any:
        """The rows that the decoder reads."""
        return self._layer(ops, self.num_aggregates, rows)

    def _layer(self, ops: Ops, number: int, rows: StageRows) -> Any:
        """The end of layer ``number``, from 1, with the dropout of what reads it."""
        s = ops.mix(rows.m, rows.h[0], self.config.teleport)
        h = ops.mix(s, ops.linear([(s, self.weights[number - 1])]), log(1 + self.config.identity / number))
        return ops.finish(h, Finish(None, "relu", self._drop(number + 1)))

    def _drop(self, place: int) -> Dropout:
        drop = self.drops[place]
        assert isinstance(drop, Dropout)
        return drop
