"""Whole models: layers one after another, with what stands between them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from siafu.graph import Block
from siafu.native import After
from siafu.nn.aggregate import widened
from siafu.nn.dense import Dense
from siafu.nn.dropout import Dropout
from siafu.nn.gat import Gat
from siafu.nn.gatv2 import GatV2
from siafu.nn.gcn import Gcn
from siafu.nn.gin import Gin
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.norm import BatchNorm
from siafu.nn.product import finished, product
from siafu.nn.sage import Sage
from siafu.nn.streamed import Rows, Streamed

Temporal = Literal["cd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h", "gcn-gru", "mingru"]
Kind = Literal["gcn", "sage", "gat", "gatv2", "gin", "mlp", "custom", Temporal]
TEMPORAL: tuple[Temporal, ...] = get_args(Temporal)  # the kinds of siafu.nn.temporal, over graphs that change


class ModelConfig(BaseModel):
    """What a model is made of. The widths of its inputs and outputs come from the graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = "gcn"
    layers: int = Field(2, ge=1)
    hidden: int = Field(64, ge=1)
    dropout: float = Field(0.5, ge=0, lt=1)
    input_dropout: float | None = Field(None, ge=0, lt=1)  # None: as dropout
    attention_dropout: float | None = Field(None, ge=0, lt=1)  # None: as dropout
    heads: int = Field(8, ge=1)
    output_heads: int = Field(1, ge=1)
    reduce: Literal["mean", "max"] = "mean"
    norm: Literal["none", "layer", "batch"] = "none"
    residual: bool = False
    jump: Literal["none", "cat", "max"] = "none"
    band: int = Field(20, ge=1)  # of tm-gcn: how many steps are averaged
    top_k: int | None = Field(None, ge=1)  # of evolvegcn-h: rows of a summary; None: as many as hidden

    @model_validator(mode="before")
    @classmethod
    def _dropout_of_kind(cls, values: Any) -> Any:
        """Attention wants more dropout than sums do, as was found, models over time none; what is given holds."""
        if isinstance(values, dict) and values.get("kind") in ("gat", "gatv2"):
            return {"dropout": 0.6, **values}
        if isinstance(values, dict) and values.get("kind") in TEMPORAL:
            return {"dropout": 0.0, **values}
        return values


class Gnn(nn.Module):
    """Layers of one kind: ``h_l = dropout(act(norm(layer_l(h_{l-1}) + skip(h_{l-1}))))``, the last one bare.

    With ``jump`` every layer is a hidden one, and a dense layer reads all of them, side by side or by their maximum
    (https://arxiv.org/abs/1806.03536).

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        returns: (D, out_features).
    """

    def __init__(self, config: ModelConfig, *, in_features: int, out_features: int) -> None:
        super().__init__()
        self.config = config
        self.activation = "elu" if config.kind in ("gat", "gatv2") else "relu"
        jumps = config.jump != "none"
        num_hidden = config.layers if jumps else config.layers - 1
        widths = [in_features, *[config.hidden] * num_hidden, *([] if jumps else [out_features])]
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList(
            _layer(config, i, o, last=n >= num_hidden) for n, (i, o) in enumerate(pairs)
        )
        rate_in = config.dropout if config.input_dropout is None else config.input_dropout
        self.drops = nn.ModuleList(Dropout(config.dropout if n else rate_in) for n in range(num_hidden + 1))
        self.norms = nn.ModuleList(_norm(config, config.hidden) for _ in range(num_hidden))
        self.skips = nn.ModuleList(_skip(config, i, o) for i, o in pairs[:num_hidden])
        reads = config.hidden * (num_hidden if config.jump == "cat" else 1)
        self.head = Dense(reads, out_features) if jumps else None

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        for module in self.modules():
            if isinstance(module, Layer | _Widen):
                module.reset(generator)
            elif isinstance(module, nn.LayerNorm | BatchNorm):
                module.reset_parameters()

    def forward(self, block: Block | Sequence[Block], x_src: Rows) -> Tensor:
        """Scores of the destinations; of several blocks, one a layer, those of the last."""
        blocks = [block] * len(self.layers) if isinstance(block, Block) else block
        hidden = self._hidden(blocks, x_src)
        if self.head is not None:
            return self.head(blocks[-1], self.joined(hidden, blocks[-1].num_dst))
        h, drop = (hidden[-1], None) if hidden else (x_src, self.drops[0])
        return self.layer(len(hidden), blocks[-1], h, drop=drop)

    def embed(self, block: Block, x_src: Rows) -> Tensor:
        """The rows that the last layer reads: (S, in_features) -> (D, hidden)."""
        hidden = self.hidden(block, x_src)
        if not hidden:
            x_dst = widened(x_src[: block.num_dst])
            return x_dst.whole() if isinstance(x_dst, Streamed) else x_dst
        return self.joined(hidden, block.num_dst) if self.head is not None else hidden[-1]

    def hidden(self, block: Block, x_src: Rows) -> list[Tensor]:
        """The output of each hidden layer, with the dropout of the layer that reads it."""
        return self._hidden([block] * len(self.layers), x_src)

    def reads_dst(self, place: int) -> bool:
        """Whether a layer, or what follows it, reads the rows of its destinations beside their aggregate."""
        layer = self.layers[place]
        assert isinstance(layer, Layer)
        skips = place < len(self.skips) and not isinstance(self.skips[place], _Nothing)
        return layer.reads_dst or skips

    def layer(self, place: int, block: Block, x_src: Rows, *, drop: nn.Module | None) -> Tensor:
        """What one layer, and what follows it, make of rows on which ``drop`` acts first: (S, F) -> (D, F')."""
        bare = place < len(self.norms) and isinstance(self.norms[place], nn.Identity)
        if bare and isinstance(self.skips[place], _Nothing):
            return self._combined(place, block, x_src, drop, self._after(place, block))
        z_dst = self._combined(place, block, x_src, drop)
        return self.finish(place, block, z_dst, x_src[: block.num_dst])

    def finish(
        self, place: int, block: Block, z_dst: Tensor, x_dst: Rows, *, in_place: bool = True
    ) -> Tensor:
        """What follows the three steps of a layer, row by row but for batch norm.

        The last layer, where there is no ``jump``, has its bias and nothing else. ``z_dst`` may be overwritten, unless
        ``in_place`` is false.
        """
        layer = self.layers[place]
        assert isinstance(layer, Layer)
        if place == len(self.norms):
            return z_dst + layer.bias
        norm, skip = self.norms[place], self.skips[place]
        if not isinstance(skip, _Nothing):
            z_dst = z_dst + self._skipped(skip, widened(x_dst))
        after = self._after(place, block)
        if not isinstance(norm, nn.Identity):
            z_dst = z_dst + layer.bias
            z_dst = norm(z_dst, block) if isinstance(norm, BatchNorm) else norm(z_dst)
            after = after._replace(bias=None)
        return finished(z_dst, after, in_place=in_place and not layer.saves_output)

    def joined(self, hidden: list[Tensor], num_dst: int) -> Tensor:
        """What the dense layer of ``jump`` reads of the outputs of all layers."""
        hidden = [rows[:num_dst] for rows in hidden]
        return torch.cat(hidden, 1) if self.config.jump == "cat" else torch.stack(hidden).amax(0)

    def _hidden(self, blocks: Sequence[Block], x_src: Rows) -> list[Tensor]:
        outputs: list[Tensor] = []
        for place in range(len(self.norms)):
            x_src = self.layer(place, blocks[place], x_src, drop=None if place else self.drops[0])
            outputs.append(x_src)
        return outputs

    def _after(self, place: int, block: Block) -> After:
        """What follows a hidden layer that has neither norm nor skip connection."""
        layer, drop = self.layers[place], self.drops[place + 1]
        assert isinstance(layer, Layer)
        assert isinstance(drop, Dropout)
        row_id = None if block.node_id is None else block.node_id[: block.num_dst]
        return After(layer.bias, self.activation, drop.now(), row_id)

    def _combined(
        self, place: int, block: Block, x_src: Rows, drop: nn.Module | None, after: After | None = None
    ) -> Tensor:
        layer = self.layers[place]
        assert isinstance(layer, Layer)
        if drop is None:
            return layer.combine(block, x_src, after=after)
        return layer.combine(block, x_src, lambda rows: drop(rows, _ids(block, rows)), after)

    @staticmethod
    def _skipped(skip: nn.Module, x_dst: Rows) -> Tensor:
        if isinstance(skip, nn.Identity) and isinstance(x_dst, Streamed):
            return x_dst.whole()  # it is as narrow as what is learned
        return skip(x_dst)


class _Nothing(nn.Module):
    """No skip connection."""


def _ids(block: Block, rows: Rows) -> Tensor | None:
    return None if block.node_id is None else block.node_id[: rows.shape[0]]


def _layer(config: ModelConfig, in_features: int, out_features: int, *, last: bool) -> Layer:
    match config.kind:
        case "gcn":
            return Gcn(in_features, out_features)
        case "sage":
            return Sage(in_features, out_features, reduce=config.reduce)
        case "gin":
            return Gin(in_features, out_features, hidden=config.hidden)
        case "mlp":
            return Dense(in_features, out_features)
        case "gat" | "gatv2":
            return _attention(config, in_features, out_features, last=last)
        case "custom":
            raise ValueError("model.kind is custom: give your own module in Python, as model=")
        case _:
            raise ValueError(
                f"model.kind is {config.kind}, which is for graphs that change over time; for this graph set it to gcn"
            )


def _attention(config: ModelConfig, in_features: int, out_features: int, *, last: bool) -> Layer:
    kind = Gat if config.kind == "gat" else GatV2
    rate = config.dropout if config.attention_dropout is None else config.attention_dropout
    heads = config.output_heads if last else config.heads
    return kind(in_features, out_features, heads=heads, concat=not last, attention_dropout=rate)


def _norm(config: ModelConfig, width: int) -> nn.Module:
    match config.norm:
        case "layer":
            return nn.LayerNorm(width)
        case "batch":
            return BatchNorm(width)
        case "none":
            return nn.Identity()


def _skip(config: ModelConfig, in_features: int, out_features: int) -> nn.Module:
    if not config.residual:
        return _Nothing()
    return nn.Identity() if in_features == out_features else _Widen(in_features, out_features)


class _Widen(nn.Module):
    """A skip connection between different widths: ``x W``."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        glorot(self.weight, generator)

    def forward(self, x_dst: Rows) -> Tensor:
        """``x W``."""
        return product(x_dst, self.weight)
