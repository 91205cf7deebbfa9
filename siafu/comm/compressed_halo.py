"""Halo exchange with lossless compression (see ``compression``)."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from siafu import native
from siafu.comm.comm import Comm
from siafu.comm.compression import compress_rows, decompress_rows
from siafu.comm.halo import Halo
from siafu.comm.route import Route
from siafu.context import ExchangeMode


def exchange_rows(
    comm: Comm, route: Route, x_own: Tensor, *, label: str, own_row: Tensor | None = None
) -> Tensor:
    """Exchange rows along a route, compressed: (D, F) float32 or float64 -> (sum(recv), F). Collective.

    ``own_row`` gives the own rows that are sent, for the egress ledger; by default they are ``route.index``.
    """
    return start_row_exchange(comm, route, x_own, label=label, own_row=own_row)()


def start_row_exchange(
    comm: Comm, route: Route, x_own: Tensor, *, label: str, own_row: Tensor | None = None
) -> Callable[[], Tensor]:
    """Start :func:`exchange_rows`; the returned function waits for the rows. Collective."""
    comm.record_sent_rows(label, (route.index if own_row is None else own_row).split(list(route.send)))
    packed = [compress_rows(native.gather(x_own, index)) for index in route.index.split(list(route.send))]
    sizes = torch.tensor([each.numel() for each in packed])
    ones = [1] * comm.world_size
    due = comm.all_to_all(sizes, ones, ones, label=label).tolist()
    pending = comm.start_all_to_all(torch.cat(packed), sizes.tolist(), due, label=label)
    width, dtype = x_own.shape[1], x_own.dtype

    def finish() -> Tensor:
        received = zip(pending.wait().split(due), route.recv, strict=True)
        rows = [decompress_rows(data, count, width, dtype) for data, count in received]
        comm.check_rows(torch.cat(rows), route.recv, label=label)
        return route.assemble_halo(rows, label=label)

    return finish


def subset_route(comm: Comm, route: Route, wanted: Tensor, *, label: str) -> Route:
    """Return a route for a subset of the halo rows: the ``wanted`` ones, (sum(recv),) bool. Collective."""
    requests = [np.packbits(each.numpy()) for each in wanted.split(list(route.recv))]
    due = [-(-count // 8) for count in route.send]
    bits = torch.from_numpy(np.concatenate(requests))
    received = comm.all_to_all(bits, [each.size for each in requests], due, label=label).split(due)
    masks = [
        torch.from_numpy(np.unpackbits(each.numpy(), count=count)).bool()
        for each, count in zip(received, route.send, strict=True)
    ]
    return Route(
        route.index[torch.cat(masks)],
        tuple(int(each.sum()) for each in masks),
        tuple(int(each.sum()) for each in wanted.split(list(route.recv))),
    )


class CompressedHalo(Halo):
    """A halo exchange without quantization, whose rows are compressed outside of training passes."""

    def start_gather(self, x_own: Tensor, mode: ExchangeMode) -> Callable[[], Tensor]:
        """Start to gather the halo rows: (D, F) -> (H, F). Collective."""
        if mode == "training":
            return super().start_gather(x_own, mode)
        return start_row_exchange(self._comm, self._route, x_own.contiguous(), label=self._label)
