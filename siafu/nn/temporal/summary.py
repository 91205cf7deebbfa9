"""The summary of a step that EvolveGCN-H feeds to its GRU: the top k rows by a learned score."""

from typing import Any

import torch
from torch import Tensor


def summarize(
    x: Tensor, scorer: Tensor, *, k: int, num_steps: int, present: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the rows unchanged, and the k top rows of each step: (T, N, F), (F,) -> (T, N, F), (T, k, F).

    The score is ``y = x p / |p|``. The k rows of the largest scores are scaled by ``tanh(y)`` and stand in descending
    order; equal scores in the order of nodes. Missing rows are zeros, if fewer than k nodes are ``present`` (T, N). x
    may be (N, F), the same in every step. Later layers must read the returned rows instead of x: backward then adds the
    gradients of the top rows to theirs in place.
    """
    return _Summarize.apply(x, scorer, k, num_steps, present)


def top_k_rows(score: Tensor, k: int, present: Tensor | None = None) -> Tensor:
    """The places of the k largest scores (or of all, if fewer), in descending order; equal ones by place."""
    there = None if present is None else present.nonzero()[:, 0]
    score = score if there is None else score[there]
    place = torch.arange(len(score))
    if k < len(score):
        least = score.topk(k, sorted=False).values.min()
        place = (score >= least).nonzero()[:, 0]
        above = score[place] > least
        equal_left = k - int(above.sum())
        place = place[above | ((~above).cumsum(0) <= equal_left)]
    place = place[score[place].argsort(descending=True, stable=True)]
    return place if there is None else there[place]


class _Summarize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scorer: Tensor, k: int, num_steps: int, present: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        unit = scorer / scorer.norm()
        score = x @ unit  # (T, N), or (N,)
        place = torch.full((num_steps, k), -1)
        for step in range(num_steps):
            if step and x.ndim == 2 and present is None:
                place[step] = place[0]
                continue
            there = None if present is None else present[step]
            found = top_k_rows(score if x.ndim == 2 else score[step], k, there)
            place[step, : len(found)] = found + (0 if x.ndim == 2 else step * x.shape[1])
        picked = x.reshape(-1, x.shape[-1])[place.clamp(min=0)] * (place >= 0)[..., None]  # (T, k, F)
        ctx.save_for_backward(picked, place, unit, scorer)
        ctx.shape = x.shape
        ctx.set_materialize_grads(False)
        return x.view_as(x), picked * (picked @ unit).tanh()[..., None]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        picked, place, unit, scorer = ctx.saved_tensors
        grad_x, grad = grads
        if grad is None:
            return grad_x, None, None, None, None
        slope = (picked @ unit).tanh()  # (T, k)
        of_score = (grad * picked).sum(-1) * (1 - slope**2)
        of_unit = (of_score[..., None] * picked).sum((0, 1))
        of_scorer = (of_unit - unit * (unit @ of_unit)) / scorer.norm()
        if not ctx.needs_input_grad[0]:
            return None, of_scorer, None, None, None
        of_picked = grad * slope[..., None] + of_score[..., None] * unit
        grad_x = grad.new_zeros(ctx.shape) if grad_x is None else grad_x.contiguous()
        there = place >= 0
        grad_x.view(-1, ctx.shape[-1]).index_add_(0, place[there], of_picked[there])
        return grad_x, of_scorer, None, None, None
