"""Link prediction heads: scores of pairs of nodes from the embeddings of both. No rank, no file, no clock."""

from typing import Literal

import torch
from torch import Tensor, nn

from siafu.context import AnyBlock
from siafu.native import Factors
from siafu.nn.config import ModelConfig
from siafu.nn.embedded import Embedded
from siafu.nn.gnn import Gnn
from siafu.nn.layer import first_generator, glorot
from siafu.nn.pairs import score_pairs
from siafu.nn.streamed import Rows

HeadKind = Literal["mlp", "dot"]
# Initial log-odds of a pair with a memory against one without, and their growth with log(1 + s).
_INITIAL_MEMORY_WEIGHTS = (4.0, 2.0)


class LinkHead(nn.Module):
    """Scores pairs of nodes: one number a pair, or one for each of C classes. Scores factorise over the two ends.

    - ``mlp``: ``relu(P h_u + Q h_v + b + R f(s)) . w + r . f(s) + c``
    - ``dot``: ``(P h_u) . (P h_v) + q . h_u + q . h_v + r . f(s) + c``, which is symmetric

    ``s`` is the memory of the pair, K numbers such as its recency and frequency as
    an edge. ``f(s) = (1, log(1 + s), s / (1 + s))`` if any of them is not 0, and 0 if all are, so that pairs without a
    memory need only factors. With a memory, the initial ranking is that of its first column (nearly so for ``dot``).

    Shapes:
        h: (N, in_features).
        factors: h -> a_src (N, D), b_dst (N, D).
        pairs: factors, src (P,), dst (P,), recency (P, K) or None -> (P,), or (P, C) with classes.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        *,
        kind: HeadKind = "mlp",
        memory_columns: int = 0,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        if kind == "dot" and classes is not None:
            raise ValueError(
                "link.head is dot, which gives one number a pair; set it to mlp to tell classes apart"
            )
        self.kind, self.memory_columns, self.classes = kind, memory_columns, classes
        outputs = 1 if classes is None else classes
        self.source = nn.Parameter(torch.empty(in_features, hidden))
        if kind == "mlp":
            self.target = nn.Parameter(torch.empty(in_features, hidden))
            self.hidden_bias = nn.Parameter(torch.empty(hidden))
            self.weight = nn.Parameter(torch.empty(hidden, outputs))
            self.seen_hidden = nn.Parameter(torch.empty(_num_memory_features(memory_columns), hidden))
        else:
            self.popular = nn.Parameter(torch.empty(in_features))
        self.seen = nn.Parameter(torch.empty(_num_memory_features(memory_columns), outputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        glorot(self.source, generator)
        with torch.no_grad():
            self.bias.zero_()
            self.seen.zero_()
            if self.kind == "mlp":
                glorot(self.target, generator)
                glorot(self.weight, generator)
                self.hidden_bias.zero_()
                self.seen_hidden.zero_()
            else:
                self.popular.zero_()
            if self.memory_columns and self.classes is None:
                self._start_from_memory()

    def _start_from_memory(self) -> None:
        """Rank by the first column of the memory alone at first; the effect of embeddings is learned from there."""
        self.seen[: len(_INITIAL_MEMORY_WEIGHTS), 0] = self.seen.new_tensor(_INITIAL_MEMORY_WEIGHTS)
        if self.kind == "mlp":
            self.weight.zero_()
        else:
            self.source.mul_(0.01)

    def factors(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of each node as source and as target of a pair: (N, in_features) -> 2 x (N, D)."""
        a_src = h @ self.source
        if self.kind == "mlp":
            return a_src + self.hidden_bias, h @ self.target
        popular, one = (h @ self.popular)[:, None], h.new_ones(h.shape[0], 1)
        return torch.cat([a_src, popular, one], 1), torch.cat([a_src, one, popular], 1)

    def forward(self, h: Tensor, src: Tensor, dst: Tensor, recency: Tensor | None = None) -> Tensor:
        """The scores of some pairs, whose ends are rows of ``h``."""
        return self.pairs(*self.factors(h), src, dst, recency)

    def pairs(
        self, a_src: Tensor, b_dst: Tensor, src: Tensor, dst: Tensor, recency: Tensor | None = None
    ) -> Tensor:
        """The scores of some pairs, given their factors; see the class."""
        if self.classes is not None or a_src.dtype != torch.float32:
            return self._score_dense(a_src, b_dst, src, dst, recency)
        weight = self.weight[:, 0] if self.kind == "mlp" else None
        if recency is None or not self.memory_columns:
            return score_pairs(a_src, b_dst, weight, src, dst) + self.bias
        has_memory = (recency > 0).any(1)
        with_memory, without = has_memory.nonzero()[:, 0], (~has_memory).nonzero()[:, 0]
        dense = self._score_dense(a_src, b_dst, src[with_memory], dst[with_memory], recency[with_memory])
        others = score_pairs(a_src, b_dst, weight, src[without], dst[without]) + self.bias
        return torch.cat([dense, others])[torch.cat([with_memory, without]).argsort()]

    def _score_dense(
        self, a_src: Tensor, b_dst: Tensor, src: Tensor, dst: Tensor, recency: Tensor | None
    ) -> Tensor:
        """The same in plain torch, which materialises the hidden rows of all pairs: (P, D)."""
        a, b = a_src.index_select(0, src), b_dst.index_select(0, dst)
        seen = None if recency is None or not self.memory_columns else _memory_features(recency).to(a.dtype)
        if self.kind == "mlp":
            z = a + b if seen is None else a + b + seen @ self.seen_hidden
            out = z.relu() @ self.weight
        else:
            out = (a * b).sum(1, keepdim=True)
        out = out + self.bias if seen is None else out + self.bias + seen @ self.seen
        return out if self.classes is not None else out[:, 0]

    def pair_factors(self, h: Tensor) -> Factors:
        """The factors that score all pairs without a memory, up to the constant ``bias``; not for classes."""
        assert self.classes is None
        return Factors(*self.factors(h), self.weight[:, 0] if self.kind == "mlp" else None)


class LinkModel(Gnn):
    """A GNN whose output is an embedding of each node, and the head that scores pairs of embeddings.

    Shapes:
        x_src: (S, in_features).
        returns: (D, out_features), the embeddings, which :attr:`link` reads.
    """

    def __init__(
        self, config: ModelConfig, *, in_features: int, out_features: int, kind: HeadKind, hidden: int
    ) -> None:
        super().__init__(config, in_features=in_features, out_features=out_features)
        self.link = LinkHead(out_features, hidden, kind=kind)

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters, in a fixed order."""
        super().reset(generator)
        self.link.reset(generator)

    def embed(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """The embeddings of nodes: (S, in_features) -> (D, out_features)."""
        return self(block, x_src)


def get_link_head(model: nn.Module) -> LinkHead:
    """The head of a link model, with or without features."""
    inner = model.inner if isinstance(model, Embedded) else model
    assert isinstance(inner, LinkModel)
    return inner.link


def build_link_model(
    config: ModelConfig, *, in_features: int, num_nodes: int, kind: HeadKind, hidden: int
) -> LinkModel | Embedded:
    """Build a link model with embeddings of width ``hidden``; see :func:`siafu.nn.embedded.build_on_features`."""
    widths = {"out_features": config.hidden, "hidden": hidden}
    if in_features:
        return LinkModel(config, in_features=in_features, kind=kind, **widths)
    if config.input_dropout is None:
        config = config.model_copy(update={"input_dropout": 0.0})
    inner = LinkModel(config, in_features=config.hidden, kind=kind, **widths)
    return Embedded(inner, num_nodes=num_nodes)


def _memory_features(recency: Tensor) -> Tensor:
    """The features of a memory that the head reads: (P, K) -> (P, 2 K + 1)."""
    s = recency.float()
    any_contact = (s > 0).any(1, keepdim=True).float()
    return torch.cat([any_contact, s.log1p(), s / (1 + s)], 1)


def _num_memory_features(memory_columns: int) -> int:
    return 2 * memory_columns + 1 if memory_columns else 0
