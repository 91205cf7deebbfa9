"""The attention aggregates in plain torch: the reference for tests, and the fallback without the compiled core."""

import torch
from torch import Tensor

from siafu.native.values import Attention, Csr, Dropout

_MASK = 0xFFFFFFFF


def attend(csr: Csr, z_src: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    """GAT's aggregate; see :func:`siafu.native.attend`."""
    src, dst = _edges(csr)
    width = z_src.shape[1] - 2 * how.heads
    z, score_src, score_dst = z_src.split([width, how.heads, how.heads], dim=1)
    return _weigh(
        z, torch.nn.functional.leaky_relu(score_src[src] + score_dst[dst], how.slope), src, dst, how
    )


def attend_v2(csr: Csr, z_src: Tensor, vector: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    """GATv2's aggregate; see :func:`siafu.native.attend_v2`."""
    src, dst = _edges(csr)
    z, z_dst = z_src.chunk(2, dim=1)
    u_edge = torch.nn.functional.leaky_relu(z[src] + z_dst[dst], how.slope)
    return _weigh(z, (u_edge.view(src.numel(), *vector.shape) * vector).sum(2), src, dst, how)


def attend_backward(csr: Csr, z_src: Tensor, grad_dst: Tensor, how: Attention) -> Tensor:
    """The gradient of :func:`attend`; see :func:`siafu.native.attend_backward`."""
    with torch.enable_grad():
        z_src = z_src.detach().requires_grad_()
        out, _ = attend(csr, z_src, how)
        (grad_src,) = torch.autograd.grad(out, z_src, grad_dst)
    return grad_src


def attend_v2_backward(
    csr: Csr, z_src: Tensor, vector: Tensor, grad_dst: Tensor, how: Attention
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`attend_v2`; see :func:`siafu.native.attend_v2_backward`."""
    with torch.enable_grad():
        z_src, vector = z_src.detach().requires_grad_(), vector.detach().requires_grad_()
        out, _ = attend_v2(csr, z_src, vector, how)
        grad_src, grad_vector = torch.autograd.grad(out, (z_src, vector), grad_dst)
    return grad_src, grad_vector


def attention_dropout_mask(dropout: Dropout, dst_id: Tensor, src_id: Tensor, heads: int) -> Tensor:
    """Return which edges' heads are kept, (E, H) bool."""
    key = torch.tensor(_signed(dropout.key))
    state = _mixed(_mixed(key, dst_id), src_id) & _MASK
    h = (state[:, None] + torch.arange(heads) * 0x9E3779B9) & _MASK
    h = ((h ^ (h >> 16)) * 0x7FEB352D) & _MASK
    h = ((h ^ (h >> 15)) * 0x846CA68B) & _MASK
    return (h ^ (h >> 16)) >= dropout.threshold


def _edges(csr: Csr) -> tuple[Tensor, Tensor]:
    """Return sources and destinations of all edges, with one self-loop per destination in place of existing ones."""
    nodes = torch.arange(csr.indptr.numel() - 1)
    dst, src = nodes.repeat_interleave(csr.indptr.diff()), csr.indices.long()
    other = src != dst
    return torch.cat([nodes, src[other]]), torch.cat([nodes, dst[other]])


def _weigh(z: Tensor, score: Tensor, src: Tensor, dst: Tensor, how: Attention) -> tuple[Tensor, Tensor]:
    """Softmax of (E, H) scores by destination, dropout, and the weighted sum of rows."""
    num_dst = int(dst.max()) + 1 if dst.numel() else 0  # every destination has its loop
    index = dst[:, None].expand_as(score)
    top = score.new_empty(num_dst, how.heads).scatter_reduce(
        0, index, score.detach(), "amax", include_self=False
    )
    weight = (score - top[dst]).exp()
    inverse = 1.0 / weight.new_zeros(num_dst, how.heads).index_add(0, dst, weight)
    alpha = weight * inverse[dst]
    if how.dropout.threshold:
        ids = torch.arange(z.shape[0]) if how.node_id is None else how.node_id
        alpha = torch.where(
            attention_dropout_mask(how.dropout, ids[dst], ids[src], how.heads), alpha * how.dropout.scale, 0.0
        )
    m_edge = z[src].unflatten(1, (how.heads, -1)) * alpha[:, :, None]
    out = z.new_zeros(num_dst, z.shape[1]).index_add(0, dst, m_edge.flatten(1))
    return out, torch.stack([top, inverse], 1)


def _mixed(key: Tensor, node_id: Tensor) -> Tensor:
    """64 bits of (key, id); unsigned arithmetic in signed tensors, which wrap alike."""
    z = key + node_id * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)
