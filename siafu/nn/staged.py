"""Models whose stages are learned one after another, with one exchange of rows between two of them.

No rank, no file, no clock. Who learns the stages, and how rows travel, is not known here.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.graph import Block
from siafu.nn.aggregates import widened
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.gnn import Gnn
from siafu.nn.layer import Layer
from siafu.nn.streamed import Rows, Streamed

Sends = Literal["nothing", "inputs", "hidden", "logits"]


class Staged(nn.Module):
    """Stages one after another (https://arxiv.org/abs/2302.13053), the output of one of which is the model's.

    A stage reads the rows that the one before it made, its own nodes' and their in-neighbours', as they travel: rounded
    to ``precision``, those of own nodes too, so that the model computes the same however its nodes are dealt out.

    Attributes:
        precision: of rows that travel.
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
        """How many stages there are."""
        raise NotImplementedError

    def sends(self, stage: int) -> Sends:
        """What of each node travels before a stage."""
        raise NotImplementedError

    def learned(self, stage: int) -> list[nn.Module]:
        """What is learned in a stage, and in no other."""
        raise NotImplementedError

    def frozen(self, stage: int) -> bool:
        """Whether what a stage reads of the graph is an aggregate that does not depend on its weights."""
        raise NotImplementedError

    def aggregate(self, stage: int, block: Block, x_src: Tensor) -> None:
        """Compute that aggregate, so that it is kept with the block, whose static rows ``x_src`` are."""
        raise NotImplementedError

    def given(self, stage: int, rows: list[Tensor]) -> Tensor:
        """What a stage reads of ``rows``: the inputs, then what each stage before it passed on."""
        return rows[stage]

    def output(self, stage: int, block: Block, x_src: Tensor) -> Tensor:
        """What a stage says of the destinations: (S, F) -> (D, out_features)."""
        raise NotImplementedError

    def passed(self, stage: int, block: Block, x_src: Tensor) -> Tensor:
        """What a stage passes on to the next one: (S, F) -> (D, F')."""
        raise NotImplementedError

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        raise NotImplementedError

    def forward(self, block: Block, x_src: Rows) -> Tensor:
        """The output of the chosen stage."""
        last = int(self.chosen)
        reading, given = self._read(block, x_src, last)
        return self.output(last, reading, given)

    def embed(self, block: Block, x_src: Rows) -> Tensor:
        """The rows of which the chosen stage makes its output: (D, F)."""
        raise NotImplementedError

    def _read(self, block: Block, x_src: Rows, last: int) -> tuple[Block, Tensor]:
        """What a stage reads, once those before it have passed on their rows."""
        if isinstance(x_src, Streamed):
            raise ValueError("a model of stages reads all inputs at once; set data.inputs to memory")
        rows = [widened(x_src)]
        for stage in range(last + 1):
            if self.sends(stage) != "nothing":
                rows[stage] = quantize_dequantize(rows[stage], self.precision)
            given = self.given(stage, rows)
            reading = block.with_static(given)
            if stage < last:
                rows.append(self.passed(stage, reading, given))
        return reading, given


class Layered(Staged):
    """The layers of an ordinary model, each a stage with a linear head of its own: the *embeddings* form.

    ``h_l = act(norm(layer_l(h_{l-1})))`` and ``out_l = h_l W_l + b_l``; the last layer gives the output itself. With
    ``jump`` every layer is such a stage, and one more reads the outputs of all.
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
        """The layers, and with ``jump`` what reads them all."""
        return len(self.inner.norms) + 1

    def sends(self, stage: int) -> Sends:
        """The inputs, then what layers made; nothing to a layer without a graph."""
        if stage == len(self.inner.layers) or isinstance(self.inner.layers[stage], Dense):
            return "nothing"
        return "hidden" if stage else "inputs"

    def learned(self, stage: int) -> list[nn.Module]:
        """A layer, what follows it, and its head."""
        inner = self.inner
        if stage < len(inner.norms):
            return [inner.layers[stage], inner.norms[stage], inner.skips[stage], self.heads[stage]]
        return [inner.layers[stage] if inner.head is None else inner.head]

    def frozen(self, stage: int) -> bool:
        """Where the layer aggregates its inputs as they are, or nothing."""
        if self.sends(stage) == "nothing":
            return True
        return self._layer(stage).kind.linear

    def aggregate(self, stage: int, block: Block, x_src: Tensor) -> None:
        """Of the layer."""
        if self.sends(stage) != "nothing":
            self._layer(stage).aggregate(block, x_src)

    def given(self, stage: int, rows: list[Tensor]) -> Tensor:
        """The rows before it; with ``jump`` the last stage reads those of all layers."""
        if stage < len(self.inner.layers):
            return rows[stage]
        return self.inner.joined(rows[1 : stage + 1])

    def output(self, stage: int, block: Block, x_src: Tensor) -> Tensor:
        """What the stage's head makes of the layer's rows, or the last layer itself."""
        if stage < len(self.inner.norms):
            return self.heads[stage](block, self.passed(stage, block, x_src))
        inner, drop = self.inner, self.inner.drop(stage)
        if inner.head is None:
            return inner.run_layer(stage, block, x_src, drop=drop)
        x_dst = drop(x_src, block.given_id)
        assert isinstance(x_dst, Tensor)
        return inner.head(block, x_dst)

    def passed(self, stage: int, block: Block, x_src: Tensor) -> Tensor:
        """The rows of the layer."""
        return self.inner.run_layer(stage, block, x_src, drop=self.inner.drop(stage))

    def embed(self, block: Block, x_src: Rows) -> Tensor:
        """The rows that the chosen stage's head reads, or its last layer: (D, hidden)."""
        last = int(self.chosen)
        reading, given = self._read(block, x_src, last)
        return self.passed(last, reading, given) if last < len(self.heads) else given[: block.num_dst]

    def _layer(self, stage: int) -> Layer:
        layer = self.inner.layers[stage]
        assert isinstance(layer, Layer)
        return layer


def parameters_of(modules: list[nn.Module]) -> Iterator[nn.Parameter]:
    """The parameters of some modules."""
    for module in modules:
        yield from module.parameters()
