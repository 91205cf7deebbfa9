"""Context: a block, and what differs by where a layer runs over it. It knows no rank, no file and no clock."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block
from siafu.native import Csr, SparseRows

# How halo rows travel: never rounded; rounded if the run says so; the same with error feedback, as gradients follow.
ExchangeMode = Literal["exact", "inference", "training"]


class HaloExchange(Protocol):
    """The halo exchange of one part of a graph: halo rows come from their owners, and their gradients return.

    Collective: every part makes the same calls in the same order. An exchange is under way until the returned function
    is called, so that other work overlaps with it.
    """

    @property
    def has_halo(self) -> bool:
        """Whether a layer is given the rows of destinations alone; if not, it is given those of all sources."""

    def begin(self, label: str) -> None:
        """Begin a pass over the model; its exchanges are counted under ``label``."""

    def start_gather(self, x_own: Tensor, mode: ExchangeMode) -> Callable[[], Tensor]:
        """Start to gather the halo rows from their owners: (D, F) -> (S - D, F)."""

    def gather_sparse(self, x_own: SparseRows) -> SparseRows:
        """Gather the halo rows of static sparse rows, D x F -> (S - D) x F."""

    def start_reduce(self, grad_halo: Tensor) -> Callable[[Tensor], None]:
        """Start to send gradients of halo rows to their owners, (S - D, F).

        The returned function adds the received ones to the gradients of own rows, (D, F).
        """

    def all_reduce(self, values: Tensor, *, label: str = "moments") -> Tensor:
        """Sum over all parts, the same on each."""

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore it."""


class NoExchange:
    """The exchange on one rank, or over a sampled block: the rows of all sources are given, and nothing travels."""

    has_halo = False

    def begin(self, label: str) -> None:
        """Do nothing."""

    def start_gather(self, x_own: Tensor, mode: ExchangeMode) -> Callable[[], Tensor]:
        """Gather nothing: (S, F) -> (0, F)."""
        return lambda: x_own[:0]

    def gather_sparse(self, x_own: SparseRows) -> SparseRows:
        """Gather nothing: S x F -> 0 x F."""
        return x_own[:0]

    def start_reduce(self, grad_halo: Tensor) -> Callable[[Tensor], None]:
        """Add nothing."""
        return lambda grad_own: None

    def all_reduce(self, values: Tensor, *, label: str = "moments") -> Tensor:
        """Return the values, which are the sum."""
        return values

    def state(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Do nothing."""


NO_EXCHANGE = NoExchange()


@dataclass(frozen=True, eq=False)
class Context:
    """The execution context of layers over one block. Layers and models take it wherever they take a block.

    Attributes:
        block: the graph's part. With a halo, the columns of each of its rows ascend.
        exchange: the exchange of halo rows, those of the sources that are no destinations.
        static_src: (num_given, F), input rows that never change, so that their aggregate is kept: a tensor, or rows on
            disk; or None.
        cache: aggregates of ``static_src``, and scales that were computed with the help of other parts.
        narrow: whether a linear layer may project first, where that makes the aggregated rows narrower.
        spill: makes an array of zeros on disk, (rows, width) float32, for arrays as large as the edges; None: they lie
            in memory.
    """

    block: Block
    exchange: HaloExchange = NO_EXCHANGE
    static_src: Any = None
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    narrow: bool = True
    spill: Callable[[int, int], Tensor] | None = None

    @property
    def num_dst(self) -> int:
        """D, the number of destinations."""
        return self.block.num_dst

    @property
    def num_src(self) -> int:
        """S, the number of sources."""
        return self.block.num_src

    @property
    def num_edges(self) -> int:
        """E, the number of edges."""
        return self.block.num_edges

    @property
    def indptr(self) -> Tensor:
        """(D + 1,) int64, the block's offsets, for modules that read edges themselves."""
        return self.block.indptr

    @property
    def indices(self) -> Tensor:
        """(E,) int32, the block's in-neighbours."""
        return self.block.indices

    @property
    def edge_weight(self) -> Tensor | None:
        """(E,) float, the block's weights, or None where every edge weighs 1."""
        return self.block.edge_weight

    @property
    def row_edge(self) -> Tensor:
        """(E,) int32, the destination of each edge."""
        return self.block.row_edge

    @property
    def in_degree(self) -> Tensor:
        """(D,) float64, the number of in-edges, or the sum of their weights."""
        return self.block.in_degree

    @property
    def node_id(self) -> Tensor | None:
        """(S,) int64, the user's own row number of each source, or None where it is the row number."""
        return self.block.node_id

    @property
    def has_halo(self) -> bool:
        """Whether other parts hold the rows of the sources that are no destinations."""
        return self.exchange.has_halo

    @property
    def num_given(self) -> int:
        """The number of rows that a layer is given: those of destinations if there is a halo, else of all sources."""
        return self.num_dst if self.has_halo else self.num_src

    @property
    def given_id(self) -> Tensor | None:
        """(num_given,) int64, the user's own row numbers of the given rows, or None."""
        return None if self.node_id is None else self.node_id[: self.num_given]

    @cached_property
    def turned(self) -> Csr:
        """The block's transpose for sums (:attr:`siafu.graph.Block.turned`), on disk if there is ``spill``."""
        block = self.block
        if self.spill is None or block.edge_weight is not None:
            return block.turned
        room = self.spill(block.num_edges, 1).view(torch.int32)[:, 0]
        return native.transpose(block.csr, num_cols=block.num_src, indices=room)

    def with_static(self, x_src: Any) -> "Context":
        """The same context, in which ``x_src`` never changes."""
        return replace(self, static_src=x_src, cache={})

    def keep(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """The result of ``compute`` when ``key`` was asked for first."""
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]


AnyBlock = Block | Context


def context_of(block: AnyBlock) -> Context:
    """The context itself, or one without exchange, whose results are kept with the block: all follow from it."""
    return block if isinstance(block, Context) else Context(block, cache=block.cache)
