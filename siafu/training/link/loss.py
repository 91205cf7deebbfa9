"""What scores of pairs lose, in memory that does not grow with their number."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from siafu.nn.link import LinkHead

_AT_ONCE = 1 << 24  # numbers that are kept for a gradient


def pair_loss(
    head: LinkHead, h: Tensor, src: Tensor, dst: Tensor, y: Tensor, recency: Tensor | None = None
) -> Tensor:
    """The mean loss of pairs (P,), (P,) by the rows (N, H): ``y`` (P,) is 1 for edges and 0 for others, or a class.

    Many pairs are scored some at a time, and their gradients taken at once, so that no more is kept than those of rows.
    """
    a_src, b_dst = head.factors(h)
    step = max(1, _AT_ONCE // a_src.shape[1])
    if y.numel() <= step or not torch.is_grad_enabled():
        parts = [_sum(head, a_src, b_dst, part) for part in _pieces(step, src, dst, y, recency)]
        return torch.stack([a_src.new_zeros(()), *parts]).sum() / max(1, y.numel())
    learned = [parameter for parameter in head.parameters() if parameter.requires_grad]
    pieces = _pieces(step, src, dst, y, recency)
    return _InPieces.apply(head, pieces, a_src, b_dst, *learned) / y.numel()


def _pieces(step: int, *columns: Tensor | None) -> list[tuple[Tensor | None, ...]]:
    """Some pairs at a time."""
    count = next(column.shape[0] for column in columns if column is not None)
    cuts = [slice(start, start + step) for start in range(0, count, step)]
    return [tuple(None if column is None else column[cut] for column in columns) for cut in cuts]


def _sum(head: LinkHead, a_src: Tensor, b_dst: Tensor, piece: tuple[Tensor | None, ...]) -> Tensor:
    src, dst, y, recency = piece
    assert src is not None
    assert dst is not None
    assert y is not None
    logit = head.pairs(a_src, b_dst, src, dst, recency)
    if head.classes is not None:
        return functional.cross_entropy(logit, y, reduction="sum")
    return functional.binary_cross_entropy_with_logits(logit, y.to(logit.dtype), reduction="sum")


class _InPieces(torch.autograd.Function):
    """The sum of losses; gradients are taken piece by piece on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        head: LinkHead,
        pieces: list[tuple[Tensor | None, ...]],
        a_src: Tensor,
        b_dst: Tensor,
        *learned: Tensor,
    ) -> Tensor:
        a_src, b_dst = (rows.detach().requires_grad_() for rows in (a_src, b_dst))
        read, total = [a_src, b_dst, *learned], a_src.new_zeros(())
        grads = [torch.zeros_like(each) for each in read]
        for piece in pieces:
            with torch.enable_grad():
                loss = _sum(head, a_src, b_dst, piece)
            for grad, more in zip(grads, torch.autograd.grad(loss, read, allow_unused=True), strict=True):
                if more is not None:
                    grad += more
            total += loss.detach()
        ctx.grads = grads
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return (None, None, *(grad * grads[0] for grad in ctx.grads))
