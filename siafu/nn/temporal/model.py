"""Temporal models: layers over segments of time, one after another. They know no rank, no file, no clock."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from siafu.nn.config import ModelConfig
from siafu.nn.temporal.evolve import EvolveGcnH, EvolveGcnO
from siafu.nn.temporal.layer import Span, State, TemporalLayer
from siafu.nn.temporal.mingru import MinGru
from siafu.nn.temporal.recurrent import CdGcn, GcnGru
from siafu.nn.temporal.temporal_comm import TemporalComm, single_rank
from siafu.nn.temporal.tmgcn import TmGcn


class TemporalModel(nn.Module):
    """Temporal layers, one after another. The state is an argument and a result; none is hidden.

    Time may be processed in one segment or in several: outputs and gradients are the same if the state is passed on.

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

    def begin(self, num_nodes: int, comm: TemporalComm = single_rank) -> State:
        """The state before the first step: the tensors of all layers, one after another."""
        return [each for layer in self.temporal_layers for each in layer.begin(num_nodes, comm)]

    def aggregate_inputs(
        self, span: Span, state: State, comm: TemporalComm = single_rank
    ) -> tuple[Tensor, State]:
        """Compute ``span.m``, the first layer's aggregated inputs; they depend on no weights, so once is enough.

        The state is that of inputs before this segment, as :meth:`begin` and this function return it.
        """
        (first, *_), count = self.temporal_layers, len(self.temporal_layers[0].state_names)
        with torch.no_grad():
            m, carried = first.aggregate_inputs(span, state[:count], comm)
        return m, [*carried, *state[count:]]

    def forward(self, span: Span, state: State, comm: TemporalComm = single_rank) -> tuple[Tensor, State]:
        """The outputs of the own steps, and the state after the segment."""
        after: State = []
        for layer in self.temporal_layers:
            carried, state = state[: len(layer.state_names)], state[len(layer.state_names) :]
            span, carried = layer(span._replace(full_outputs=layer is self.layers[-1]), carried, comm)
            after += carried
        assert isinstance(span.x, Tensor)
        return span.x, after

    @property
    def temporal_layers(self) -> list[TemporalLayer]:
        """The layers, typed."""
        return [layer for layer in self.layers if isinstance(layer, TemporalLayer)]


def build_temporal(config: ModelConfig, *, in_features: int) -> TemporalModel:
    """Build the model of a config; its outputs are ``hidden`` wide, for a head."""
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
