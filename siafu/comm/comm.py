"""Comm: collectives and point-to-point messages between ranks, over any Transport.

Every rank makes the same collective calls in the same order on a channel; channels are independent of each other. Every
call has a label, a short name of the phase, which is the same on all ranks. Tensors are dense, on the CPU, of any dtype
in ``tensor_bytes.DTYPES`` and of any shape. Results share no memory with arguments.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from siafu.comm.all_reduce import AllReduce, sum_in_rank_order
from siafu.comm.collective import CollectiveCall
from siafu.comm.message_frames import MAX_LABEL_BYTES
from siafu.comm.tensor_bytes import allocate, check_sendable, tensor_from_bytes
from siafu.comm.transport import Envelope, MessageKind, PostCallback, Transport

T = TypeVar("T")
_SMALL_BYTES = 1 << 15  # up to this size an all-reduce is one all-gather: one round, not two
_COPIED_BYTES = 1 << 16  # up to this size a message is copied, so that send() need not wait


class Pending(Generic[T]):
    """A collective under way; its arguments must not change before :meth:`wait` returns."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish: Callable[[], T] | None = finish
        self._result: T

    def wait(self) -> T:
        """Wait for the result; later calls return the same one."""
        if self._finish is not None:
            self._result = self._finish()
            self._finish = None
        return self._result


class Comm:
    """A fixed group of ranks, seen from one of them.

    Attributes:
        rank: this rank, from 0.
        world_size: how many ranks there are.
        hosts: the host of each rank.
        meter: the bytes that this rank sent, on all channels.
        shares_labels: whether labels of single nodes may be sent; not between organisations.
    """

    def __init__(self, transport: Transport, *, name: str = "", channels: "_Channels | None" = None) -> None:
        self.rank = transport.rank
        self.world_size = transport.world_size
        self.hosts = transport.hosts
        self.meter = transport.meter
        self.shares_labels = transport.shares_labels
        self._transport = transport
        self._name = name
        self._number = xxh3_64_intdigest(name.encode())
        self._channels = _Channels() if channels is None else channels
        self._peers = [(self.rank + step) % self.world_size for step in range(1, self.world_size)]
        self._calls = 0
        self._sent = [0] * self.world_size
        self._received = [0] * self.world_size

    def all_to_all(self, rows: Tensor, send: Sequence[int], recv: Sequence[int], *, label: str) -> Tensor:
        """Send ``send[p]`` rows to each rank p; return the received rows in rank order.

        Shapes: (sum(send), …) -> (sum(recv), …).

        Collective: rank p must pass ``send[p]`` of this rank as its ``recv`` of this rank.
        """
        return self.start_all_to_all(rows, send, recv, label=label).wait()

    def start_all_to_all(
        self, rows: Tensor, send: Sequence[int], recv: Sequence[int], *, label: str
    ) -> Pending[Tensor]:
        """Start :meth:`all_to_all`."""
        self._check_counts(rows, send, recv)
        call = self._new_call(label)
        out = allocate((sum(recv), *rows.shape[1:]), rows.dtype)
        dealt, got = rows.detach().contiguous().split(list(send)), out.split(list(recv))
        arrivals = {peer: call.start_receive(peer, got[peer]) for peer in self._peers}
        for peer in self._peers:
            call.send(peer, dealt[peer])
        got[self.rank].copy_(dealt[self.rank])

        def finish() -> Tensor:
            for peer, arrival in arrivals.items():
                call.collect(arrival, tuple(got[peer].shape), out.dtype)
            call.wait_sent()
            return out

        return Pending(finish)

    def all_reduce(self, values: Tensor, *, label: str) -> Tensor:
        """Sum over all ranks, added in rank order 0, 1, 2, …: the same bits on every rank. Collective."""
        return self.start_all_reduce(values, label=label).wait()

    def start_all_reduce(self, values: Tensor, *, label: str) -> Pending[Tensor]:
        """Start :meth:`all_reduce`."""
        check_sendable(values)
        flat, shape = values.detach().contiguous().reshape(-1), tuple(values.shape)
        if flat.nbytes <= _SMALL_BYTES:
            gathering = self._start_all_gather(flat, label=label, shape=tuple(flat.shape))
            return Pending(lambda: sum_in_rank_order(gathering.wait(), torch.empty_like(flat)).reshape(shape))
        if self.world_size == 1:
            copied = allocate(shape, values.dtype).copy_(values.detach())
            return Pending(lambda: copied)
        reduction = AllReduce(self._new_call(label), flat)
        reduction.start()
        return Pending(lambda: reduction.finish().reshape(shape))

    def all_gather(self, values: Tensor, *, label: str) -> list[Tensor]:
        """Return the tensors of all ranks, in rank order; their shapes may differ. Collective."""
        return self._start_all_gather(values, label=label).wait()

    def broadcast(self, values: Tensor | None, *, root: int = 0, label: str) -> Tensor:
        """Return the root's tensor on every rank; arguments of other ranks are ignored. Collective."""
        self._check_peer(root)
        call = self._new_call(label)
        if self.rank != root:
            return call.collect(call.start_receive(root), None, None)
        if values is None:
            raise ValueError(f'rank {root} has nothing to broadcast in "{label}"; expected a tensor')
        check_sendable(values)
        given = values.detach().contiguous()
        for peer in self._peers:
            call.send(peer, given)
        call.wait_sent()
        return allocate(tuple(given.shape), given.dtype).copy_(given)

    def broadcast_text(self, text: str | None, *, root: int = 0, label: str) -> str:
        """Return the root's text on every rank. Collective."""
        given = None if text is None else tensor_from_bytes(text.encode())
        return self.broadcast(given, root=root, label=label).numpy().tobytes().decode()

    def send(self, peer: int, values: Tensor, *, label: str) -> None:
        """Send to one rank, which receives messages in the order in which they were sent."""
        self._check_other(peer)
        check_sendable(values)
        envelope = self._envelope(MessageKind.DIRECT, self._sent[peer], label)
        self._sent[peer] += 1
        small = values.nbytes <= _COPIED_BYTES
        transfer = self._transport.send(peer, envelope, values.detach().contiguous(), copy=small)
        if not small or transfer.make_error is not None:
            self._transport.wait(transfer, label)

    def receive(self, peer: int, *, label: str) -> Tensor:
        """Return the next message that a rank sent to this one with :meth:`send`."""
        self._check_other(peer)
        envelope = self._envelope(MessageKind.DIRECT, self._received[peer], label)
        self._received[peer] += 1
        arrival = self._transport.start_receive(peer, envelope)
        self._transport.wait(arrival, label)
        assert arrival.values is not None
        return arrival.values

    def barrier(self, *, label: str) -> None:
        """Return once every rank has called this. Collective."""
        self.all_gather(torch.empty(0, dtype=torch.uint8), label=label)

    def channel(self, name: str) -> "Comm":
        """Return an independent ordered stream of calls over the same connections; names identify channels."""
        return self._channels.get(f"{self._name}/{name}", self._transport)

    def post(self, peer: int, tag: int, rows: Tensor, *, label: str) -> None:
        """Send a one-sided message to the :meth:`on_post` callback of a rank on this channel; returns at once."""
        self._check_peer(peer)
        check_sendable(rows)
        envelope = self._envelope(MessageKind.POST, tag, label)
        transfer = self._transport.send(peer, envelope, rows.detach().contiguous(), copy=True)
        if transfer.make_error is not None:
            raise transfer.make_error(label)

    def record_sent_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Record which own rows the next messages of a label hold, by rank, if the transport keeps an egress ledger."""
        self._transport.record_sent_rows(label, rows)

    def check_rows(self, rows: Tensor, recv: Sequence[int], *, label: str) -> None:
        """Let the transport check decoded rows, ``recv[p]`` from rank p; its error names their sender."""
        self._transport.check_rows(label, rows.split(list(recv)))

    def on_post(self, callback: PostCallback) -> None:
        """Call ``callback(peer, tag, rows)`` for each post on this channel, in the order of each sender.

        It runs in a thread of its own. If it raises, the next call of this rank raises too.
        """
        self._transport.listen(self._number, callback)

    def fail(self, message: str) -> None:
        """Report to every peer that this rank fails, and why; their waits raise PeerFailed."""
        self._transport.fail(message)

    def close(self) -> None:
        """Leave the group, on all channels; peers that still wait for this rank get an error."""
        self._transport.close()

    def _start_all_gather(
        self, values: Tensor, *, label: str, shape: tuple[int, ...] | None = None
    ) -> Pending[list[Tensor]]:
        check_sendable(values)
        call, given = self._new_call(label), values.detach().contiguous()
        arrivals = {peer: call.start_receive(peer) for peer in self._peers}
        for peer in self._peers:
            call.send(peer, given)

        def finish() -> list[Tensor]:
            got = {peer: call.collect(arrival, shape, given.dtype) for peer, arrival in arrivals.items()}
            call.wait_sent()
            got[self.rank] = allocate(tuple(given.shape), given.dtype).copy_(given)
            return [got[rank] for rank in range(self.world_size)]

        return Pending(finish)

    def _new_call(self, label: str) -> CollectiveCall:
        envelope = self._envelope(MessageKind.COLLECTIVE, self._calls, label)
        self._calls += 1
        return CollectiveCall(self._transport, channel=self._number, number=envelope.number, label=label)

    def _envelope(self, kind: MessageKind, number: int, label: str) -> Envelope:
        if len(label.encode()) > MAX_LABEL_BYTES:
            raise ValueError(
                f"the label {label[:40]!r}… is too long; expected at most {MAX_LABEL_BYTES} bytes"
            )
        return Envelope(kind, self._number, number, label)

    def _check_counts(self, rows: Tensor, send: Sequence[int], recv: Sequence[int]) -> None:
        check_sendable(rows)
        if len(send) != self.world_size or len(recv) != self.world_size or min(*send, *recv) < 0:
            raise ValueError(
                f"send is {list(send)} and recv {list(recv)}; expected {self.world_size} counts each"
            )
        if rows.dim() == 0 or rows.shape[0] != sum(send):
            raise ValueError(f"rows are {tuple(rows.shape)}, but send adds up to {sum(send)}")
        if send[self.rank] != recv[self.rank]:
            raise ValueError(
                f"rank {self.rank} sends itself {send[self.rank]} rows but expects {recv[self.rank]} of itself"
            )

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.world_size:
            raise ValueError(f"there is no rank {peer}; expected one of 0 to {self.world_size - 1}")

    def _check_other(self, peer: int) -> None:
        self._check_peer(peer)
        if peer == self.rank:
            raise ValueError(f"rank {peer} cannot send to itself")


class _Channels:
    """The channels of one rank, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._comms: dict[str, Comm] = {}

    def get(self, name: str, transport: Transport) -> Comm:
        with self._lock:
            if name not in self._comms:
                self._comms[name] = Comm(transport, name=name, channels=self)
            return self._comms[name]
