"""The seed nodes of minibatches, on one rank or several."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from siafu.comm import Comm

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Seeds:
    """The seeds of one rank, numbered among the seeds of all ranks.

    Attributes:
        row: (R,) int64, the rank's own, as rows of what it was given; None where all rows are.
        masked: whether they were given as a mask, and are then known by their rows.
        total: how many there are on all ranks.
        number: (R,) int64, ascending, the number of each own one among all; None where a single rank has them all.
        place: (R,) int64, where the one with each number stands among the own ones; None as above.
    """

    row: Tensor | None
    masked: bool
    total: int
    number: Tensor | None = None
    place: Tensor | None = None

    def own(self, numbers: Tensor) -> Tensor:
        """Return the places of those seeds, of some global numbers, that this rank owns."""
        if self.number is None or self.place is None:
            return numbers
        if not self.number.numel():
            return self.number
        found = torch.searchsorted(self.number, numbers).clamp(max=self.number.numel() - 1)
        return self.place[found[self.number[found] == numbers]]

    def rows(self, place: Tensor) -> Tensor:
        """Return the rows of seeds."""
        return place if self.row is None else self.row[place]

    def input_id(self, place: Tensor) -> Tensor:
        """Return PyG's ``input_id``: the rows of a mask, else the places in the list."""
        return self.rows(place) if self.masked else place


def read_seeds(given: Any, num_rows: int) -> Seeds:
    """Read seeds: None for all rows, a mask, or a list of rows."""
    if given is None:
        return Seeds(None, False, num_rows)
    if isinstance(given, str) or (isinstance(given, tuple) and given and isinstance(given[0], str)):
        raise ValueError(
            f"input_nodes is {given!r}, which names a type of nodes; expected a mask or a list of rows"
        )
    nodes = torch.as_tensor(given).detach().cpu()
    if nodes.dtype == torch.bool:
        if nodes.shape != (num_rows,):
            raise ValueError(
                f"input_nodes is a mask of shape {tuple(nodes.shape)}; expected ({num_rows},), one value a node"
            )
        row = nodes.nonzero()[:, 0]
        return Seeds(row, True, row.numel())
    if nodes.ndim != 1 or (nodes.numel() and nodes.dtype not in _INTEGERS):
        raise ValueError(
            f"input_nodes is {tuple(nodes.shape)} {nodes.dtype}; expected a mask or one dimension of rows"
        )
    row = nodes.long()
    if row.numel() and (int(row.min()) < 0 or int(row.max()) >= num_rows):
        found = int(row.min()) if int(row.min()) < 0 else int(row.max())
        raise ValueError(f"input_nodes names node {found}; expected 0 to {num_rows - 1}")
    return Seeds(row, False, row.numel())


def number_across_ranks(seeds: Seeds, comm: Comm, node_id: Tensor) -> Seeds:
    """Number the seeds among those of all ranks, in the order of the user's ids (D,) of own rows. Collective."""
    ids = node_id if seeds.row is None else node_id[seeds.row]
    everyone = comm.all_gather(ids, label="sample")
    order = torch.cat(everyone).argsort(stable=True)
    number = torch.empty_like(order)
    number[order] = torch.arange(order.numel())
    first = sum(each.numel() for each in everyone[: comm.rank])
    own, place = number[first : first + ids.numel()].sort()
    return Seeds(seeds.row, seeds.masked, order.numel(), own, place)
