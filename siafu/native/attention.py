"""Attention aggregates of GAT and GATv2: softmax over in-edges, and the weighted sum of rows.

Each destination has exactly one self-loop: those in the CSR are skipped and one is added. No array of edges x features
is ever held; the backward pass holds one or two numbers per edge and head. The plain torch versions are in
``siafu.native.attention_reference``.
"""

import torch
from torch import Tensor

from siafu.native import attention_reference as reference
from siafu.native import core
from siafu.native.memory import empty_rows, row_range, write_rows
from siafu.native.values import MAX_HEADS, Attention, Csr, CsrPair


def attend(
    csr: Csr,
    z_src: Tensor,
    how: Attention,
    *,
    scores: Tensor | None = None,
    into: tuple[Tensor, Tensor] | None = None,
    rows: slice | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute GAT's aggregate, (S, H F + 2 H) -> (D, H F), and the softmax's maximum and inverse sum, (D, 2, H).

    The columns of ``z_src`` are the row to sum, then a node's H scores as a source, then as a destination. ``scores``
    (S, 2 H) repeats the scores, if the caller has them as an array. ``into`` is filled and returned. With ``rows`` only
    those rows are computed.
    """
    if core.kernels is None:
        found = reference.attend(csr, z_src, how)
        return found if into is None else _both_filled(into, found, rows)
    z_src = _rows(z_src)
    num_dst, width = csr.indptr.numel() - 1, z_src.shape[1] - 2 * how.heads
    into = _attended(num_dst, width, z_src, how) if into is None else into
    core.kernels.attend(
        *(csr.indptr, csr.indices, z_src[:, :width], *_scores(z_src, how, scores), _args(how, width)),
        *(how.node_id, *into, row_range(rows, num_dst)),
    )
    return into


def attend_backward(
    csr: Csr,
    transposed: Csr,
    z_src: Tensor,
    saved: tuple[Tensor, Tensor],
    grad_dst: Tensor,
    how: Attention,
) -> Tensor:
    """Return the gradient of :func:`attend` in ``z_src``, (D, H F) -> (S, H F + 2 H); ``saved`` is its result."""
    if core.kernels is None:
        return reference.attend_backward(csr, z_src, grad_dst, how)
    back = AttendBackward(CsrPair(csr, transposed), _rows(z_src), saved, how)
    back.grad_dst = grad_dst.contiguous()
    back.grad_src[back.num_dst :, back.width + how.heads :] = (
        0.0  # what is no destination has no score as one
    )
    back.by_destination()
    back.by_source()
    back.add_by_destination()
    return back.grad_src


class AttendBackward:
    """The gradient of :func:`attend` in three steps over ranges of rows, each after the previous step is done.

    Attributes:
        grad_dst: (D, H F), the gradients of the outputs, set by the caller.
        grad_src: (S, H F + 2 H), the result; the last H columns of rows that are no destination are left alone.
    """

    def __init__(
        self,
        edges: CsrPair,
        z_src: Tensor,
        saved: tuple[Tensor, Tensor],
        how: Attention,
        *,
        scores: Tensor | None = None,
    ) -> None:
        self.edges, self.z_src, self.saved, self.how, self.scores = edges, z_src, saved, how, scores
        (self.num_dst, self.width), heads = saved[0].shape, how.heads
        self.grad_dst = saved[0]
        self.grad_src = empty_rows(z_src.shape[0], z_src.shape[1], z_src.dtype)
        self._at_dst = z_src.new_empty(self.num_dst, 4, heads)
        self._at_edge = empty_rows(edges.csr.indices.numel(), heads, z_src.dtype)

    def by_destination(self, rows: slice | None = None) -> None:
        """Run the first step for some destinations."""
        self._step(0, row_range(rows, self.num_dst))

    def by_source(self, rows: slice | None = None) -> None:
        """Run the second step for some sources: all but the last H columns."""
        self._step(1, row_range(rows, self.z_src.shape[0]))

    def add_by_destination(self, rows: slice | None = None) -> None:
        """Run the third step for some destinations: the last H columns."""
        self._step(2, row_range(rows, self.num_dst))

    def _step(self, step: int, span: tuple[int, int]) -> None:
        if core.kernels is None:
            self._plain_step(step, slice(*span))
            return
        (csr, turned), z_src, how, width, heads = self.edges, self.z_src, self.how, self.width, self.how.heads
        grad = self.grad_src
        core.kernels.attend_backward(
            *(csr.indptr, csr.indices, turned.indptr, turned.indices, turned.origin, z_src[:, :width]),
            *(*_scores(z_src, how, self.scores), _args(how, width), how.node_id, *self.saved),
            *(self.grad_dst, self._at_dst, self._at_edge),
            *(grad[:, :width], grad[:, width : width + heads], grad[:, width + heads :], step, span),
        )

    def _plain_step(self, step: int, rows: slice) -> None:
        """Compute everything, and copy the rows and columns of this step."""
        if step:
            of_dst = self.width + self.how.heads
            columns = slice(0, of_dst) if step == 1 else slice(of_dst, None)
            whole = reference.attend_backward(self.edges.csr, self.z_src, self.grad_dst, self.how)
            self.grad_src[rows, columns] = whole[rows, columns]


def attend_v2(
    csr: Csr,
    z_src: Tensor,
    vector: Tensor,
    how: Attention,
    *,
    into: tuple[Tensor, Tensor] | None = None,
    rows: slice | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute GATv2's aggregate, (S, 2 H F), (H, F) -> (D, H F), and the softmax's maximum and inverse sum.

    The columns of ``z_src`` are a node's row as a source, then as a destination. ``into`` and ``rows`` as in
    :func:`attend`.
    """
    if core.kernels is None:
        found = reference.attend_v2(csr, z_src, vector, how)
        return found if into is None else _both_filled(into, found, rows)
    z_src = _rows(z_src)
    num_dst, width = csr.indptr.numel() - 1, z_src.shape[1] // 2
    into = _attended(num_dst, width, z_src, how) if into is None else into
    core.kernels.attend_v2(
        *(csr.indptr, csr.indices, z_src[:, :width], z_src[:, width:], vector.detach().reshape(-1)),
        *(_args(how, width), how.node_id, *into, row_range(rows, num_dst)),
    )
    return into


def attend_v2_backward(
    csr: Csr,
    transposed: Csr,
    inputs: tuple[Tensor, Tensor],
    saved: tuple[Tensor, Tensor],
    grad_dst: Tensor,
    how: Attention,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`attend_v2` in ``inputs``, its rows and its vector."""
    if core.kernels is None:
        return reference.attend_v2_backward(csr, *inputs, grad_dst, how)
    back = AttendV2Backward(CsrPair(csr, transposed), _rows(inputs[0]), saved, how)
    back.grad_dst = grad_dst.contiguous()
    back.grad_src[back.num_dst :, back.width :] = 0.0
    grad_vector = back.by_destination(inputs[1])
    back.by_source(inputs[1])
    return back.grad_src, grad_vector


class AttendV2Backward:
    """The gradient of :func:`attend_v2` in two steps over ranges of rows, the second after the first is done.

    Attributes:
        grad_dst: (D, H F), the gradients of the outputs, set by the caller.
        grad_src: (S, 2 H F), the result; the second half of rows that are no destination is left alone.
    """

    def __init__(self, edges: CsrPair, z_src: Tensor, saved: tuple[Tensor, Tensor], how: Attention) -> None:
        self.edges, self.z_src, self.saved, self.how = edges, z_src, saved, how
        self.num_dst, self.width = saved[0].shape
        self.grad_dst = saved[0]
        self.grad_src = empty_rows(z_src.shape[0], z_src.shape[1], z_src.dtype)
        self._at_edge = z_src.new_empty(edges.csr.indices.numel(), 2, how.heads)
        self._at_loop = z_src.new_empty(self.num_dst, 2, how.heads)

    def by_destination(self, vector: Tensor, rows: slice | None = None) -> Tensor:
        """Run the first step for some destinations (second half of the columns); return their part of the vector's."""
        span = row_range(rows, self.num_dst)
        if core.kernels is None:
            return self._plain_by_destination(vector, slice(*span))
        return self._step(0, span, vector).sum(0).view_as(vector)

    def by_source(self, vector: Tensor, rows: slice | None = None) -> None:
        """Run the second step for some sources: the first half of the columns."""
        span = row_range(rows, self.z_src.shape[0])
        if core.kernels is None:
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
        parts = z_src.new_empty(core.kernels.vector_parts, width)
        core.kernels.attend_v2_backward(
            *(csr.indptr, csr.indices, turned.indptr, turned.indices, turned.origin),
            *(z_src[:, :width], z_src[:, width:], vector.detach().reshape(-1), _args(how, width)),
            *(how.node_id, *self.saved, self.grad_dst, self._at_edge, self._at_loop),
            *(self.grad_src[:, :width], self.grad_src[:, width:], parts, step, span),
        )
        return parts


def _attended(num_dst: int, width: int, z_src: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    return empty_rows(num_dst, width, z_src.dtype), z_src.new_empty(num_dst, 2, how.heads)


def _both_filled(
    into: tuple[Tensor, Tensor], found: tuple[Tensor, Tensor], rows: slice | None
) -> tuple[Tensor, Tensor]:
    return write_rows(into[0], found[0], rows), write_rows(into[1], found[1], rows)


def _rows(x: Tensor) -> Tensor:
    return x.detach().contiguous()


def _scores(z_src: Tensor, how: Attention, scores: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the scores as sources and as destinations, contiguous, since edges read them at random."""
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
