"""All-reduce (sum) with the same bits on every rank and every transport: a reduce-scatter, then an all-gather.

Each rank adds up one slice, strictly in rank order 0, 1, 2, …, and sends the result to all ranks. The addition runs in
the thread that receives the last slice, so it makes progress even if no rank waits for the result yet.
"""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from siafu.comm.collective import CollectiveCall
from siafu.comm.tensor_bytes import allocate


class AllReduce:
    """An all-reduce under way: (N,) -> (N,)."""

    def __init__(self, call: CollectiveCall, values: Tensor) -> None:
        self._call = call
        self._rank, world_size = call.transport.rank, call.transport.world_size
        self._peers = [(self._rank + step) % world_size for step in range(1, world_size)]
        self._sum = allocate(tuple(values.shape), values.dtype)
        self._mine, self._sums = values.tensor_split(world_size), self._sum.tensor_split(world_size)
        self._slices = {peer: call.start_receive(peer) for peer in self._peers}
        self._results = {peer: call.start_receive(peer, self._sums[peer], stage=1) for peer in self._peers}
        self._lock = threading.Lock()
        self._missing = len(self._peers)
        self._added = threading.Event()
        self._error: BaseException | None = None

    def start(self) -> None:
        """Send slices to the ranks that add them; add this rank's slice once all its terms have arrived."""
        for peer in self._peers:
            self._call.send(peer, self._mine[peer])
        for arrival in self._slices.values():
            arrival.then(self._arrived)

    def finish(self) -> Tensor:
        """Wait for the sum and return it."""
        for arrival in self._slices.values():
            self._call.transport.wait(arrival, self._call.label)
        self._added.wait()  # does not block for long: all terms have arrived
        if self._error is not None:
            raise self._error
        for peer, arrival in self._results.items():
            self._call.collect(arrival, tuple(self._sums[peer].shape), self._sum.dtype)
        self._call.wait_sent()
        return self._sum

    def _arrived(self) -> None:
        with self._lock:
            self._missing -= 1
            last = self._missing == 0
        if last:
            self._add()

    def _add(self) -> None:
        own = self._mine[self._rank]
        try:
            parts = {p: self._call.collect(a, tuple(own.shape), own.dtype) for p, a in self._slices.items()}
            parts[self._rank] = own
            sum_in_rank_order([parts[rank] for rank in sorted(parts)], self._sums[self._rank])
            for peer in self._peers:
                self._call.send(peer, self._sums[self._rank], stage=1)
        except BaseException as error:
            self._error = error  # raised by finish(): this thread belongs to the transport
        finally:
            self._added.set()


def sum_in_rank_order(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    """Compute ``out = parts[0] + parts[1] + …`` in this order, on the calling thread alone: n x (N,) -> (N,)."""
    if out.dtype == torch.bfloat16:
        return _add_bf16(parts, out)
    arrays, target = [part.numpy() for part in parts], out.numpy()
    target[...] = arrays[0]
    for array in arrays[1:]:
        target += array
    return out


def _add_bf16(parts: Sequence[Tensor], out: Tensor) -> Tensor:
    """Add bfloat16, which NumPy lacks; torch does not split pieces this small over several threads."""
    for pieces in zip(out.split(16384), *(part.split(16384) for part in parts), strict=True):
        pieces[0].copy_(pieces[1])
        for piece in pieces[2:]:
            pieces[0].add_(piece)
    return out
