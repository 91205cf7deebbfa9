"""Ranks as processes, on one host or many: a connection between each two of them.

Each connection has a thread that sends and one that receives, and one more thread sends beats to all. A broken
connection ends every wait at once; silence and standstill end them after the deadline (see ``liveness``).
"""

import socket
import struct
import threading
import time
from collections.abc import Sequence

from torch import Tensor

from siafu.comm.errors import (
    CommError,
    ErrorFactory,
    comm_closed,
    failed,
    gone,
    name_rank,
    peer_ended,
)
from siafu.comm.frame_reader import Incoming
from siafu.comm.liveness import Liveness
from siafu.comm.message_frames import FrameKind, wire_bytes
from siafu.comm.meter import BEATS, ByteMeter
from siafu.comm.peers import Acquaintance, gather
from siafu.comm.receive_queue import ReceiveQueue
from siafu.comm.rendezvous import Group, Meet
from siafu.comm.send_queue import Broken, Control, Outbox
from siafu.comm.transport import Envelope, IncomingMessage, PostCallback, Transfer
from siafu.wire import frames
from siafu.wire.heartbeats import Heartbeat, WaitTracker, work_s
from siafu.wire.socket_stream import SocketStream

_BEAT = struct.Struct("<dQi")
_NOBODY = -1
_LINGER_S = 5.0
_MAX_TEXT_BYTES = 1 << 15


def connect(group: Group, meet: Meet | None, *, patience_s: float = 60.0) -> "Mesh":
    """Listen, connect to all ranks and make sure of them; without a board all are on this host. Collective.

    Raises PeerLost where a rank does not come within ``patience_s``, PeerMismatch where one does not fit.
    """
    mesh = Mesh(group, gather(group, meet, patience_s=patience_s))
    mesh.start()
    return mesh


class Mesh:
    """One rank's end of a group of processes."""

    def __init__(self, group: Group, known: dict[int, Acquaintance]) -> None:
        names = {peer: acquaintance.identity.name for peer, acquaintance in known.items()} | {
            group.rank: group.name
        }
        self.rank = group.rank
        self.world_size = group.world_size
        self.hosts = tuple(names[rank] for rank in range(group.world_size))
        self.meter = ByteMeter()
        self.inbox = ReceiveQueue()
        self._waits = WaitTracker[int]()
        self._liveness = Liveness(self.hosts, deadline_s=group.deadline_s)
        self._detector = self._liveness.detector
        self._links = {peer: _Link(self, peer, acquaintance.sock) for peer, acquaintance in known.items()}
        self._lock = threading.Lock()
        self._failure: tuple[int, str, str] | None = (
            None  # the rank that failed first, its phase, its message
        )
        self._ending = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="siafu-comm beats", daemon=True)
        self._closed = False

    def start(self) -> None:
        """Start to send, to receive and to beat."""
        for link in self._links.values():
            link.start()
        self._beating.start()

    def send(self, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False) -> Transfer:
        """Start to send contiguous values, from their own memory unless a copy is asked for."""
        transfer = Transfer(peer)
        self._waits.phase = envelope.label
        loss = self.inbox.error_for(peer)
        if loss is not None:
            transfer.fail(loss)
        elif peer == self.rank:
            self._send_to_self(envelope, values, transfer)
        else:
            self.meter.add(envelope.label, wire_bytes(values.nbytes, values.dim(), envelope.label))
            self._links[peer].outbox.put(envelope, values.clone() if copy else values, transfer)
        return transfer

    def start_receive(self, peer: int, envelope: Envelope, into: Tensor | None = None) -> IncomingMessage:
        """Start to receive."""
        self._waits.phase = envelope.label
        return self.inbox.start_receive(peer, envelope, into)

    def wait(self, transfer: Transfer, phase: str) -> None:
        """Wait until a transfer is done."""
        if not transfer.done.is_set():
            since = self._detector.clock.now()
            with self._waits.waiting_for(transfer.peer, phase):
                while not transfer.done.wait(min(0.25, self._detector.tick_s)):
                    loss = self._liveness.verdict(self.rank, transfer.peer, since)
                    if loss is not None and not transfer.done.is_set():
                        raise loss(phase)
        if transfer.make_error is not None:
            raise transfer.make_error(phase)

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Hand posts of a channel to a callback."""
        self.inbox.listen(channel, callback)

    def record_sent_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Ranks of one owner keep no ledger."""

    def check_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Ranks of one owner trust each other's numbers."""

    def fail(self, message: str) -> None:
        """Tell every peer; a failure that this rank was told of itself is passed on as it was."""
        with self._lock:
            if self._failure is None:
                self._failure = (self.rank, self._waits.current()[1], message)
            origin, where, text = self._failure
        payload = text.encode()[:_MAX_TEXT_BYTES]
        loss = comm_closed(self.rank, self.hosts, why=f"failed: {message}")
        for link in self._links.values():
            link.outbox.refuse(loss)
            link.outbox.urge(Control(FrameKind.ABORT, payload, number=origin, label=where))
        end = time.monotonic() + 1
        for link in self._links.values():
            link.outbox.flush(max(0.0, end - time.monotonic()))
        self.inbox.fail_all(loss)

    def close(self) -> None:
        """Say farewell after all that was sent, and leave no thread and no connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.inbox.fail_all(comm_closed(self.rank, self.hosts))
        for link in self._links.values():
            link.outbox.bid_farewell()
        self._linger()
        self._ending.set()
        for link in self._links.values():
            link.close()
        self._beating.join(_LINGER_S)
        self.inbox.close(timeout_s=_LINGER_S)

    def _linger(self) -> None:
        """Wait until each peer that is still heard of has seen the farewell, for as long as something is sent."""
        linger_s = min(_LINGER_S, self._detector.deadline_s)
        end, sent = time.monotonic() + linger_s, -1
        for peer, link in self._links.items():
            while not (link.answered.wait(0.05) or self._detector.is_silent(peer)) and time.monotonic() < end:
                if (now_sent := sum(link.sent_bytes for link in self._links.values())) != sent:
                    end, sent = time.monotonic() + linger_s, now_sent

    def _send_to_self(self, envelope: Envelope, values: Tensor, transfer: Transfer) -> None:
        arrival = self.inbox.begin_message(self.rank, envelope, tuple(values.shape), values.dtype)
        assert arrival.values is not None
        arrival.values.copy_(values)
        self.inbox.finish_message(arrival, envelope)
        transfer.finish()

    def _beat(self) -> None:
        while True:
            waits_for, phase = self._waits.current()
            moved_bytes = sum(link.sent_bytes + link.received_bytes for link in self._links.values())
            beat = Heartbeat(work_s(), moved_bytes, waits_for, phase)
            self._detector.beat(self.rank, beat)
            for link in self._links.values():
                link.outbox.beat(Control(FrameKind.HEARTBEAT, _pack_beat(beat), label=phase))
            if self._ending.wait(self._detector.tick_s):
                return

    # What links tell.

    @property
    def tick_s(self) -> float:
        """How often a link that cannot send asks whether its peer is lost."""
        return min(0.25, self._detector.tick_s)

    def heard(self, peer: int, *, data: bool) -> None:
        """Something came from a peer."""
        self._detector.heard(peer, data=data)

    def stalled(self, peer: int, stalled_s: float) -> ErrorFactory | None:
        """Why it is in vain to go on sending to a peer; None where it is not."""
        return self._liveness.verdict(self.rank, peer, self._detector.clock.now() - stalled_s)

    def lost(self, peer: int, loss: ErrorFactory) -> None:
        """A peer is lost, and with it the group."""
        self._detector.peers[peer].ended = True
        self.inbox.fail_all(loss)

    def handle(
        self, peer: int, kind: FrameKind, number: int, label: str, payload: bytes
    ) -> ErrorFactory | None:
        """Handle a frame that is no message; returns why nothing more is sent to that peer."""
        match kind:
            case FrameKind.HEARTBEAT:
                self._detector.beat(peer, _unpack_beat(payload, label, self.world_size))
            case FrameKind.CLOSE:
                loss = peer_ended(self.rank, peer, self.hosts)
                self._detector.peers[peer].ended = True
                self.inbox.fail_peer(peer, loss)
                return loss
            case FrameKind.ABORT:
                text, origin = payload.decode(errors="replace"), number % self.world_size
                with self._lock:
                    self._failure = self._failure or (origin, label, text)
                loss = failed(origin, self.hosts, where=label, message=text)
                self.lost(peer, loss)
                return loss
        return None


class _Link:
    """The connection to one peer, with its two threads."""

    def __init__(self, mesh: Mesh, peer: int, sock: socket.socket) -> None:
        self._stream = SocketStream(sock, tick_s=mesh.tick_s)
        self.outbox = Outbox(
            self._stream, tick_s=mesh.tick_s, stalled=self._stalled, broke=self._gone_by, sent=self._sent
        )
        self.answered = threading.Event()  # the peer has seen our farewell, or is gone
        self.sent_bytes = 0
        self.received_bytes = 0
        self._mesh = mesh
        self._peer = peer
        self._incoming = Incoming(self._stream, peer, mesh.inbox, control=self._control, moved=self._moved)
        self._over = False  # nothing more is expected of the peer
        self._threads = [
            threading.Thread(target=run, name=f"siafu-comm {what} rank {peer}", daemon=True)
            for run, what in ((self._send, "to"), (self._receive, "from"))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over = True
        self.outbox.stop()
        self._stream.shut()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LINGER_S)
        self._stream.close()
        self.outbox.abandon(closed(self._mesh.rank, self._mesh.hosts))

    def _send(self) -> None:
        try:
            self.outbox.run()
        except Broken as broken:
            self._break(broken.loss)

    def _receive(self) -> None:
        try:
            self._incoming.run()
        except EOFError:
            self._break(self._gone("its connection closed"))
        except OSError as error:
            self._break(self._gone_by(error))
        except frames.FrameError as error:
            self._break(self._damaged(str(error)))
        except Exception as error:
            self._break(self._damaged(f"{type(error).__name__}: {error}"))

    def _break(self, loss: ErrorFactory) -> None:
        if not self._over:
            self._over = True
            self._mesh.lost(self._peer, loss)
        self.outbox.abandon(loss)
        self.answered.set()

    def _control(self, kind: FrameKind, number: int, label: str, payload: bytes) -> None:
        loss = self._mesh.handle(self._peer, kind, number, label, payload)
        if loss is not None:
            self._over = True
            self.outbox.refuse(loss)
            self.outbox.urge(Control(FrameKind.CLOSE_ACK))
        if loss is not None or kind == FrameKind.CLOSE_ACK:
            self.answered.set()

    def _stalled(self, stalled_s: float) -> ErrorFactory | None:
        return self._mesh.stalled(self._peer, stalled_s)

    def _sent(self, count: int, is_data: bool) -> None:
        if is_data:
            self.sent_bytes += count
        else:
            self._mesh.meter.add(BEATS, count)

    def _moved(self, count: int) -> None:
        self.received_bytes += count
        self._mesh.heard(self._peer, data=count > 0)

    def _gone_by(self, error: OSError) -> ErrorFactory:
        return self._gone(error.strerror or str(error))

    def _gone(self, how: str) -> ErrorFactory:
        return gone(self._mesh.rank, self._peer, self._mesh.hosts, how=how)

    def _damaged(self, what: str) -> ErrorFactory:
        peer, hosts = self._peer, self._mesh.hosts
        text = (
            f"{name_rank(self._mesh.rank, hosts)} cannot use what {name_rank(peer, hosts)} sent: {what}; look at the "
            "network and the memory of both hosts, then resume the run"
        )

        def error(phase: str) -> CommError:
            return FrameError(text, peer=peer, host=hosts[peer], phase=phase)

        return error


def _pack_beat(beat: Heartbeat[int]) -> bytes:
    return _BEAT.pack(beat.work_s, beat.moved_bytes, _NOBODY if beat.waits_for is None else beat.waits_for)


def _unpack_beat(payload: bytes, phase: str, world_size: int) -> Heartbeat[int]:
    if len(payload) != _BEAT.size:
        raise frames.FrameError(f"a heartbeat of {len(payload)} bytes; expected {_BEAT.size}")
    work, moved_bytes, waits_for = _BEAT.unpack(payload)
    if not _NOBODY <= waits_for < world_size:
        raise frames.FrameError(f"a heartbeat that waits for rank {waits_for} in a group of {world_size}")
    return Heartbeat(work, moved_bytes, None if waits_for == _NOBODY else waits_for, phase)
