"""The transport of a Comm between sites: one streaming call of frames per pair of sites, behind each site's guard.

A site does not decide that another one is lost. It reports which site it waits for and since when; the coordinator,
which gets these reports from all sites, ends the group. A broken call ends the group at once; so does a wait that far
exceeds the deadline.
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
from siafu.launch.sites.egress import EgressGuard
from siafu.launch.sites.frame_stream import FrameDecoder, FrameEncoder, wire_bytes
from siafu.launch.sites.policy import EgressRefused
from siafu.launch.sites.rpc import CallFailed
from siafu.launch.sites.site_inbox import SiteInbox, check_finite
from siafu.wire.frames import FrameError as ProtocolError
from siafu.wire.heartbeats import WaitTracker

_LINGER_S = 5.0
_TICK_S = 0.25


class PeerLink:
    """The streams of frames from and to one other site."""

    def __init__(self, transport: "SiteTransport", peer: int) -> None:
        self._transport, self._peer = transport, peer
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._frames = FrameEncoder()
        self._closing = False
        self._peer_closed = False
        self.drained, self.over = threading.Event(), threading.Event()
        self.cut: Callable[[], None] = lambda: None

    def put(self, envelope: Envelope, values: Tensor, transfer: Transfer) -> None:
        """Have the guard authorise a message, then queue it; raises EgressRefused."""
        with self._changed:  # frames are numbered in the order in which they are queued
            frames = self._frames.message(envelope, values)
            tensor = f"{str(values.dtype).removeprefix('torch.')} {tuple(values.shape)}"
            names, size = self._transport.hosts, sum(map(wire_bytes, frames))
            self._transport.guard.authorize(names[self._peer], envelope.label, tensor, size, rank=self._peer)
            self._queue += frames
            self._changed.notify_all()
        transfer.finish()

    def send_last(self, kind: FrameKind) -> None:
        """Queue the last frame of the stream, ABORT or BYE."""
        with self._changed:
            if not self._closing:
                self._closing = True
                frame = self._frames.control(kind)
                name = self._transport.hosts[self._peer]
                with suppress(EgressRefused):  # then the call ends without this frame
                    self._transport.guard.authorize(name, "control", "farewell", wire_bytes(frame))
                    self._queue.append(frame)
                self._changed.notify_all()

    def outgoing(self) -> Iterator[bytes]:
        """Yield the frames as they are queued, up to the last frame."""
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
        """Read frames until the stream ends."""
        transport, peer = self._transport, self._peer
        frames = FrameDecoder(peer, transport.inbox)
        try:
            for data in incoming:
                kind = frames.take(data)
                if kind is not None:
                    self._on_last_frame(kind)
        except ProtocolError as error:
            transport.end_group(_bad_data(transport.rank, peer, transport.hosts, str(error)))
        except Exception as error:  # gRPC raises errors of its own when a call is cut off
            how = "its connection broke" if not isinstance(error, CallFailed) else "it does not answer"
            self._end(how)
        else:
            self._end("its connection ended")
        finally:
            self.abandon()
            self.cut()

    def abandon(self) -> None:
        """Drop the queue and send nothing more."""
        with self._changed:
            self.over.set()
            self._queue.clear()
            self._changed.notify_all()

    def _on_last_frame(self, kind: FrameKind) -> None:
        transport, peer = self._transport, self._peer
        self._peer_closed = True
        if kind == FrameKind.CLOSE:
            transport.inbox.fail_peer(peer, peer_ended(transport.rank, peer, transport.hosts))
        else:
            transport.end_group(_peer_failed(peer, transport.hosts))

    def _end(self, how: str) -> None:
        if not self._peer_closed and not self._closing:
            transport = self._transport
            transport.end_group(_peer_gone(self._peer, transport.hosts, how))


class SiteTransport:
    """One site's end of a group of sites.

    Attributes:
        rank, world_size: the rank of this site, and the size of the group.
        hosts: the names of the sites, by rank.
        guard: checks and records every message that leaves.
        inbox: holds received messages.
        loss: makes the error with which the group ended; None if it did not fail.
        own_id: (D,) int64, the ids of own rows, for the ledger; None before they are known.
    """

    shares_labels = False

    def __init__(
        self, rank: int, names: Sequence[str], guard: EgressGuard, *, most_bytes: int, limit_s: float
    ) -> None:
        self.rank, self.world_size, self.hosts = rank, len(names), tuple(names)
        self.guard, self.inbox = guard, SiteInbox(most_bytes=most_bytes)
        self.meter = guard.meter
        self.links = {peer: PeerLink(self, peer) for peer in range(len(names)) if peer != rank}
        self._limit_s = limit_s
        self._waits = WaitTracker[int]()
        self._since: dict[int, float] = {}
        self._lock, self._closed = threading.Lock(), False
        self.loss: ErrorFactory | None = None
        self.own_id: Tensor | None = None

    def send(self, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False) -> Transfer:
        """Start to send; the bytes are always copied."""
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
                        raise _peer_silent(transfer.peer, self.hosts, self._limit_s, phase)
        if transfer.make_error is not None:
            raise transfer.make_error(phase)

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Not supported: sites send no posts."""
        raise NotImplementedError

    def record_sent_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Record in the ledger which own rows the next messages of a label hold, by rank."""
        if self.own_id is not None:
            self.guard.record_sent_rows(label, [self.own_id[each] for each in rows])

    def check_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Refuse decoded rows of another site that are not finite."""
        for peer, each in enumerate(rows):
            if peer != self.rank:
                try:
                    check_finite(each, label)
                except ProtocolError as error:
                    raise _bad_data(self.rank, peer, self.hosts, str(error))(label) from None

    def waiting(self) -> tuple[str, float, str]:
        """Return the site that this one waits for ("" if none), for how many seconds, and in which phase."""
        peer, phase = self._waits.current()
        if peer is None:
            return "", 0.0, phase
        return self.hosts[peer], time.monotonic() - self._since.get(peer, time.monotonic()), phase

    def end_group(self, loss: ErrorFactory) -> None:
        """End the group with an error; the first error is kept."""
        with self._lock:
            self.loss = self.loss or loss
        self.inbox.fail_all(loss)

    def fail(self, message: str) -> None:
        """Tell every peer that this site failed, without the reason, which may contain data."""
        for link in self.links.values():
            link.send_last(FrameKind.ABORT)
        self.inbox.fail_all(comm_closed(self.rank, self.hosts, why="failed"))

    def close(self) -> None:
        """Send BYE after all queued messages, and end all calls."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.inbox.fail_all(comm_closed(self.rank, self.hosts))
        for link in self.links.values():
            link.send_last(FrameKind.CLOSE)
        end = time.monotonic() + _LINGER_S
        for link in self.links.values():
            link.drained.wait(max(0.0, end - time.monotonic()))
        for link in self.links.values():
            link.over.wait(max(0.0, end - time.monotonic()))
        for link in self.links.values():
            link.abandon()
            link.cut()
        self.inbox.close(timeout_s=_LINGER_S)


def _peer_silent(peer: int, hosts: Sequence[str], limit_s: float, phase: str) -> CommError:
    text = f'{hosts[peer]} sent nothing for {limit_s:g} s in "{phase}", and no coordinator ended the run'
    return PeerLost(text, peer=peer, host=hosts[peer], phase=phase)


def _peer_gone(peer: int, hosts: Sequence[str], how: str) -> ErrorFactory:
    text = f"site {hosts[peer]} is gone ({how}); the coordinator waits for it, or goes on without it"
    return lambda phase: PeerLost(text, peer=peer, host=hosts[peer], phase=phase)


def _peer_failed(peer: int, hosts: Sequence[str]) -> ErrorFactory:
    text = f"site {hosts[peer]} failed, and its own log says why"
    return lambda phase: PeerFailed(text, peer=peer, host=hosts[peer], phase=phase)


def _bad_data(rank: int, peer: int, hosts: Sequence[str], what: str) -> ErrorFactory:
    text = f"{hosts[rank]} cannot use what {hosts[peer]} sent: {what}"
    return lambda phase: PeerProtocolError(text, peer=peer, host=hosts[peer], phase=phase)
