"""Models over graphs that change: layers over time, one after another. They know no rank, no file, no clock."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from siafu.nn.config import ModelConfig
from siafu.nn.temporal.evolve import EvolveGcnH, EvolveGcnO
from siafu.nn.temporal.layer import Span, State, TemporalLayer
from siafu.nn.temporal.mingru import MinGru
from siafu.nn.temporal.recurrent import CdGcn, GcnGru
from siafu.nn.temporal.temporal_comm import Turn, alone
from siafu.nn.temporal.tmgcn import TmGcn


class TemporalModel(nn.Module):
    """Layers over time, one after another. The state is handed in and out; none is hidden.

    Time may be passed in one block or in several: outputs and gradients are the same where the state is handed on.

    Shapes:
        span.x: (own steps, N, in_features); returns (own steps, N, out_features).
    """

    def __init__(self, layers: list[TemporalLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.out_features = layers[-1].out_features

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        for layer in self.temporal_layers:
            layer.reset(generator)

    def begin(self, num_nodes: int, turn: Turn = alone) -> State:
        """The state before the first step: the tensors of all layers, one after another."""
        return [each for layer in self.temporal_layers for each in layer.begin(num_nodes, turn)]

    def aggregated(self, span: Span, state: State, turn: Turn = alone) -> tuple[Tensor, State]:
        """What may be given as ``span.m``: it depends on the inputs alone, and so is made once.

        State is that of inputs before this block, as :meth:`begin` and this function return it.
        """
        (first, *_), count = self.temporal_layers, len(self.temporal_layers[0].carried)
        with torch.no_grad():
            m, carried = first.aggregated(span, state[:count], turn)
        return m, [*carried, *state[count:]]

    def forward(self, span: Span, state: State, turn: Turn = alone) -> tuple[Tensor, State]:
        """The outputs of the own steps, and the state after the block."""
        after: State = []
        for layer in self.temporal_layers:
            carried, state = state[: len(layer.carried)], state[len(layer.carried) :]
            span, carried = layer(span._replace(last=layer is self.layers[-1]), carried, turn)
            after += carried
        assert isinstance(span.x, Tensor)
        return span.x, after

    @property
    def temporal_layers(self) -> list[TemporalLayer]:
        """Its layers, by type."""
        return [layer for layer in self.layers if isinstance(layer, TemporalLayer)]


def build_temporal(config: ModelConfig, *, in_features: int) -> TemporalModel:
    """The model of a configuration; its outputs are ``hidden`` wide, and heads read them."""
    if config.dropout:
        raise ValueError(f"model.dropout is {config.dropout}, but {config.kind} has no dropout; set it to 0")
    widths = [in_features, *[config.hidden] * config.layers]
    return TemporalModel([_layer(config, i, o) for i, o in pairwise(widths)])


def _layer(config: ModelConfig, in_features: int, out_features: int) -> TemporalLayer:
    match config.kind:
        case "cd-gcn":
            return CdGcn(in_features, out_features)
        case "gcn-gru":
            return GcnGru(in_features, out_features)
        case "mingru":
            return MinGru(in_features, out_features)
        case "tm-gcn":
            return TmGcn(in_features, out_features, band=config.band)
        case "evolvegcn-o":
            return EvolveGcnO(in_features, out_features)
        case "evolvegcn-h":
            return EvolveGcnH(in_features, out_features, top_k=config.top_k)
        case _:
            raise ValueError(
                f"model.kind is {config.kind}, which has no part along time; set it to evolvegcn-o"
            )
