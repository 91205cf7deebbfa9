"""Models that are trained stage by stage, with one exchange of rows before each stage.

No rank, no file, no clock: training and the exchange of rows are elsewhere (``siafu.methods.lazy``).
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.context import AnyBlock, Context
from siafu.nn.aggregates import widened
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.gnn import Gnn
from siafu.nn.layer import Layer
from siafu.nn.streamed import Rows, Streamed, in_memory

Sends = Literal["nothing", "inputs", "hidden", "logits"]


class Staged(nn.Module):
    """A sequence of stages (https://arxiv.org/abs/2302.13053); the model's output is that of the chosen stage.

    A stage reads the rows that the previous one computed, of nodes and their in-neighbours. They are rounded to
    ``precision``, also where they stay on their rank, so that the output does not depend on the partition.

    Attributes:
        precision: the precision of rows between stages.
        in_features: the width of the inputs.
        chosen: () int64, the stage whose output is the model's; a buffer, and so part of the weights.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        returns: (D, out_features).
    """

    chosen: Tensor

    def __init__(self, *, in_features: int, precision: Precision) -> None:
        super().__init__()
        self.in_features, self.precision = in_features, precision
        self.register_buffer("chosen", torch.tensor(0))

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        raise NotImplementedError

    def sends(self, stage: int) -> Sends:
        """The kind of rows that are exchanged before a stage."""
        raise NotImplementedError

    def learned(self, stage: int) -> list[nn.Module]:
        """The modules that are trained in a stage, and in no other."""
        raise NotImplementedError

    def frozen(self, stage: int) -> bool:
        """Return whether the aggregate of a stage does not depend on the weights that it trains."""
        raise NotImplementedError

    def aggregate(self, stage: int, block: AnyBlock, x_src: Tensor) -> None:
        """Compute that aggregate and cache it with the context, whose static rows are ``x_src``."""
        raise NotImplementedError

    def given(self, stage: int, rows: list[Tensor]) -> Tensor:
        """Select the input rows of a stage from ``rows``: the inputs, then the output rows of each earlier stage."""
        return rows[stage]

    def output(self, stage: int, block: AnyBlock, x_src: Tensor) -> Tensor:
        """Compute the output of a stage for the destinations: (S, F) -> (D, out_features)."""
        raise NotImplementedError

    def passed(self, stage: int, block: AnyBlock, x_src: Tensor) -> Tensor:
        """Compute the rows that the next stage reads: (S, F) -> (D, F')."""
        raise NotImplementedError

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        raise NotImplementedError

    def forward(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """Compute the output of the chosen stage."""
        last = int(self.chosen)
        reading, given = self._read(block, x_src, last)
        return self.output(last, reading, given)

    def embed(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """Compute the rows from which the chosen stage computes its output: (D, F)."""
        raise NotImplementedError

    def _read(self, block: AnyBlock, x_src: Rows, last: int) -> tuple[Context, Tensor]:
        """Compute the inputs of stage ``last`` by running all stages before it."""
        if isinstance(x_src, Streamed):
            raise ValueError("a model of stages reads all inputs at once; set data.inputs to memory")
        rows = [widened(in_memory(x_src))]
        for stage in range(last + 1):
            if self.sends(stage) != "nothing":
                rows[stage] = quantize_dequantize(rows[stage], self.precision)
            given = self.given(stage, rows)
            reading = block.with_static(given)
            if stage < last:
                rows.append(self.passed(stage, reading, given))
        return reading, given


class Layered(Staged):
    """An ordinary model whose layers are stages, each with a linear head of its own: the *embeddings* form.

    ``h_l = act(norm(layer_l(h_{l-1})))`` and ``out_l = h_l W_l + b_l``; the last layer computes the output itself. With
    ``jump`` every layer has a head, and one more stage reads the outputs of all layers.
    """

    def __init__(
        self, config: ModelConfig, *, in_features: int, out_features: int, precision: Precision
    ) -> None:
        super().__init__(in_features=in_features, precision=precision)
        self.inner = Gnn(config, in_features=in_features, out_features=out_features)
        self.heads = nn.ModuleList(Dense(config.hidden, out_features) for _ in self.inner.norms)
        self.chosen.fill_(self.num_stages - 1)

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        self.inner.reset(generator)
        for head in self.heads:
            assert isinstance(head, Layer)
            head.reset(generator)

    @property
    def num_stages(self) -> int:
        """One per layer, and with ``jump`` one more that reads the outputs of all layers."""
        return len(self.inner.norms) + 1

    def sends(self, stage: int) -> Sends:
        """The inputs, then hidden rows; nothing before a stage that does not aggregate."""
        if stage == len(self.inner.layers) or isinstance(self.inner.layers[stage], Dense):
            return "nothing"
        return "hidden" if stage else "inputs"

    def learned(self, stage: int) -> list[nn.Module]:
        """A layer, its norm and skip connection, and its head."""
        inner = self.inner
        if stage < len(inner.norms):
            return [inner.layers[stage], inner.norms[stage], inner.skips[stage], self.heads[stage]]
        return [inner.layers[stage] if inner.head is None else inner.head]

    def frozen(self, stage: int) -> bool:
        """True if the layer aggregates its inputs unchanged, or does not aggregate."""
        if self.sends(stage) == "nothing":
            return True
        layer = self._layer(stage)
        return layer.kind.linear or layer.always_first

    def aggregate(self, stage: int, block: AnyBlock, x_src: Tensor) -> None:
        """Compute and cache the aggregate of the stage's layer."""
        if self.sends(stage) != "nothing":
            self._layer(stage).aggregate(block, x_src)

    def given(self, stage: int, rows: list[Tensor]) -> Tensor:
        """The rows of the previous stage; with ``jump`` the last stage reads those of all layers."""
        if stage < len(self.inner.layers):
            return rows[stage]
        return self.inner.joined(rows[1 : stage + 1])

    def output(self, stage: int, block: AnyBlock, x_src: Tensor) -> Tensor:
        """The output of the stage's head, or of the last layer itself."""
        if stage < len(self.inner.norms):
            return self.heads[stage](block, self.passed(stage, block, x_src))
        inner, drop = self.inner, self.inner.drop(stage)
        if inner.head is None:
            return inner.run_layer(stage, block, x_src, drop=drop)
        x_dst = drop(x_src, block.given_id)
        assert isinstance(x_dst, Tensor)
        return inner.head(block, x_dst)

    def passed(self, stage: int, block: AnyBlock, x_src: Tensor) -> Tensor:
        """The output rows of the stage's layer."""
        return self.inner.run_layer(stage, block, x_src, drop=self.inner.drop(stage))

    def embed(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """The rows that the chosen stage's head or last layer reads: (D, hidden)."""
        last = int(self.chosen)
        reading, given = self._read(block, x_src, last)
        return self.passed(last, reading, given) if last < len(self.heads) else given[: block.num_dst]

    def _layer(self, stage: int) -> Layer:
        layer = self.inner.layers[stage]
        assert isinstance(layer, Layer)
        return layer


def parameters_of(modules: list[nn.Module]) -> Iterator[nn.Parameter]:
    """Yield the parameters of several modules."""
    for module in modules:
        yield from module.parameters()
