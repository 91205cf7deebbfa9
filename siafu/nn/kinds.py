"""The kinds of models for graphs that do not change: stacks of one kind of layer, and those of this table."""

from collections.abc import Callable, Mapping

from siafu.nn.appnp import Appnp
from siafu.nn.config import TEMPORAL, ModelConfig
from siafu.nn.gcn2 import Gcn2
from siafu.nn.gnn import Gnn
from siafu.nn.model import Model
from siafu.nn.sgc import Sgc

MODELS: Mapping[str, Callable[[ModelConfig, int, int], Model]] = {"appnp": Appnp, "sgc": Sgc, "gcn2": Gcn2}


def build_model(config: ModelConfig, *, in_features: int, out_features: int) -> Model:
    """Build a model of any kind for graphs that do not change."""
    if config.kind in TEMPORAL:
        raise ValueError(
            f"model.kind is {config.kind}, which is for graphs that change over time; for this graph set it to gcn"
        )
    if config.kind in MODELS:
        _check_options(config)
        return MODELS[config.kind](config, in_features, out_features)
    return Gnn(config, in_features=in_features, out_features=out_features)


def _check_options(config: ModelConfig) -> None:
    """Refuse options of stacks of layers, which other models do not have."""
    for name, default in (("norm", "none"), ("residual", False), ("jump", "none")):
        value = getattr(config, name)
        if value != default:
            raise ValueError(
                f"model.{name} is {value}, but {config.kind} has no such option; leave it at {str(default).lower()}"
            )
