"""The attention aggregates over a block's in-edges: graph work, differentiable in rows and edge vector.

They save their output for the backward pass, so nothing may overwrite it.
"""

from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block
from siafu.native import Attention
from siafu.nn.aggregate import check_rows, with_halo


def attend(block: Block, z_src: Tensor, *, heads: int, slope: float, dropout: native.Dropout) -> Tensor:
    """GAT's aggregate, (S, H F + 2 H) -> (D, H F).

    The columns are the row to sum, then a node's H scores as a source, then as a destination.
    """
    check_rows(block, z_src)
    z_src = with_halo(block, z_src, columns=z_src.shape[1] - heads)  # a halo row is no destination
    return _Attend.apply(z_src, block, Attention(heads, slope, dropout, block.node_id))


def attend_v2(
    block: Block, z_src: Tensor, vector: Tensor, *, slope: float, dropout: native.Dropout
) -> Tensor:
    """GATv2's aggregate, (S, 2 H F), (H, F) -> (D, H F).

    The columns are a node's row as a source, then its row as a destination.
    """
    check_rows(block, z_src)
    z_src = with_halo(block, z_src, columns=z_src.shape[1] // 2)
    return _AttendV2.apply(z_src, vector, block, Attention(vector.shape[0], slope, dropout, block.node_id))


class _Attend(torch.autograd.Function):
    """``native.attend``; of the edges nothing is kept, they are weighed again."""

    @staticmethod
    def forward(ctx: Any, z_src: Tensor, block: Block, how: Attention) -> Tensor:
        out, softmax = native.attend(block.csr, z_src, how)
        ctx.block, ctx.how = block, how
        ctx.save_for_backward(z_src, out, softmax)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        z_src, *saved = ctx.saved_tensors
        block: Block = ctx.block
        grad_src = native.attend_backward(
            block.csr, block.transposed, z_src, (saved[0], saved[1]), grads[0], ctx.how
        )
        return grad_src, None, None


class _AttendV2(torch.autograd.Function):
    """``native.attend_v2``."""

    @staticmethod
    def forward(ctx: Any, z_src: Tensor, vector: Tensor, block: Block, how: Attention) -> Tensor:
        out, softmax = native.attend_v2(block.csr, z_src, vector, how)
        ctx.block, ctx.how = block, how
        ctx.save_for_backward(z_src, vector, out, softmax)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        z_src, vector, out, softmax = ctx.saved_tensors
        block: Block = ctx.block
        grad_src, grad_vector = native.attend_v2_backward(
            block.csr, block.transposed, (z_src, vector), (out, softmax), grads[0], ctx.how
        )
        return grad_src, grad_vector, None, None
