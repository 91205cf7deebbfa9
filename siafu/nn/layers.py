"""The kinds of layers: one table, a line for each."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.gat import Gat
from siafu.nn.gatv2 import GatV2
from siafu.nn.gcn import Gcn
from siafu.nn.gin import Gin
from siafu.nn.layer import Layer
from siafu.nn.sage import Sage

MakeLayer = Callable[[ModelConfig, int, int, bool], Layer]  # config, widths, whether it is the last


class LayerKind(NamedTuple):
    """A kind of layer.

    Attributes:
        make: makes a layer of given widths.
        activation: between two layers.
    """

    make: MakeLayer
    activation: str = "relu"


def _attention(kind: type[Gat] | type[GatV2]) -> MakeLayer:
    def make(config: ModelConfig, in_features: int, out_features: int, last: bool) -> Layer:
        heads = config.output_heads if last else config.heads
        return kind(
            in_features, out_features, heads=heads, concat=not last, attention_dropout=config.attention_rate
        )

    return make


LAYERS: Mapping[str, LayerKind] = {
    "gcn": LayerKind(lambda config, i, o, last: Gcn(i, o)),
    "sage": LayerKind(lambda config, i, o, last: Sage(i, o, reduce=config.reduce)),
    "gin": LayerKind(lambda config, i, o, last: Gin(i, o, hidden=config.hidden)),
    "gat": LayerKind(_attention(Gat), "elu"),
    "gatv2": LayerKind(_attention(GatV2), "elu"),
    "mlp": LayerKind(lambda config, i, o, last: Dense(i, o)),
}


def layer_kind(config: ModelConfig) -> LayerKind:
    """The kind of layer that a model is made of; refuses models that are none."""
    if config.kind == "custom":
        raise ValueError("model.kind is custom: give your own module in Python, as model=")
    if config.kind not in LAYERS:
        raise ValueError(
            f"model.kind is {config.kind}, which is not a stack of layers of one kind; here choose one of "
            f"{', '.join(LAYERS)}"
        )
    return LAYERS[config.kind]
