"""Models of nodes without features."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from siafu.context import AnyBlock
from siafu.nn.config import ModelConfig
from siafu.nn.kinds import build_model
from siafu.nn.model import Model
from siafu.nn.streamed import Rows


class Embedded(nn.Module):
    """A model that reads a learned row for each node, for graphs without features.

    It knows the nodes it was trained on and no others.

    Shapes:
        x_src: (S, 0); the rows are found by the block's ids.
        returns: (D, out_features).
    """

    def __init__(self, inner: Model, *, num_nodes: int) -> None:
        super().__init__()
        self.inner = inner
        self.rows = nn.Parameter(torch.empty(num_nodes, inner.config.hidden))

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        with torch.no_grad():
            self.rows.normal_(0, self.rows.shape[1] ** -0.5, generator=generator)
        self.inner.reset(generator)

    def forward(self, block: AnyBlock | Sequence[AnyBlock], x_src: Rows) -> Tensor:
        """Scores of the destinations; of several blocks, one a layer, those of the last."""
        return self.inner(block, self._rows_src(block if isinstance(block, AnyBlock) else block[0]))

    def embed(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """The rows that the last layer reads: (D, hidden)."""
        return self.inner.embed(block, self._rows_src(block))

    def _rows_src(self, block: AnyBlock) -> Tensor:
        if block.given_id is not None:
            return self.rows.index_select(0, block.given_id)
        return self.rows[: block.num_given]


def model_of(model: Model | Embedded) -> Model:
    """The model that reads rows, without the rows that are learned."""
    return model.inner if isinstance(model, Embedded) else model


def build_on_features(
    config: ModelConfig, *, in_features: int, out_features: int, num_nodes: int
) -> Model | Embedded:
    """The model that fits a graph's features; where it has none, one that learns a row for each of its nodes."""
    if in_features:
        return build_model(config, in_features=in_features, out_features=out_features)
    if config.input_dropout is None:
        config = config.model_copy(update={"input_dropout": 0.0})  # what is learned is not dropped unasked
    inner = build_model(config, in_features=config.hidden, out_features=out_features)
    return Embedded(inner, num_nodes=num_nodes)
