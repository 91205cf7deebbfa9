"""The attention aggregates: GAT's and GATv2's softmax over in-edges, and the sum of rows that it weighs.

Each destination has exactly one edge from itself: those in the CSR are skipped and one is added. Nothing of
the size of edges x features is ever held; the backward pass holds one or two numbers an edge and head. The
plain torch twins are in ``siafu.native.attention_reference``.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

import siafu.native as native
from siafu.native import attention_reference as reference
from siafu.native.reference import Dropout

if TYPE_CHECKING:
    from siafu.native import Csr

MAX_HEADS = 512


class Attention(NamedTuple):
    """How edges are weighed, beside the rows.

    Attributes:
        heads: H, at most ``MAX_HEADS``.
        slope: of the leaky ReLU below zero, 0 or more.
        dropout: of the weights, keyed by (key, id of the destination, id of the source, head).
        node_id: (S,) int64, the ids of the sources, of which the first are the destinations; None: the row.
    """

    heads: int
    slope: float = 0.2
    dropout: Dropout = Dropout()
    node_id: Tensor | None = None


class Edges(NamedTuple):
    """The edges of a block, both ways.

    Attributes:
        csr: by destination.
        transposed: by source, with ``origin``.
    """

    csr: "Csr"
    transposed: "Csr"


def attend(
    csr: "Csr",
    z_src: Tensor,
    how: Attention,
    *,
    scores: Tensor | None = None,
    into: tuple[Tensor, Tensor] | None = None,
    rows: slice | None = None,
) -> tuple[Tensor, Tensor]:
    """GAT's aggregate, (S, H F + 2 H) -> (D, H F), and the softmax's maximum and inverse sum, (D, 2, H).

    The columns of ``z_src`` are the row to sum, then a node's H scores as a source, then as a destination; ``scores``
    (S, 2 H) are the latter once more, where somebody has them. ``into`` is filled and returned; with ``rows`` nothing
    is done to any other.
    """
    if native._core is None:
        found = reference.attend(csr, z_src, how)
        return found if into is None else _both_filled(into, found, rows)
    z_src = _rows(z_src)
    num_dst, width = csr.indptr.numel() - 1, z_src.shape[1] - 2 * how.heads
    into = _attended(num_dst, width, z_src, how) if into is None else into
    native._core.attend(
        *(csr.indptr, csr.indices, z_src[:, :width], *_scores(z_src, how, scores), _args(how, width)),
        *(how.node_id, *into, native.span(rows, num_dst)),
    )
    return into


def attend_backward(
    csr: "Csr",
    transposed: "Csr",
    z_src: Tensor,
    saved: tuple[Tensor, Tensor],
    grad_dst: Tensor,
    how: Attention,
) -> Tensor:
    """The gradient of :func:`attend` in ``z_src``, (D, H F) -> (S, H F + 2 H); ``saved`` is what it gave."""
    if native._core is None:
        return reference.attend_backward(csr, z_src, grad_dst, how)
    back = AttendBackward(Edges(csr, transposed), _rows(z_src), saved, how)
    back.grad_dst = grad_dst.contiguous()
    back.grad_src[back.num_dst :, back.width + how.heads :] = (
        0.0  # what is no destination has no score as one
    )
    back.by_destination()
    back.by_source()
    back.add_by_destination()
    return back.grad_src


class AttendBackward:
    """The gradient of :func:`attend` in three steps, each on some rows once the one before is done for all they read.

    Attributes:
        grad_dst: (D, H F), the gradients of the outputs, to be set.
        grad_src: (S, H F + 2 H), to be read; the last H columns of what is no destination are left alone.
    """

    def __init__(
        self,
        edges: Edges,
        z_src: Tensor,
        saved: tuple[Tensor, Tensor],
        how: Attention,
        *,
        scores: Tensor | None = None,
    ) -> None:
        self.edges, self.z_src, self.saved, self.how, self.scores = edges, z_src, saved, how, scores
        (self.num_dst, self.width), heads = saved[0].shape, how.heads
        self.grad_dst = saved[0]
        self.grad_src = native.empty_rows(z_src.shape[0], z_src.shape[1], z_src.dtype)
        self._at_dst = z_src.new_empty(self.num_dst, 4, heads)
        self._at_edge = native.empty_rows(edges.csr.indices.numel(), heads, z_src.dtype)

    def by_destination(self, rows: slice | None = None) -> None:
        """The first step, of some destinations."""
        self._step(0, native.span(rows, self.num_dst))

    def by_source(self, rows: slice | None = None) -> None:
        """The second step, of some sources: all but the last H columns."""
        self._step(1, native.span(rows, self.z_src.shape[0]))

    def add_by_destination(self, rows: slice | None = None) -> None:
        """The third step, of some destinations: the last H columns."""
        self._step(2, native.span(rows, self.num_dst))

    def _step(self, step: int, span: tuple[int, int]) -> None:
        if native._core is None:
            self._plain_step(step, slice(*span))
            return
        (csr, turned), z_src, how, width, heads = self.edges, self.z_src, self.how, self.width, self.how.heads
        grad = self.grad_src
        native._core.attend_backward(
            *(csr.indptr, csr.indices, turned.indptr, turned.indices, turned.origin, z_src[:, :width]),
            *(*_scores(z_src, how, self.scores), _args(how, width), how.node_id, *self.saved),
            *(self.grad_dst, self._at_dst, self._at_edge),
            *(grad[:, :width], grad[:, width : width + heads], grad[:, width + heads :], step, span),
        )

    def _plain_step(self, step: int, rows: slice) -> None:
        """All at once, of which some rows and columns are taken."""
        if step:
            of_dst = self.width + self.how.heads
            columns = slice(0, of_dst) if step == 1 else slice(of_dst, None)
            whole = reference.attend_backward(self.edges.csr, self.z_src, self.grad_dst, self.how)
            self.grad_src[rows, columns] = whole[rows, columns]


def attend_v2(
    csr: "Csr",
    z_src: Tensor,
    vector: Tensor,
    how: Attention,
    *,
    into: tuple[Tensor, Tensor] | None = None,
    rows: slice | None = None,
) -> tuple[Tensor, Tensor]:
    """GATv2's aggregate, (S, 2 H F), (H, F) -> (D, H F), and the softmax's maximum and inverse sum.

    The columns of ``z_src`` are a node's row as a source, then its row as a destination; ``into`` and ``rows`` as for
    :func:`attend`.
    """
    if native._core is None:
        found = reference.attend_v2(csr, z_src, vector, how)
        return found if into is None else _both_filled(into, found, rows)
    z_src = _rows(z_src)
    num_dst, width = csr.indptr.numel() - 1, z_src.shape[1] // 2
    into = _attended(num_dst, width, z_src, how) if into is None else into
    native._core.attend_v2(
        *(csr.indptr, csr.indices, z_src[:, :width], z_src[:, width:], vector.detach().reshape(-1)),
        *(_args(how, width), how.node_id, *into, native.span(rows, num_dst)),
    )
    return into


def attend_v2_backward(
    csr: "Csr",
    transposed: "Csr",
    inputs: tuple[Tensor, Tensor],
    saved: tuple[Tensor, Tensor],
    grad_dst: Tensor,
    how: Attention,
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`attend_v2` in ``inputs``, its rows and its vector."""
    if native._core is None:
        return reference.attend_v2_backward(csr, *inputs, grad_dst, how)
    back = AttendV2Backward(Edges(csr, transposed), _rows(inputs[0]), saved, how)
    back.grad_dst = grad_dst.contiguous()
    back.grad_src[back.num_dst :, back.width :] = 0.0
    grad_vector = back.by_destination(inputs[1])
    back.by_source(inputs[1])
    return back.grad_src, grad_vector


class AttendV2Backward:
    """The gradient of :func:`attend_v2` in two steps, the second on some rows once the first is done for all they read.

    Attributes:
        grad_dst: (D, H F), the gradients of the outputs, to be set.
        grad_src: (S, 2 H F), to be read; the second half of what is no destination is left alone.
    """

    def __init__(self, edges: Edges, z_src: Tensor, saved: tuple[Tensor, Tensor], how: Attention) -> None:
        self.edges, self.z_src, self.saved, self.how = edges, z_src, saved, how
        self.num_dst, self.width = saved[0].shape
        self.grad_dst = saved[0]
        self.grad_src = native.empty_rows(z_src.shape[0], z_src.shape[1], z_src.dtype)
        self._at_edge = z_src.new_empty(edges.csr.indices.numel(), 2, how.heads)
        self._at_loop = z_src.new_empty(self.num_dst, 2, how.heads)

    def by_destination(self, vector: Tensor, rows: slice | None = None) -> Tensor:
        """The first step, of some destinations: the second half of the columns; returns their share for the vector."""
        span = native.span(rows, self.num_dst)
        if native._core is None:
            return self._plain_by_destination(vector, slice(*span))
        return self._step(0, span, vector).sum(0).view_as(vector)

    def by_source(self, vector: Tensor, rows: slice | None = None) -> None:
        """The second step, of some sources: the first half of the columns."""
        span = native.span(rows, self.z_src.shape[0])
        if native._core is None:
            taken, columns = slice(*span), slice(0, self.width)
            self.grad_src[taken, columns] = self._plain(vector, self.grad_dst)[0][taken, columns]
            return
        self._step(1, span, vector)

    def _plain_by_destination(self, vector: Tensor, rows: slice) -> Tensor:
        grad_dst = torch.zeros_like(self.grad_dst)
        grad_dst[rows] = self.grad_dst[rows]
        grad_src, grad_vector = self._plain(vector, grad_dst)
        self.grad_src[rows, self.width :] = grad_src[rows, self.width :]
        return grad_vector

    def _plain(self, vector: Tensor, grad_dst: Tensor) -> tuple[Tensor, Tensor]:
        return reference.attend_v2_backward(self.edges.csr, self.z_src, vector, grad_dst, self.how)

    def _step(self, step: int, span: tuple[int, int], vector: Tensor) -> Tensor:
        (csr, turned), z_src, how, width = self.edges, self.z_src, self.how, self.width
        parts = z_src.new_empty(native._core.vector_parts, width)
        native._core.attend_v2_backward(
            *(csr.indptr, csr.indices, turned.indptr, turned.indices, turned.origin),
            *(z_src[:, :width], z_src[:, width:], vector.detach().reshape(-1), _args(how, width)),
            *(how.node_id, *self.saved, self.grad_dst, self._at_edge, self._at_loop),
            *(self.grad_src[:, :width], self.grad_src[:, width:], parts, step, span),
        )
        return parts


def _attended(num_dst: int, width: int, z_src: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    return native.empty_rows(num_dst, width, z_src.dtype), z_src.new_empty(num_dst, 2, how.heads)


def _both_filled(
    into: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor], rows: slice | None
) -> tuple[Tensor, Tensor]:
    return native.filled(into[0], found[0], rows), native.filled(into[1], found[1], rows)


def _rows(x: Tensor) -> Tensor:
    return x.detach().contiguous()


def _scores(z_src: Tensor, how: Attention, scores: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Scores as sources and as destinations: edges read them at random, so they must lie together."""
    if scores is None:
        scores = torch.empty(z_src.shape[0], 2 * how.heads, dtype=z_src.dtype)
        scores.copy_(z_src[:, z_src.shape[1] - 2 * how.heads :])
    return scores[:, : how.heads], scores[:, how.heads :]


def _args(how: Attention, width: int) -> tuple[int, int, float, int, int, float]:
    if not 0 < how.heads <= MAX_HEADS or width % how.heads:
        raise ValueError(f"{how.heads} heads for rows of {width}; expected 1 to {MAX_HEADS} that divide them")
    if how.slope < 0:
        raise ValueError(f"the leaky ReLU's slope below zero is {how.slope}; expected 0 or more")
    return how.heads, width // how.heads, how.slope, how.dropout.key, how.dropout.threshold, how.dropout.scale
