"""Staged models that exchange class scores, not hidden rows: the *logits* form, for devices that can send little."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from siafu.comm.config import Precision
from siafu.context import AnyBlock
from siafu.nn.aggregates import max_in, mean_in, sum_in
from siafu.nn.config import ModelConfig
from siafu.nn.gat import Gat
from siafu.nn.gatv2 import GatV2
from siafu.nn.gnn import Gnn
from siafu.nn.layer import Layer
from siafu.nn.staged import Sends, Staged
from siafu.nn.streamed import Rows


class Logits(Staged):
    """An MLP on the inputs, then ``layers`` stages, each an MLP on the scores of a node and of its in-neighbours.

    ``z_0 = mlp_0(x)``, ``z_k = mlp_k([z_v || pool_{u in N(v)} z_u])`` (https://arxiv.org/abs/2302.13053v1). The pool
    depends on the model's kind: the mean for GCN, the maximum for GraphSAGE, the sum for GIN, attention for GAT and
    GATv2. Each MLP has one hidden layer.
    """

    def __init__(
        self, config: ModelConfig, *, in_features: int, out_features: int, precision: Precision
    ) -> None:
        super().__init__(in_features=in_features, precision=precision)
        rounds = 0 if config.kind == "mlp" else config.layers
        flat = config.model_copy(update={"kind": "mlp", "layers": 2, "jump": "none", "residual": False})
        self.first = Gnn(flat, in_features=in_features, out_features=out_features)
        self.rounds = nn.ModuleList(_Round(config, flat, out_features) for _ in range(rounds))
        self.chosen.fill_(rounds)

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        self.first.reset(generator)
        for each in self.rounds:
            assert isinstance(each, _Round)
            each.reset(generator)

    @property
    def num_stages(self) -> int:
        """The MLP on inputs, and the stages after it."""
        return len(self.rounds) + 1

    def sends(self, stage: int) -> Sends:
        """Class scores; nothing before the first stage."""
        return "logits" if stage else "nothing"

    def learned(self, stage: int) -> list[nn.Module]:
        """The MLP of the stage, and its attention if it has any."""
        return [self.rounds[stage - 1] if stage else self.first]

    def frozen(self, stage: int) -> bool:
        """True unless the stage has attention."""
        return stage == 0 or self._round(stage).attention is None

    def aggregate(self, stage: int, block: AnyBlock, x_src: Tensor) -> None:
        """Compute and cache the pooled scores."""
        if stage:
            self._round(stage).pool(block, x_src)

    def output(self, stage: int, block: AnyBlock, x_src: Tensor) -> Tensor:
        """Compute the scores of a stage."""
        return self._round(stage)(block, x_src) if stage else self.first(block, x_src)

    def passed(self, stage: int, block: AnyBlock, x_src: Tensor) -> Tensor:
        """Compute the scores of a stage."""
        return self.output(stage, block, x_src)

    def embed(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """The hidden rows of the chosen stage's MLP: (D, hidden)."""
        last = int(self.chosen)
        reading, given = self._read(block, x_src, last)
        return self._round(last).embed(reading, given) if last else self.first.embed(reading, given)

    def dense(self, stage: int, block: AnyBlock, x_src: Tensor) -> tuple[Gnn, Tensor]:
        """Return the MLP of a stage, and its input rows: (S, F) -> (D, F')."""
        if stage == 0:
            return self.first, x_src
        return self._round(stage).mlp, self._round(stage).joined(block, x_src)

    def _round(self, stage: int) -> "_Round":
        found = self.rounds[stage - 1]
        assert isinstance(found, _Round)
        return found


class _Round(nn.Module):
    """``mlp([z_v || pool z_u])``: (S, C) -> (D, C)."""

    def __init__(self, config: ModelConfig, flat: ModelConfig, classes: int) -> None:
        super().__init__()
        self.kind = config.kind
        self.attention = _attention(config, classes) if config.kind in ("gat", "gatv2") else None
        width = classes if self.attention is None else self.attention.out_features
        all_of_it = flat.model_copy(update={"input_dropout": 0.0})  # no input dropout: the scores are few
        self.mlp = Gnn(all_of_it, in_features=classes + width, out_features=classes)

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        if self.attention is not None:
            self.attention.reset(generator)
        self.mlp.reset(generator)

    def pool(self, block: AnyBlock, z_src: Tensor) -> Tensor:
        """Pool the scores of in-neighbours: (S, C) -> (D, F)."""
        if self.attention is not None:
            return functional.elu(self.attention(block, z_src))
        match self.kind:
            case "sage":
                pooled: Rows = max_in(block, z_src)
            case "gin":
                pooled = sum_in(block, z_src)
            case _:
                pooled = mean_in(block, z_src)
        assert isinstance(pooled, Tensor)
        return pooled

    def forward(self, block: AnyBlock, z_src: Tensor) -> Tensor:
        """Compute the scores of the destinations."""
        return self.mlp(block, self.joined(block, z_src))

    def embed(self, block: AnyBlock, z_src: Tensor) -> Tensor:
        """Compute the hidden rows of the MLP."""
        return self.mlp.embed(block, self.joined(block, z_src))

    def joined(self, block: AnyBlock, z_src: Tensor) -> Tensor:
        """Concatenate own and pooled scores: (S, C) -> (D, C + F)."""
        return torch.cat([z_src[: block.num_dst], self.pool(block, z_src)], 1)


def _attention(config: ModelConfig, classes: int) -> Layer:
    kind = Gat if config.kind == "gat" else GatV2
    return kind(classes, config.hidden, heads=config.heads, attention_dropout=config.attention_rate)
