"""Federated averaging: each rank takes steps of its own, then all take the mean of what came of them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from siafu.comm.quantized_all_reduce import QuantizedAllReduce


@torch.no_grad()
def average(
    learned: Sequence[nn.Parameter], before: Tensor, sums: QuantizedAllReduce, *, share: float, label: str
) -> None:
    """Move weights from where all ranks had them ``before`` by the mean of all ranks' moves. Collective.

    ``share`` is what this rank's move weighs; the shares add up to 1. All ranks then hold the same bits.
    """
    moved = sums.all_reduce((flat(learned) - before) * share, label=label)
    put(learned, before + moved)


@torch.no_grad()
def put(learned: Sequence[nn.Parameter], weights: Tensor) -> None:
    """Set all weights from one row, (N,)."""
    pieces = weights.split([parameter.numel() for parameter in learned])
    for parameter, piece in zip(learned, pieces, strict=True):
        parameter.copy_(piece.view_as(parameter))


@torch.no_grad()
def flat(learned: Sequence[nn.Parameter]) -> Tensor:
    """All weights in one row: (N,)."""
    return torch.cat([parameter.reshape(-1) for parameter in learned])
