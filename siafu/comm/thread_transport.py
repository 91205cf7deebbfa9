"""Transport between ranks that are threads of one process: tensors are copied in memory, no connection is opened.

A wait ends when a peer fails or closes, or when the whole process neither computed nor sent anything for the deadline.
Progress is not attributed to single threads.
"""

import socket
import threading
from collections.abc import Sequence

from torch import Tensor

from siafu.comm.comm import Comm
from siafu.comm.errors import comm_closed, peer_ended, peer_failed
from siafu.comm.liveness import Liveness
from siafu.comm.message_frames import wire_bytes
from siafu.comm.meter import ByteMeter
from siafu.comm.receive_queue import ReceiveQueue
from siafu.comm.transport import Envelope, IncomingMessage, PostCallback, Transfer
from siafu.wire.heartbeats import Heartbeat, WaitTracker, work_s


def connect_threads(world_size: int, *, deadline_s: float = 30.0) -> list[Comm]:
    """Return a Comm for each rank; each must be used and closed by a thread of its own."""
    members: list[ThreadTransport] = []
    liveness = Liveness([socket.gethostname()] * world_size, deadline_s=deadline_s)
    members += [ThreadTransport(rank, members, liveness) for rank in range(world_size)]
    return [Comm(member) for member in members]


def single_rank_comm() -> Comm:
    """Return the Comm of a single rank, whose collectives return at once and send nothing."""
    return connect_threads(1)[0]


class ThreadTransport:
    """The transport of one rank in a group of threads."""

    shares_labels = True

    def __init__(self, rank: int, members: "list[ThreadTransport]", liveness: Liveness) -> None:
        self.rank = rank
        self.hosts = liveness.hosts
        self.world_size = len(liveness.hosts)
        self.meter = ByteMeter()
        self.waits = WaitTracker[int]()
        self.receive_queue = ReceiveQueue()
        self.moved_bytes = 0
        self._members = members
        self._liveness = liveness
        self._closing = threading.Lock()
        self._closed = False

    def send(self, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False) -> Transfer:
        """Copy values into the memory of a peer; the transfer is done on return."""
        transfer = Transfer(peer)
        self.waits.phase = envelope.label
        make_error = self.receive_queue.error_for(peer)
        if make_error is not None:
            transfer.fail(make_error)
            return transfer
        num_bytes = wire_bytes(values.nbytes, values.dim(), envelope.label)
        if peer != self.rank:
            self.meter.add(envelope.label, num_bytes)
        self.moved_bytes += num_bytes
        self._members[peer].take(self.rank, envelope, values)
        transfer.finish()
        return transfer

    def take(self, peer: int, envelope: Envelope, values: Tensor) -> None:
        """Copy values that a peer sends."""
        arrival = self.receive_queue.begin_message(peer, envelope, tuple(values.shape), values.dtype)
        assert arrival.values is not None
        arrival.values.copy_(values)
        self.receive_queue.finish_message(arrival, envelope)

    def start_receive(self, peer: int, envelope: Envelope, into: Tensor | None = None) -> IncomingMessage:
        """Start to receive."""
        self.waits.phase = envelope.label
        return self.receive_queue.start_receive(peer, envelope, into)

    def wait(self, transfer: Transfer, phase: str) -> None:
        """Wait until a transfer is done."""
        if not transfer.done.is_set():
            since = self._liveness.detector.clock.now()
            with self.waits.waiting_for(transfer.peer, phase):
                while not transfer.done.wait(self._liveness.detector.tick_s):
                    self._check_liveness(transfer, since, phase)
        if transfer.make_error is not None:
            raise transfer.make_error(phase)

    def _check_liveness(self, transfer: Transfer, since: float, phase: str) -> None:
        """Raise an error if no rank makes progress; the waiting rank takes the heartbeats of all."""
        work, moved = work_s(), sum(member.moved_bytes for member in self._members)
        for member in self._members:
            waits_for, where = member.waits.current()
            self._liveness.detector.beat(member.rank, Heartbeat(work, moved, waits_for, where))
        make_error = self._liveness.suspect_error(self.rank, transfer.peer, since)
        if make_error is not None and not transfer.done.is_set():
            raise make_error(phase)

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Call a function for each post on a channel."""
        self.receive_queue.listen(channel, callback)

    def record_sent_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Do nothing: ranks of one owner keep no egress ledger."""

    def check_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Do nothing: ranks of one owner trust each other's values."""

    def fail(self, message: str) -> None:
        """End the waits of every rank with an error."""
        _, where = self.waits.current()
        for member in self._members:
            if member is not self:
                member.receive_queue.fail_all(
                    peer_failed(self.rank, self.hosts, where=where, message=message)
                )
        self.receive_queue.fail_all(comm_closed(self.rank, self.hosts, why=f"failed: {message}"))

    def close(self) -> None:
        """End the waits for this rank with an error."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._liveness.detector.peers[self.rank].ended = True
        for member in self._members:
            if member is not self:
                member.receive_queue.fail_peer(self.rank, peer_ended(member.rank, self.rank, self.hosts))
        self.receive_queue.fail_all(comm_closed(self.rank, self.hosts))
        self.receive_queue.close(timeout_s=self._liveness.detector.deadline_s)
