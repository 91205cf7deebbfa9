"""Losses of node tasks."""

from typing import Literal

from torch import Tensor
from torch.nn import functional

Kind = Literal["class", "labels", "regression"]


def sum_of_losses(kind: Kind, out: Tensor, y: Tensor, class_weight: Tensor | None) -> Tensor:
    """The sum of the losses of some labelled rows: (R, C), (R,) or (R, C), (C,) -> ()."""
    match kind:
        case "class":
            return functional.cross_entropy(out, y, weight=class_weight, reduction="sum")
        case "labels":  # summed over labels, so that many of them don't each count for little
            return functional.binary_cross_entropy_with_logits(
                out, y, pos_weight=class_weight, reduction="sum"
            )
        case "regression":
            known = ~y.isnan()
            return functional.mse_loss(out[known], y[known].to(out.dtype), reduction="sum")
