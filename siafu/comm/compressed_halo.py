"""Rows of the halo that travel packed: in the fewest bytes that give them back exactly."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from siafu import native
from siafu.comm.comm import Comm
from siafu.comm.compression import unpack
from siafu.comm.halo import Halo
from siafu.comm.route import Route
from siafu.graph import Fetch


def exchange_rows(
    comm: Comm, route: Route, x_own: Tensor, *, label: str, own_row: Tensor | None = None
) -> Tensor:
    """The rows that a route brings: (D, F) float32 or float64 -> (sum(recv), F). Collective.

    ``own_row`` says which own rows those are that the route sends, where its index does not.
    """
    return start_row_exchange(comm, route, x_own, label=label, own_row=own_row)()


def start_row_exchange(
    comm: Comm, route: Route, x_own: Tensor, *, label: str, own_row: Tensor | None = None
) -> Callable[[], Tensor]:
    """Start :func:`carry`; the function waits for it. Collective."""
    comm.record_sent_rows(label, (route.index if own_row is None else own_row).split(list(route.send)))
    packed = [pack(native.gather(x_own, index)) for index in route.index.split(list(route.send))]
    sizes = torch.tensor([each.numel() for each in packed])
    ones = [1] * comm.world_size
    due = comm.all_to_all(sizes, ones, ones, label=label).tolist()
    pending = comm.start_all_to_all(torch.cat(packed), sizes.tolist(), due, label=label)
    width, dtype = x_own.shape[1], x_own.dtype

    def finish() -> Tensor:
        came = zip(pending.wait().split(due), route.recv, strict=True)
        rows = [unpack(data, count, width, dtype) for data, count in came]
        comm.check_rows(torch.cat(rows), route.recv, label=label)
        return route.assemble_halo(rows, label=label)

    return finish


def subset_route(comm: Comm, route: Route, wanted: Tensor, *, label: str) -> Route:
    """The route that brings only some rows of the halo: those ``wanted``, (sum(recv),) bool. Collective."""
    asked = [np.packbits(each.numpy()) for each in wanted.split(list(route.recv))]
    due = [-(-count // 8) for count in route.send]
    bits = torch.from_numpy(np.concatenate(asked))
    heard = comm.all_to_all(bits, [each.size for each in asked], due, label=label).split(due)
    told = [
        torch.from_numpy(np.unpackbits(each.numpy(), count=count)).bool()
        for each, count in zip(heard, route.send, strict=True)
    ]
    return Route(
        route.index[torch.cat(told)],
        tuple(int(each.sum()) for each in told),
        tuple(int(each.sum()) for each in wanted.split(list(route.recv))),
    )


class CompressedHalo(Halo):
    """A halo whose rows are never rounded on the way and travel packed; there is nothing to learn from them."""

    def start_fetch(self, x_own: Tensor, how: Fetch) -> Callable[[], Tensor]:
        """Have the rows of the halo brought: (D, F) -> (H, F). Collective."""
        if how == "learning":
            return super().start_fetch(x_own, how)
        return start_row_exchange(self._comm, self._route, x_own.contiguous(), label=self._label)
