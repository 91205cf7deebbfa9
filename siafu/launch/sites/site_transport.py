"""What carries a Comm between sites: a call of frames between each two of them, and a guard at the door of each.

Nobody here decides who is lost: a site says whom it waits for and since when, and the coordinator, who hears that of
all, ends the group. A call that breaks ends it at once, and so does silence of everybody for far too long.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from torch import Tensor

from siafu.comm.errors import (
    CommError,
    ErrorFactory,
    PeerFailed,
    PeerLost,
    PeerProtocolError,
    comm_closed,
    peer_ended,
)
from siafu.comm.message_frames import FrameKind
from siafu.comm.transport import Envelope, IncomingMessage, PostCallback, Transfer
from siafu.launch.sites.egress import Guard
from siafu.launch.sites.frame_stream import FrameDecoder, FrameEncoder, wire_bytes
from siafu.launch.sites.policy import Refused
from siafu.launch.sites.rpc import CallFailed
from siafu.launch.sites.site_inbox import SiteInbox, check_finite
from siafu.wire.frames import FrameError as ProtocolError
from siafu.wire.heartbeats import WaitTracker

_LINGER_S = 5.0
_TICK_S = 0.25


class Link:
    """The frames from and to one other site."""

    def __init__(self, transport: "SiteTransport", peer: int) -> None:
        self._transport, self._peer = transport, peer
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._frames = FrameEncoder()
        self._closing = False
        self._said_bye = False
        self.drained, self.over = threading.Event(), threading.Event()
        self.cut: Callable[[], None] = lambda: None

    def put(self, envelope: Envelope, values: Tensor, transfer: Transfer) -> None:
        """Let a message out and queue it; raises Refused where the guard does."""
        with self._changed:  # frames are numbered in the order in which they are queued
            frames = self._frames.message(envelope, values)
            tensor = f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}"
            names, size = self._transport.hosts, sum(map(wire_bytes, frames))
            self._transport.guard.let_out(names[self._peer], envelope.label, tensor, size, rank=self._peer)
            self._queue += frames
            self._changed.notify_all()
        transfer.finish()

    def say(self, kind: FrameKind) -> None:
        """Queue a last word, after which nothing follows."""
        with self._changed:
            if not self._closing:
                self._closing = True
                frame = self._frames.control(kind)
                name = self._transport.hosts[self._peer]
                with suppress(Refused):  # then it is not said, and the call just ends
                    self._transport.guard.let_out(name, "control", "farewell", wire_bytes(frame))
                    self._queue.append(frame)
                self._changed.notify_all()

    def outgoing(self) -> Iterator[bytes]:
        """The frames as they are queued, until the last word."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue or self._closing or self.over.is_set())
                    if not self._queue:
                        return
                    frame = self._queue.popleft()
                yield frame
        finally:
            self.drained.set()

    def read(self, incoming: Iterator[bytes]) -> None:
        """Take in frames until they end."""
        transport, peer = self._transport, self._peer
        frames = FrameDecoder(peer, transport.inbox)
        try:
            for data in incoming:
                kind = frames.take(data)
                if kind is not None:
                    self._last_word(kind)
        except ProtocolError as error:
            transport.lose(_damaged(transport.rank, peer, transport.hosts, str(error)))
        except Exception as error:  # what gRPC raises when a call is cut off is its own
            how = "its connection broke" if not isinstance(error, CallFailed) else "it does not answer"
            self._end(how)
        else:
            self._end("its connection ended")
        finally:
            self.abandon()
            self.cut()

    def abandon(self) -> None:
        """Send nothing more."""
        with self._changed:
            self.over.set()
            self._queue.clear()
            self._changed.notify_all()

    def _last_word(self, kind: FrameKind) -> None:
        transport, peer = self._transport, self._peer
        self._said_bye = True
        if kind == FrameKind.CLOSE:
            transport.inbox.fail_peer(peer, peer_ended(transport.rank, peer, transport.hosts))
        else:
            transport.lose(_failed(peer, transport.hosts))

    def _end(self, how: str) -> None:
        if not self._said_bye and not self._closing:
            transport = self._transport
            transport.lose(_gone(self._peer, transport.hosts, how))


class SiteTransport:
    """One site's end of a group of sites.

    Attributes:
        rank, world_size: of this site in the group.
        hosts: the names of the sites, by rank.
        guard: what every message passes.
        inbox: what came.
        loss: why the group ended, where it did not end well.
        own_id: (D,) int64, the ids of own rows, for the ledger; None before they are known.
    """

    def __init__(
        self, rank: int, names: Sequence[str], guard: Guard, *, most_bytes: int, limit_s: float
    ) -> None:
        self.rank, self.world_size, self.hosts = rank, len(names), tuple(names)
        self.guard, self.inbox = guard, SiteInbox(most_bytes=most_bytes)
        self.meter = guard.meter
        self.links = {peer: Link(self, peer) for peer in range(len(names)) if peer != rank}
        self._limit_s = limit_s
        self._waits = WaitTracker[int]()
        self._since: dict[int, float] = {}
        self._lock, self._closed = threading.Lock(), False
        self.loss: ErrorFactory | None = None
        self.own_id: Tensor | None = None

    def send(self, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False) -> Transfer:
        """Start to send; bytes are copied in any case."""
        transfer = Transfer(peer)
        self._waits.phase = envelope.label
        loss = self.inbox.error_for(peer)
        if loss is not None:
            transfer.fail(loss)
        else:
            self.links[peer].put(envelope, values, transfer)
        return transfer

    def start_receive(self, peer: int, envelope: Envelope, into: Tensor | None = None) -> IncomingMessage:
        """Start to receive."""
        self._waits.phase = envelope.label
        return self.inbox.start_receive(peer, envelope, into)

    def wait(self, transfer: Transfer, phase: str) -> None:
        """Wait until a transfer is done."""
        if not transfer.done.is_set():
            began = time.monotonic()
            with self._waits.waiting_for(transfer.peer, phase):
                self._since[transfer.peer] = began
                while not transfer.done.wait(_TICK_S):
                    if time.monotonic() - began > self._limit_s:
                        raise _silent(transfer.peer, self.hosts, self._limit_s, phase)
        if transfer.make_error is not None:
            raise transfer.make_error(phase)

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Sites send no posts."""
        raise NotImplementedError

    def record_sent_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Tell the ledger which own rows the next messages of a label hold, by rank."""
        if self.own_id is not None:
            self.guard.record_sent_rows(label, [self.own_id[each] for each in rows])

    def check_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Refuse numbers of another site that are not finite, once they are decoded."""
        for peer, each in enumerate(rows):
            if peer != self.rank:
                try:
                    check_finite(each, label)
                except ProtocolError as error:
                    raise _damaged(self.rank, peer, self.hosts, str(error))(label) from None

    def waiting(self) -> tuple[str, float, str]:
        """Whom this site waits for, for how many seconds, and in which phase; nobody where it works itself."""
        peer, phase = self._waits.current()
        if peer is None:
            return "", 0.0, phase
        return self.hosts[peer], time.monotonic() - self._since.get(peer, time.monotonic()), phase

    def lose(self, loss: ErrorFactory) -> None:
        """The group ends here; the first reason is kept."""
        with self._lock:
            self.loss = self.loss or loss
        self.inbox.fail_all(loss)

    def fail(self, message: str) -> None:
        """Tell every peer that this site fails, and nothing more: the reason may speak of its data."""
        for link in self.links.values():
            link.say(FrameKind.ABORT)
        self.inbox.fail_all(comm_closed(self.rank, self.hosts, why="failed"))

    def close(self) -> None:
        """Say farewell after all that was sent, and end all calls."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.inbox.fail_all(comm_closed(self.rank, self.hosts))
        for link in self.links.values():
            link.say(FrameKind.CLOSE)
        end = time.monotonic() + _LINGER_S
        for link in self.links.values():
            link.drained.wait(max(0.0, end - time.monotonic()))
        for link in self.links.values():
            link.over.wait(max(0.0, end - time.monotonic()))
        for link in self.links.values():
            link.abandon()
            link.cut()
        self.inbox.close(timeout_s=_LINGER_S)


def _silent(peer: int, hosts: Sequence[str], limit_s: float, phase: str) -> CommError:
    text = f'{hosts[peer]} sent nothing for {limit_s:g} s in "{phase}", and no coordinator ended the run'
    return PeerLost(text, peer=peer, host=hosts[peer], phase=phase)


def _gone(peer: int, hosts: Sequence[str], how: str) -> ErrorFactory:
    text = f"site {hosts[peer]} is gone ({how}); the coordinator waits for it, or goes on without it"
    return lambda phase: PeerLost(text, peer=peer, host=hosts[peer], phase=phase)


def _failed(peer: int, hosts: Sequence[str]) -> ErrorFactory:
    text = f"site {hosts[peer]} failed, and its own log says why"
    return lambda phase: PeerFailed(text, peer=peer, host=hosts[peer], phase=phase)


def _damaged(rank: int, peer: int, hosts: Sequence[str], what: str) -> ErrorFactory:
    text = f"{hosts[rank]} cannot use what {hosts[peer]} sent: {what}"
    return lambda phase: PeerProtocolError(text, peer=peer, host=hosts[peer], phase=phase)
