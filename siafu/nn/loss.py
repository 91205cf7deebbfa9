"""Losses of node tasks."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Kind = Literal["class", "labels", "regression"]
SMALLEST_MISS = 1e-7  # least 1 - p of the focal loss, whose slope is infinite at 0 for a gamma below 1


def sum_of_losses(
    kind: Kind, out: Tensor, y: Tensor, class_weight: Tensor | None, gamma: float = 0.0
) -> Tensor:
    """The sum of the losses of some labelled rows: (R, C), (R,) or (R, C), (C,) -> ().

    ``gamma`` above 0 makes cross entropy the focal loss of Lin et al. (https://arxiv.org/abs/1708.02002): a row whose
    label has probability p counts ``(1 - p)^gamma``.
    """
    match kind:
        case "class":
            if gamma:
                log_p = functional.log_softmax(out, 1).gather(1, y[:, None])[:, 0]
                return _focal(log_p, None if class_weight is None else class_weight[y], gamma)
            return functional.cross_entropy(out, y, weight=class_weight, reduction="sum")
        case "labels":  # summed over labels, so that many of them don't each count for little
            if gamma:
                weight = None if class_weight is None else torch.where(y > 0, class_weight, 1.0)
                return _focal(functional.logsigmoid(torch.where(y > 0, out, -out)), weight, gamma)
            return functional.binary_cross_entropy_with_logits(
                out, y, pos_weight=class_weight, reduction="sum"
            )
        case "regression":
            known = ~y.isnan()
            return functional.mse_loss(out[known], y[known].to(out.dtype), reduction="sum")


def _focal(log_p: Tensor, weight: Tensor | None, gamma: float) -> Tensor:
    """The sum of focal losses, from the log-probability of each label."""
    losses = -((-log_p.expm1()).clamp(min=SMALLEST_MISS) ** gamma) * log_p
    return (losses if weight is None else losses * weight).sum()
