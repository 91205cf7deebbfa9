"""Federated averaging: each rank takes local steps, then all ranks take the mean of their weight updates."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from siafu.comm.quantized_all_reduce import QuantizedAllReduce


@torch.no_grad()
def average_weights(
    learned: Sequence[nn.Parameter], before: Tensor, sums: QuantizedAllReduce, *, share: float, label: str
) -> None:
    """Set weights to ``before``, the same on all ranks, plus the weighted mean of all ranks' updates. Collective.

    ``share`` is the weight of this rank's update; the shares add up to 1. All ranks then hold the same bits.
    """
    moved = sums.all_reduce((flat_parameters(learned) - before) * share, label=label)
    set_flat_parameters(learned, before + moved)


@torch.no_grad()
def set_flat_parameters(learned: Sequence[nn.Parameter], weights: Tensor) -> None:
    """Set all parameters from one vector, (N,)."""
    pieces = weights.split([parameter.numel() for parameter in learned])
    for parameter, piece in zip(learned, pieces, strict=True):
        parameter.copy_(piece.view_as(parameter))


@torch.no_grad()
def flat_parameters(learned: Sequence[nn.Parameter]) -> Tensor:
    """Concatenate all parameters into one vector, (N,)."""
    return torch.cat([parameter.reshape(-1) for parameter in learned])
