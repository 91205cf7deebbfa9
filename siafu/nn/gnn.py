"""``Gnn``: layers of one kind one after another, with norm, skip connection, activation and dropout between them."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from siafu.context import AnyBlock, Context, context_of
from siafu.nn.aggregates import Aggregate, aggregate_static, widened
from siafu.nn.config import ModelConfig
from siafu.nn.dense import Dense
from siafu.nn.dropout import Dropout
from siafu.nn.layer import Layer, first_generator, glorot
from siafu.nn.layers import layer_kind
from siafu.nn.model import Model, Order, StageRows, branch
from siafu.nn.norm import BatchNorm
from siafu.nn.ops import Finish, Ops, TorchOps
from siafu.nn.streamed import Rows


class Gnn(Model):
    """Layers of one kind: ``h_l = dropout(act(norm(layer_l(h_{l-1}) + skip(h_{l-1}))))``, the last one bare.

    With ``jump`` every layer is a hidden one, and a dense layer reads all of them, side by side or by their maximum
    (https://arxiv.org/abs/1806.03536). Stage l ends layer l - 1 and projects for layer l. Where the aggregate of static
    inputs is kept, their dropout acts after the aggregate instead of before it.

    Shapes:
        x_src: (S, in_features), rows ordered as in the block.
        returns: (D, out_features).
    """

    def __init__(self, config: ModelConfig, *, in_features: int, out_features: int) -> None:
        super().__init__()
        self.config, self.in_features, self.out_features = config, in_features, out_features
        make_layer, self.activation = layer_kind(config)
        jumps = config.jump != "none"
        num_hidden = config.layers if jumps else config.layers - 1
        widths = [in_features, *[config.hidden] * num_hidden, *([] if jumps else [out_features])]
        pairs = list(pairwise(widths))
        self.layers = nn.ModuleList(
            make_layer(config, i, o, n >= num_hidden) for n, (i, o) in enumerate(pairs)
        )
        self.drops = nn.ModuleList(
            Dropout(config.dropout if n else config.input_rate) for n in range(num_hidden + 1)
        )
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

    @property
    def num_aggregates(self) -> int:
        """One for each layer."""
        return len(self.layers)

    def kind(self, number: int) -> Aggregate:
        """The kind of the layer's aggregate."""
        return self.layer(number).kind

    def z_features(self, number: int, *, first: bool) -> int:
        """The layer's inputs, or projected rows."""
        layer = self.layer(number)
        return layer.in_features if first else layer.z_features

    def num_weights(self, number: int) -> int:
        """Those of the layer and of its skip connection; vectors do not count."""
        modules = [self.layer(number), *self.skips[number : number + 1]]
        return sum(each.numel() for module in modules for each in module.parameters() if each.ndim > 1)

    def edge_drop(self, number: int) -> Dropout | None:
        """The layer's dropout of edges."""
        return self.layer(number).edge_drop

    def edge_weights(self, number: int) -> dict[str, nn.Parameter]:
        """The weights of the layer that its aggregate reads."""
        return {f"layers.{number}.{name}": value for name, value in self.layer(number).edge_weights().items()}

    def reads(self, stage: int) -> tuple[str, ...]:
        """The rows given to the layer before, where its update or its skip connection reads them; for ``jump`` all."""
        if stage == 0:
            return ("x",)
        place = stage - 1
        skips = place < len(self.skips) and not isinstance(self.skips[place], _NoSkip)
        given = [f"h{place}" if place else "x"] if self.layer(place).reads_dst or skips else []
        hidden = range(1, stage) if self.head is not None and stage == len(self.layers) else ()
        return tuple(dict.fromkeys([*given, *(f"h{number}" for number in hidden)]))

    def h_features(self, stage: int) -> int:
        """The width of hidden rows."""
        return self.layer(stage).in_features

    def num_kept(self, x_src: Rows) -> int:
        """The first aggregate, where it commutes with the projection."""
        return int(self.layer(0).keeps(x_src))

    def aggregates_first(self, number: int, context: Context) -> bool:
        """The layer decides."""
        return self.layer(number).aggregates_first(context)

    def stage(self, ops: Ops, number: int, rows: StageRows, order: Order) -> tuple[Any, Any]:
        """End layer ``number - 1`` and begin layer ``number``; after the last one comes the head of ``jump``."""
        h = self._end(ops, number - 1, rows, order) if number else ops.drop(rows.x, self.drop(0))
        if number < len(self.layers):
            h_src, h_dst = rows.branch(h)
            return h_dst, h_src if order.first[number] else self.layer(number).project(ops, h_src)
        if self.head is not None:
            hidden = self._joined(ops, [*(rows.h[place] for place in range(1, number)), h])
            h = ops.add(self.head.join(ops, hidden, None), self.head.bias)
        return h, h

    @property
    def embedding_stage(self) -> int:
        """The last but one, whose rows the last layer reads; with ``jump`` the last."""
        return len(self.layers) - (self.head is None)

    def embedding(self, ops: Ops, rows: StageRows, order: Order) -> Any:
        """The rows that the last layer, or the head of ``jump``, reads."""
        number = self.embedding_stage
        h = self._end(ops, number - 1, rows, order) if number else rows.x
        if self.head is None:
            return h
        return self._joined(ops, [*(rows.h[place] for place in range(1, number)), h])

    def joined(self, hidden: list[Tensor]) -> Tensor:
        """The rows that the head of ``jump`` reads, of the outputs of all layers."""
        return self._joined(TorchOps(None), hidden)

    def run_layer(self, place: int, block: AnyBlock, x_src: Rows, *, drop: Dropout | None) -> Tensor:
        """Run one layer, and what follows it, on rows on which ``drop`` acts first: (S, F) -> (D, F')."""
        context = context_of(block)
        layer, node_id = self.layer(place), context.node_id
        ops = TorchOps(None if node_id is None else node_id[: context.num_dst], context)
        if x_src is context.static_src and layer.keeps(x_src):
            m: Rows = aggregate_static(context, (layer.kind,), x_src)
            x_dst = read = widened(x_src[: context.num_dst])
            if drop is not None:
                m, read = ops.drop(m, drop), ops.drop(x_dst, drop) if layer.reads_dst else x_dst
            return self._finish(ops, place, (m, read, x_dst), joined=True)
        given = TorchOps(context.given_id)
        x_src, x_dst = branch(widened(x_src), context.num_dst)
        first = layer.aggregates_first(context)
        h_src = x_src if drop is None else given.drop(x_src, drop)
        read = ops.drop(x_dst, drop) if drop is not None and layer.reads_dst else x_dst
        m = layer.aggregate(context, h_src if first else layer.project(given, h_src))
        return self._finish(ops, place, (m, read, x_dst), joined=first)

    def layer(self, place: int) -> Layer:
        """One of the layers."""
        layer = self.layers[place]
        assert isinstance(layer, Layer)
        return layer

    def _end(self, ops: Ops, place: int, rows: StageRows, order: Order) -> Any:
        """End a layer whose aggregate is there."""
        layer, kept = self.layer(place), place == 0 and order.kept > 0
        m = ops.drop(rows.m, self.drop(0)) if kept else rows.m
        x_dst = rows.h.get(place) if place else rows.x
        read = ops.drop(x_dst, self.drop(0)) if place == 0 and layer.reads_dst else x_dst
        return self._finish(ops, place, (m, read, x_dst), joined=kept or order.first[place])

    def _finish(self, ops: Ops, place: int, rows: tuple[Any, Any, Any], *, joined: bool) -> Any:
        """End a layer by its aggregate, the rows that its update reads, and those that its skip connection reads.

        The last layer, where there is no ``jump``, has its bias and nothing else.
        """
        layer, (m, read, x_dst) = self.layer(place), rows
        last = place == len(self.norms)
        norm = None if last or isinstance(self.norms[place], nn.Identity) else self.norms[place]
        skip = None if last or isinstance(self.skips[place], _NoSkip) else self.skips[place]
        finish = None if last else Finish(layer.bias, self.activation, self.drop(place + 1))
        if joined and norm is None and skip is None:
            z = layer.join(ops, m, read, finish)
            return ops.add(z, layer.bias) if last else z
        z = layer.join(ops, m, read) if joined else layer.update(ops, m, read)
        if last:
            return ops.add(z, layer.bias)
        assert finish is not None
        in_place = joined or not layer.kind.saves_output
        if skip is not None:
            z = ops.add(z, skip.apply_to(ops, x_dst) if isinstance(skip, _Widen) else x_dst)
        if norm is not None:
            z, finish, in_place = ops.norm(ops.add(z, layer.bias), norm), finish._replace(bias=None), True
        return ops.finish(z, finish, in_place=in_place or skip is not None)

    def _joined(self, ops: Ops, hidden: list[Any]) -> Any:
        return ops.concat(hidden) if self.config.jump == "cat" else ops.maximum(hidden)

    def drop(self, place: int) -> Dropout:
        """The dropout of the inputs, or of the rows of hidden layer ``place - 1``."""
        drop = self.drops[place]
        assert isinstance(drop, Dropout)
        return drop


class _NoSkip(nn.Module):
    """No skip connection."""


class _Widen(nn.Module):
    """A skip connection between different widths: ``x W``."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        glorot(self.weight, generator)

    def apply_to(self, ops: Ops, x_dst: Any) -> Any:
        """``x W``."""
        return ops.linear([(x_dst, self.weight)])


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
        return _NoSkip()
    return nn.Identity() if in_features == out_features else _Widen(in_features, out_features)
