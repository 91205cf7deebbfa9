"""Ranks as threads of one process: tensors are copied from the one's memory to the other's, no connection is opened.

A wait ends when a peer fails or closes, or when the whole process neither computed nor sent anything for the deadline;
which thread computes is not asked.
"""

import socket
import threading
from collections.abc import Sequence

from torch import Tensor

from siafu.comm.comm import Comm
from siafu.comm.errors import closed, ended, failed
from siafu.comm.frames import wire_bytes
from siafu.comm.inbox import Inbox
from siafu.comm.liveness import Liveness
from siafu.comm.meter import Meter
from siafu.comm.transport import Arrival, Envelope, Listener, Ticket
from siafu.wire.heartbeats import Heartbeat, Waits, work_s


def connect_threads(world_size: int, *, deadline_s: float = 30.0) -> list[Comm]:
    """A Comm for each rank; each is to be used by a thread of its own, and closed by it."""
    members: list[ThreadTransport] = []
    liveness = Liveness([socket.gethostname()] * world_size, deadline_s=deadline_s)
    members += [ThreadTransport(rank, members, liveness) for rank in range(world_size)]
    return [Comm(member) for member in members]


def alone() -> Comm:
    """A Comm of one rank: it answers, and moves no byte."""
    return connect_threads(1)[0]


class ThreadTransport:
    """One rank's end of a group of threads."""

    def __init__(self, rank: int, members: "list[ThreadTransport]", liveness: Liveness) -> None:
        self.rank = rank
        self.hosts = liveness.hosts
        self.world_size = len(liveness.hosts)
        self.meter = Meter()
        self.waits = Waits[int]()
        self.inbox = Inbox()
        self.moved_bytes = 0
        self._members = members
        self._liveness = liveness
        self._closing = threading.Lock()
        self._closed = False

    def send(self, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False) -> Ticket:
        """Copy values into the memory of a peer; it is done on return."""
        ticket = Ticket(peer)
        self.waits.phase = envelope.label
        loss = self.inbox.loss_of(peer)
        if loss is not None:
            ticket.fail(loss)
            return ticket
        num_bytes = wire_bytes(values.nbytes, values.dim(), envelope.label)
        if peer != self.rank:
            self.meter.add(envelope.label, num_bytes)
        self.moved_bytes += num_bytes
        self._members[peer].take(self.rank, envelope, values)
        ticket.finish()
        return ticket

    def take(self, peer: int, envelope: Envelope, values: Tensor) -> None:
        """Copy what a peer sends."""
        arrival = self.inbox.arriving(peer, envelope, tuple(values.shape), values.dtype)
        assert arrival.values is not None
        arrival.values.copy_(values)
        self.inbox.arrived(arrival, envelope)

    def expect(self, peer: int, envelope: Envelope, into: Tensor | None = None) -> Arrival:
        """Start to receive."""
        self.waits.phase = envelope.label
        return self.inbox.expect(peer, envelope, into)

    def wait(self, ticket: Ticket, phase: str) -> None:
        """Wait until a ticket is done."""
        if not ticket.done.is_set():
            since = self._liveness.detector.clock.now()
            with self.waits.entered(ticket.peer, phase):
                while not ticket.done.wait(self._liveness.detector.tick_s):
                    self._judge(ticket, since, phase)
        if ticket.loss is not None:
            raise ticket.loss(phase)

    def _judge(self, ticket: Ticket, since: float, phase: str) -> None:
        """Raise where nothing has moved for too long; whoever waits listens to all ranks."""
        work, moved = work_s(), sum(member.moved_bytes for member in self._members)
        for member in self._members:
            waits_for, where = member.waits.current()
            self._liveness.detector.beat(member.rank, Heartbeat(work, moved, waits_for, where))
        loss = self._liveness.verdict(self.rank, ticket.peer, since)
        if loss is not None and not ticket.done.is_set():
            raise loss(phase)

    def listen(self, channel: int, callback: Listener) -> None:
        """Hand posts of a channel to a callback."""
        self.inbox.listen(channel, callback)

    def rows_told(self, label: str, rows: Sequence[Tensor]) -> None:
        """Ranks of one owner keep no ledger."""

    def check_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Ranks of one owner trust each other's numbers."""

    def fail(self, message: str) -> None:
        """End the waits of every rank."""
        _, where = self.waits.current()
        for member in self._members:
            if member is not self:
                member.inbox.break_off(failed(self.rank, self.hosts, where=where, message=message))
        self.inbox.break_off(closed(self.rank, self.hosts, why=f"failed: {message}"))

    def close(self) -> None:
        """End the waits for this rank."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._liveness.detector.peers[self.rank].ended = True
        for member in self._members:
            if member is not self:
                member.inbox.end(self.rank, ended(member.rank, self.rank, self.hosts))
        self.inbox.break_off(closed(self.rank, self.hosts))
        self.inbox.close(timeout_s=self._liveness.detector.deadline_s)
