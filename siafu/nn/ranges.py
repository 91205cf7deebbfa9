"""The aggregates of layers over a block and their gradients, by ranges of rows and without a graph of gradients.

Rows lie in arrays that are filled and read range by range. What is computed is what :mod:`siafu.nn.aggregate` and
:mod:`siafu.nn.attend` compute, in the same order.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block
from siafu.native import AttendBackward, AttendV2Backward, Attention, Csr, Edges
from siafu.nn.aggregate import Scales, edge_weights, gcn_scales, mean_scales, sum_scales
from siafu.nn.dense import Dense
from siafu.nn.gat import Gat
from siafu.nn.gatv2 import GatV2
from siafu.nn.gcn import Gcn
from siafu.nn.gin import Gin
from siafu.nn.layer import Layer
from siafu.nn.sage import Sage

Room = Callable[[int, int], Tensor]  # makes an array to be filled, of so many rows and columns


class Ranged:
    """The aggregate of one layer.

    Attributes:
        z_src: (S, Z), what is aggregated, own rows before the halo's; to be filled.
        m_dst: (D, M), what comes of it.
        grad_dst: (D, M), the gradients of that; to be filled.
        grad_src: (S, Z), the gradients of ``z_src``.
        sent: how many of the first columns are read of halo rows.
        collects: whether the gradients of destinations are added up once those of sources are known
            (:meth:`collect`).
    """

    collects: ClassVar[bool] = False

    def __init__(self, block: Block, room: Room, *, z_features: int, m_features: int) -> None:
        self.block, self.sent = block, z_features
        self.z_src = room(block.num_src, z_features)
        self.m_dst = room(block.num_dst, m_features)
        self.grad_dst = room(block.num_dst, m_features)
        self.grad_src = room(block.num_src, z_features)

    def use(self, dropout: native.Dropout, vector: Tensor | None) -> None:
        """From now on drop these edges, and weigh with this vector of the layer's, where it does so."""

    def filled(self, rows: slice) -> None:
        """Take note that some rows of ``z_src`` are new."""

    def forward(self, rows: slice) -> None:
        """Aggregate for some destinations."""
        raise NotImplementedError

    def grad_filled(self, rows: slice, *, again: bool) -> dict[str, Tensor]:
        """Take note that some rows of ``grad_dst`` are new; returns gradients of the layer's own weights.

        ``again`` says that sources may have changed since these destinations were aggregated.
        """
        return {}

    def backward(self, rows: slice) -> None:
        """The gradients of some sources."""
        raise NotImplementedError

    def collect(self, rows: slice) -> None:
        """Add up what gradients of sources left for some destinations."""


class RangedSum(Ranged):
    """Sums, means and GCN's normalised sum."""

    def __init__(self, block: Block, room: Room, by: Scales, *, z_features: int) -> None:
        super().__init__(block, room, z_features=z_features, m_features=z_features)
        self._by, dtype = by, self.z_src.dtype
        self._weight = edge_weights(block, dtype, transposed=False)
        self._turned_weight = edge_weights(block, dtype, transposed=True)

    def forward(self, rows: slice) -> None:
        """Own columns first, then the halo's: as :class:`siafu.nn.aggregate._Sum` adds them."""
        block, by, own = self.block, self._by, self.block.num_dst
        ends = None if block.others is None else block.own_end
        native.spmm(
            block.csr,
            self.z_src[:own],
            weight=self._weight,
            pre=by.pre_of(slice(own)),
            post=by.post,
            loop=by.loop,
            ends=ends,
            out=self.m_dst,
            rows=rows,
        )
        if block.others is not None:
            native.spmm(
                Csr(block.own_end, block.indices),
                self.z_src[own:],
                weight=self._weight,
                pre=by.pre_of(slice(own, block.num_src)),
                post=by.post,
                ends=block.indptr[1:],
                first_src=own,
                add_to=self.m_dst,
                rows=rows,
            )

    def backward(self, rows: slice) -> None:
        """The same sum over the transposed block, with the scales exchanged."""
        by = self._by
        native.spmm(
            self.block.turned,
            self.grad_dst,
            weight=self._turned_weight,
            pre=by.post,
            post=by.pre,
            loop=by.loop,
            out=self.grad_src,
            rows=rows,
        )


class RangedMax(Ranged):
    """The maximum."""

    def __init__(self, block: Block, room: Room, *, z_features: int) -> None:
        super().__init__(block, room, z_features=z_features, m_features=z_features)
        self._source = torch.empty(block.num_dst, z_features, dtype=torch.int32)

    def forward(self, rows: slice) -> None:
        """The maximum, and where it was found."""
        into = (self.m_dst, self._source)
        native.segment_max(self.block.csr, self.z_src, node_id=self.block.node_id, into=into, rows=rows)

    def backward(self, rows: slice) -> None:
        """Each gradient goes to the source that gave the maximum."""
        native.segment_max_backward(
            self.block.turned, self.grad_dst, self._source, out=self.grad_src, rows=rows
        )


class RangedAttention(Ranged):
    """GAT's aggregate."""

    collects = True

    def __init__(self, block: Block, room: Room, layer: Gat) -> None:
        width = layer.weight.shape[1]
        super().__init__(block, room, z_features=width + 2 * layer.heads, m_features=width)
        dtype = self.z_src.dtype
        self.sent = width + layer.heads
        self.z_src[block.num_dst :, self.sent :] = 0
        self._how = Attention(layer.heads, layer.negative_slope, node_id=block.node_id)
        self._scores = torch.zeros(block.num_src, 2 * layer.heads, dtype=dtype)
        self._softmax = torch.empty(block.num_dst, 2, layer.heads, dtype=dtype)
        self._back: AttendBackward | None = None

    def use(self, dropout: native.Dropout, vector: Tensor | None) -> None:
        """Drop these edges."""
        self._how = self._how._replace(dropout=dropout)

    def filled(self, rows: slice) -> None:
        """Keep scores together, where edges read them at random."""
        self._scores[rows] = self.z_src[rows, self.m_dst.shape[1] :]

    def forward(self, rows: slice) -> None:
        """The attention-weighted sum."""
        into = (self.m_dst, self._softmax)
        native.attend(self.block.csr, self.z_src, self._how, scores=self._scores, into=into, rows=rows)

    def grad_filled(self, rows: slice, *, again: bool) -> dict[str, Tensor]:
        """What edges need to know of their destinations."""
        if again:
            self.forward(rows)
        self._steps.by_destination(rows)
        return {}

    def backward(self, rows: slice) -> None:
        """All but the gradients of scores as destinations."""
        self._steps.by_source(rows)

    def collect(self, rows: slice) -> None:
        """The gradients of scores as destinations."""
        self._steps.add_by_destination(rows)

    @property
    def _steps(self) -> AttendBackward:
        if self._back is None:
            edges = Edges(self.block.csr, self.block.transposed)
            saved = (self.m_dst, self._softmax)
            self._back = AttendBackward(edges, self.z_src, saved, self._how, scores=self._scores)
            self._back.grad_src, self._back.grad_dst = self.grad_src, self.grad_dst
        self._back.how = self._how
        return self._back


class RangedAttentionV2(Ranged):
    """GATv2's aggregate."""

    def __init__(self, block: Block, room: Room, layer: GatV2) -> None:
        width = layer.weight_src.shape[1]
        super().__init__(block, room, z_features=2 * width, m_features=width)
        dtype = self.z_src.dtype
        self.sent, self._vector = width, layer.vector.detach()
        self.z_src[block.num_dst :, width:] = 0
        self._how = Attention(layer.heads, layer.negative_slope, node_id=block.node_id)
        self._softmax = torch.empty(block.num_dst, 2, layer.heads, dtype=dtype)
        self._back: AttendV2Backward | None = None

    def use(self, dropout: native.Dropout, vector: Tensor | None) -> None:
        """Drop these edges, and weigh with this vector."""
        assert vector is not None
        self._how, self._vector = self._how._replace(dropout=dropout), vector

    def forward(self, rows: slice) -> None:
        """The attention-weighted sum."""
        into = (self.m_dst, self._softmax)
        native.attend_v2(self.block.csr, self.z_src, self._vector, self._how, into=into, rows=rows)

    def grad_filled(self, rows: slice, *, again: bool) -> dict[str, Tensor]:
        """The gradients of rows as destinations, and of the vector."""
        if again:
            self.forward(rows)
        return {"vector": self._steps.by_destination(self._vector, rows)}

    def backward(self, rows: slice) -> None:
        """The gradients of rows as sources."""
        self._steps.by_source(self._vector, rows)

    @property
    def _steps(self) -> AttendV2Backward:
        if self._back is None:
            edges = Edges(self.block.csr, self.block.transposed)
            self._back = AttendV2Backward(edges, self.z_src, (self.m_dst, self._softmax), self._how)
            self._back.grad_src, self._back.grad_dst = self.grad_src, self.grad_dst
        self._back.how = self._how
        return self._back


class RangedSame(Ranged):
    """No aggregate: a row's own."""

    def __init__(self, block: Block, room: Room, *, z_features: int) -> None:
        super().__init__(block, room, z_features=z_features, m_features=z_features)
        self.sent = 0

    def forward(self, rows: slice) -> None:
        """The same rows."""
        self.m_dst[rows] = self.z_src[rows]

    def backward(self, rows: slice) -> None:
        """The same gradients."""
        self.grad_src[rows] = self.grad_dst[rows]


def ranged(layer: Layer, block: Block, room: Room, *, first: bool) -> Ranged:
    """The aggregate of a layer; ``first`` says that it comes before the projection. Collective."""
    width, dtype = layer.in_features if first else layer.z_features, layer.bias.dtype
    match layer:
        case Gcn():
            return RangedSum(block, room, gcn_scales(block, dtype), z_features=width)
        case Gin():
            return RangedSum(block, room, sum_scales(block, dtype), z_features=width)
        case Sage(reduce="mean"):
            return RangedSum(block, room, mean_scales(block, dtype), z_features=width)
        case Sage():
            return RangedMax(block, room, z_features=width)
        case Gat():
            return RangedAttention(block, room, layer)
        case GatV2():
            return RangedAttentionV2(block, room, layer)
        case Dense():
            return RangedSame(block, room, z_features=width)
    raise TypeError(f"{type(layer).__name__} has no aggregate by ranges")
