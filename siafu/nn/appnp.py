"""APPNP: predict by an MLP, then propagate the predictions by personalised PageRank."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn

from siafu.nn.aggregates import GCN_SUM, Aggregate
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.dropout import Dropout
from siafu.nn.model import Model, Order, StageRows
from siafu.nn.ops import Finish, Ops


class Appnp(Model):
    """APPNP (https://arxiv.org/abs/1810.05997): ``z_0 = mlp(x)``, ``z_k = (1 - a) S z_{k-1} + a z_0``.

    S is GCN's normalised sum, a ``model.teleport``; there are ``model.hops`` hops. The MLP has ``model.layers`` layers.

    Shapes:
        x_src: (N, in_features), rows ordered as in the block.
        returns: (N, out_features).
    """

    def __init__(self, config: ModelConfig, in_features: int, out_features: int) -> None:
        super().__init__()
        self.config, self.in_features, self.out_features = config, in_features, out_features
        widths = [in_features, *[config.hidden] * (config.layers - 1), out_features]
        self.dense = nn.ModuleList(Dense(i, o) for i, o in pairwise(widths))
        self.drops = nn.ModuleList(
            Dropout(config.dropout if n else config.input_rate) for n in range(config.layers)
        )

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        for layer in self.dense:
            assert isinstance(layer, Dense)
            layer.reset(generator)

    @property
    def num_aggregates(self) -> int:
        """The number of hops."""
        return self.config.hops

    def kind(self, number: int) -> Aggregate:
        """The normalised sum."""
        return GCN_SUM

    def z_features(self, number: int, *, first: bool) -> int:
        """The number of outputs."""
        return self.out_features

    def reads(self, stage: int) -> tuple[str, ...]:
        """The predictions of the MLP, in every hop."""
        return ("h0",) if stage else ("x",)

    def h_features(self, stage: int) -> int:
        """The number of outputs."""
        return self.out_features

    def stage(self, ops: Ops, number: int, rows: StageRows, order: Order) -> tuple[Any, Any]:
        """The MLP, then one hop after the other."""
        if number:
            h = ops.mix(rows.m, rows.h[0], self.config.teleport)
            return h, h
        last = self._dense(len(self.dense) - 1)
        h = ops.add(last.join(ops, self._hidden(ops, rows.x), None), last.bias)
        h_src, h_dst = rows.branch(h)
        return h_dst, h_src

    @property
    def embedding_stage(self) -> int:
        """The MLP."""
        return 0

    def embedding(self, ops: Ops, rows: StageRows, order: Order) -> Any:
        """The rows that the last layer of the MLP reads."""
        return self._hidden(ops, rows.x)

    def _hidden(self, ops: Ops, x: Any) -> Any:
        """The MLP without its last layer."""
        h = ops.drop(x, self._drop(0))
        for place in range(len(self.dense) - 1):
            layer = self._dense(place)
            h = layer.join(ops, h, None, Finish(layer.bias, "relu", self._drop(place + 1)))
        return h

    def _dense(self, place: int) -> Dense:
        layer = self.dense[place]
        assert isinstance(layer, Dense)
        return layer

    def _drop(self, place: int) -> Dropout:
        drop = self.drops[place]
        assert isinstance(drop, Dropout)
        return drop
