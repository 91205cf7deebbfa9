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


def attend(csr: "Csr", z_src: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    """GAT's aggregate, (S, H F + 2 H) -> (D, H F), and the softmax's maximum and inverse sum, (D, 2, H).

    The columns of ``z_src`` are the row to sum, then a node's H scores as a source, then as a destination.
    """
    if native._core is None:
        return reference.attend(csr, z_src, how)
    z_src = _rows(z_src)
    num_dst, width = csr.indptr.numel() - 1, z_src.shape[1] - 2 * how.heads
    out = native.empty_rows(num_dst, width, z_src.dtype)
    softmax = z_src.new_empty(num_dst, 2, how.heads)
    native._core.attend(
        csr.indptr,
        csr.indices,
        z_src[:, :width],
        *_scores(z_src, how),
        _args(how, width),
        how.node_id,
        out,
        softmax,
    )
    return out, softmax


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
    z_src, grad_dst = _rows(z_src), grad_dst.contiguous()
    num_dst, width = grad_dst.shape
    grad_src = native.empty_rows(z_src.shape[0], z_src.shape[1], z_src.dtype)
    grad_src[num_dst:, width + how.heads :] = 0.0  # what is no destination has no score as one
    native._core.attend_backward(
        *(csr.indptr, csr.indices, transposed.indptr, transposed.indices, transposed.origin),
        *(z_src[:, :width], *_scores(z_src, how), _args(how, width), how.node_id, *saved, grad_dst),
        z_src.new_empty(num_dst, 4, how.heads),
        native.empty_rows(csr.indices.numel(), how.heads, z_src.dtype),
        *(grad_src[:, :width], grad_src[:, width : width + how.heads], grad_src[:, width + how.heads :]),
    )
    return grad_src


def attend_v2(csr: "Csr", z_src: Tensor, vector: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    """GATv2's aggregate, (S, 2 H F), (H, F) -> (D, H F), and the softmax's maximum and inverse sum.

    The columns of ``z_src`` are a node's row as a source, then its row as a destination.
    """
    if native._core is None:
        return reference.attend_v2(csr, z_src, vector, how)
    z_src = _rows(z_src)
    num_dst, width = csr.indptr.numel() - 1, z_src.shape[1] // 2
    out = native.empty_rows(num_dst, width, z_src.dtype)
    softmax = z_src.new_empty(num_dst, 2, how.heads)
    native._core.attend_v2(
        *(csr.indptr, csr.indices, z_src[:, :width], z_src[:, width:], vector.detach().reshape(-1)),
        *(_args(how, width), how.node_id, out, softmax),
    )
    return out, softmax


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
    z_src, vector, grad_dst = _rows(inputs[0]), inputs[1].detach(), grad_dst.contiguous()
    num_dst, width = grad_dst.shape
    grad_src = native.empty_rows(z_src.shape[0], z_src.shape[1], z_src.dtype)
    grad_src[num_dst:, width:] = 0.0
    parts = z_src.new_empty(native._core.vector_parts, width)
    native._core.attend_v2_backward(
        *(csr.indptr, csr.indices, transposed.indptr, transposed.indices, transposed.origin),
        *(
            z_src[:, :width],
            z_src[:, width:],
            vector.reshape(-1),
            _args(how, width),
            how.node_id,
            *saved,
            grad_dst,
        ),
        z_src.new_empty(csr.indices.numel(), 2, how.heads),
        z_src.new_empty(num_dst, 2, how.heads),
        *(grad_src[:, :width], grad_src[:, width:], parts),
    )
    return grad_src, parts.sum(0).view_as(vector)


def _rows(x: Tensor) -> Tensor:
    return x.detach().contiguous()


def _scores(z_src: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    """Scores as sources and as destinations: edges read them at random, so they must lie together."""
    scores = torch.empty(z_src.shape[0], 2 * how.heads, dtype=z_src.dtype)
    scores.copy_(z_src[:, z_src.shape[1] - 2 * how.heads :])
    return scores[:, : how.heads], scores[:, how.heads :]


def _args(how: Attention, width: int) -> tuple[int, int, float, int, int, float]:
    if not 0 < how.heads <= MAX_HEADS or width % how.heads:
        raise ValueError(f"{how.heads} heads for rows of {width}; expected 1 to {MAX_HEADS} that divide them")
    if how.slope < 0:
        raise ValueError(f"the leaky ReLU's slope below zero is {how.slope}; expected 0 or more")
    return how.heads, width // how.heads, how.slope, how.dropout.key, how.dropout.threshold, how.dropout.scale
