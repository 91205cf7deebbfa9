"""Differentiable scores of many pairs, by kernels that hold one number a pair and no hidden rows."""

from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.native import Csr, Factors


def score_pairs(a_src: Tensor, b_dst: Tensor, weight: Tensor | None, src: Tensor, dst: Tensor) -> Tensor:
    """``relu(a_src + b_dst) . weight``, or ``a_src . b_dst`` without one: (N, D), (M, D), (D,), (P,), (P,) -> (P,)."""
    return _ScorePairs.apply(a_src, b_dst, weight, src, dst)


class _ScorePairs(torch.autograd.Function):
    """Forward groups pairs by source, backward by either end, so that sums need no atomics."""

    @staticmethod
    def forward(
        ctx: Any, a_src: Tensor, b_dst: Tensor, weight: Tensor | None, src: Tensor, dst: Tensor
    ) -> Tensor:
        by_src = _csr_by_row(src, dst, a_src.shape[0])
        score = torch.empty(src.numel())
        score[by_src.origin] = native.pair_rows(Factors(a_src, b_dst, weight), by_src)
        ctx.by_src, ctx.ends = by_src, (src, dst)
        ctx.save_for_backward(a_src, b_dst, weight)
        return score

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        a_src, b_dst, weight = ctx.saved_tensors
        needs_a, needs_b, needs_weight, _, _ = ctx.needs_input_grad
        grad_a = grad_b = grad_weight = None
        if needs_a or needs_weight:
            by_src, factors = ctx.by_src, Factors(a_src, b_dst, weight)
            grad = grads[0][by_src.origin]
            grad_a, grad_weight = native.pair_rows_backward(
                factors, by_src, grad, with_weight=needs_weight and weight is not None
            )
        if needs_b:
            src, dst = ctx.ends
            by_dst = _csr_by_row(dst, src, b_dst.shape[0])
            swapped = Factors(b_dst, a_src, weight)
            grad_b, _ = native.pair_rows_backward(swapped, by_dst, grads[0][by_dst.origin], with_weight=False)
        return grad_a, grad_b, grad_weight, None, None


def _csr_by_row(row: Tensor, other: Tensor, num_rows: int) -> Csr:
    return native.build_csr(row.int(), other.int(), num_rows=num_rows, origin=True)
