"""Linear heads whose weights depend on a node's degree: ridge regression on inputs repeated for each degree knot."""

import torch
from torch import Tensor

from siafu.comm.comm import Comm
from siafu.graph import Block
from siafu.methods.lazy.ridge import LinearHead, RowSubset
from siafu.nn.propagated import shares_of_knots

_MOST_KNOTS = 16  # the last of them at a degree of 2^30


class DegreeScaledRows(RowSubset):
    """Rows multiplied by their share of each knot: (R, B F), the first knot's columns first.

    ``shares`` are the shares of the rows of ``x``, (N, B).
    """

    def __init__(self, x: Tensor, shares: Tensor, index: Tensor) -> None:
        super().__init__(x, index)
        self._shares = shares
        self.width = x.shape[1] * shares.shape[1]

    def take(self, index: Tensor) -> Tensor:
        """Take rows by index: (R,) -> (R, B F)."""
        rows = super().take(index)
        return (self._shares[index, :, None].to(rows.dtype) * rows[:, None, :]).flatten(1)


def count_knots(block: Block, comm: Comm, *, among: Tensor) -> int:
    """Count the knots that the degrees of all ranks' nodes ``among``, (D,) bool, reach. Collective."""
    used = (shares_of_knots(block, _MOST_KNOTS)[among] > 0).any(0).to(torch.int32)
    return int(comm.all_reduce(used, label="scores degrees").nonzero().max()) + 1


def hop_scales(rows: list[Tensor], comm: Comm) -> list[float]:
    """Compute for each hop the factor that scales its rows, (R, F), to mean squared length 1. Collective."""
    here = torch.tensor([[each.square().sum(), each.shape[0]] for each in rows])
    lengths, counts = comm.all_reduce(here, label="gradients ridge").double().unbind(1)
    return (counts.clamp(min=1) / lengths.clamp(min=1e-30)).sqrt().tolist()


def concat_hops(rows: list[Tensor], scales: list[float]) -> Tensor:
    """Concatenate the scaled rows of all hops and a column of ones: K times (R, F) -> (R, K F + 1)."""
    scaled = [scale * each for each, scale in zip(rows, scales, strict=True)]
    return torch.cat([*scaled, rows[0].new_ones(rows[0].shape[0], 1)], 1)


def split_by_hop(head: LinearHead, scales: list[float], *, knots: int) -> tuple[dict[int, Tensor], Tensor]:
    """Split a head on such rows into weights by hop, from 1, each (F, B C), and a bias, (B C,)."""
    of_knot = head.weight.view(knots, -1, head.bias.numel())  # (B, K F + 1, C)
    *hops, ones = of_knot.split([of_knot.shape[1] // len(scales)] * len(scales) + [1], dim=1)
    weights = {
        hop: scale * weight.permute(1, 0, 2).flatten(1)
        for hop, (weight, scale) in enumerate(zip(hops, scales, strict=True), 1)
    }
    return weights, (ones[:, 0] + head.bias).flatten()
