"""Who sends which rows to whom: made once for a partition, the same for every layer and both directions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Route:
    """The rows that one rank sends, and how many it gets.

    Attributes:
        index: (sum(send),) int64, own rows grouped by the rank that gets them.
        send: rows sent to each rank.
        recv: rows that come from each rank; they are the halo, in this order.
    """

    index: Tensor
    send: tuple[int, ...]
    recv: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.index.numel() != sum(self.send) or len(self.send) != len(self.recv):
            raise ValueError(
                f"a route of {self.index.numel()} rows sends {sum(self.send)} to {len(self.send)} ranks and hears "
                f'from {len(self.recv)}; make the partition again with "siafu partition"'
            )

    def assemble_halo(self, came: Sequence[Tensor], *, label: str) -> Tensor:
        """The halo of what came from each rank under a label: P x (R, F) -> (sum(recv), F)."""
        return torch.cat(list(came))

    def missing_rows(self, *, label: str, width: int) -> Tensor | None:
        """Of which halo rows nothing is known, (H,) bool; None where something is of all."""
        return None


def empty_route() -> Route:
    """The route of a lone rank."""
    return Route(torch.empty(0, dtype=torch.int64), (0,), (0,))
