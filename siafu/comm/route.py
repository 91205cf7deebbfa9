"""Routes: which rows each rank sends to which rank. A partition has one, for all layers and both directions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Route:
    """The rows that one rank sends to and receives from each rank in a halo exchange.

    Attributes:
        index: (sum(send),) int64, own rows grouped by the rank that receives them.
        send: number of rows sent to each rank.
        recv: number of rows received from each rank; in this order they are the halo.
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
        """Concatenate the rows received from each rank to the halo: P x (R, F) -> (sum(recv), F)."""
        return torch.cat(list(came))

    def missing_rows(self, *, label: str, width: int) -> Tensor | None:
        """Return a mask of the halo rows that were never received, (H,) bool; None if there are none."""
        return None


def empty_route() -> Route:
    """Return the route of a single rank, which has no halo."""
    return Route(torch.empty(0, dtype=torch.int64), (0,), (0,))
