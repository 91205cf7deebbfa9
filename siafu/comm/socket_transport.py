"""Transport between ranks that are processes, on one host or many: a connection between each two of them.

Each connection has a sender and a receiver thread; one more thread sends heartbeats to all peers. A broken connection
ends every wait at once. Silent and stuck peers end waits after the deadline (see ``liveness``).
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
    PeerProtocolError,
    comm_closed,
    connection_lost,
    format_rank,
    peer_ended,
    peer_failed,
)
from siafu.comm.frame_reader import FrameReader
from siafu.comm.liveness import Liveness
from siafu.comm.message_frames import FrameKind, wire_bytes
from siafu.comm.meter import BEATS, ByteMeter
from siafu.comm.peers import PeerConnection, connect_peers
from siafu.comm.receive_queue import ReceiveQueue
from siafu.comm.rendezvous import GroupConfig, RendezvousStore
from siafu.comm.send_queue import ConnectionBroken, ControlFrame, SendQueue
from siafu.comm.transport import Envelope, IncomingMessage, PostCallback, Transfer
from siafu.wire import frames
from siafu.wire.heartbeats import Heartbeat, WaitTracker, work_s
from siafu.wire.socket_stream import SocketStream

_HEARTBEAT = struct.Struct("<dQi")
_NO_PEER = -1
_LINGER_S = 5.0
_MAX_TEXT_BYTES = 1 << 15  # of the reason for a failure


def connect_sockets(
    group: GroupConfig, store: RendezvousStore | None, *, timeout_s: float = 60.0
) -> "SocketTransport":
    """Connect to all ranks of a group and authenticate them. Collective.

    Without a ``store`` all ranks must be on this host. Raises PeerLost if a rank does not connect within
    ``timeout_s``, and PeerMismatch if one does not fit.
    """
    transport = SocketTransport(group, connect_peers(group, store, timeout_s=timeout_s))
    transport.start()
    return transport


class SocketTransport:
    """The transport of one rank in a group of processes."""

    shares_labels = True

    def __init__(self, group: GroupConfig, known: dict[int, PeerConnection]) -> None:
        names = {peer: connection.identity.name for peer, connection in known.items()} | {
            group.rank: group.name
        }
        self.rank = group.rank
        self.world_size = group.world_size
        self.hosts = tuple(names[rank] for rank in range(group.world_size))
        self.meter = ByteMeter()
        self.receive_queue = ReceiveQueue()
        self._waits = WaitTracker[int]()
        self._liveness = Liveness(self.hosts, deadline_s=group.deadline_s)
        self._detector = self._liveness.detector
        self._links = {peer: _PeerLink(self, peer, connection.sock) for peer, connection in known.items()}
        self._lock = threading.Lock()
        self._failure: tuple[int, str, str] | None = None  # rank, phase and message of the first failure
        self._ending = threading.Event()
        self._heartbeat_thread = threading.Thread(
            target=self._send_heartbeats, name="siafu-comm beats", daemon=True
        )
        self._closed = False

    def start(self) -> None:
        """Start the threads that send, receive and send heartbeats."""
        for link in self._links.values():
            link.start()
        self._heartbeat_thread.start()

    def send(self, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False) -> Transfer:
        """Start to send contiguous values, from their own memory unless ``copy``."""
        transfer = Transfer(peer)
        self._waits.phase = envelope.label
        make_error = self.receive_queue.error_for(peer)
        if make_error is not None:
            transfer.fail(make_error)
        elif peer == self.rank:
            self._send_to_self(envelope, values, transfer)
        else:
            self.meter.add(envelope.label, wire_bytes(values.nbytes, values.dim(), envelope.label))
            self._links[peer].send_queue.put(envelope, values.clone() if copy else values, transfer)
        return transfer

    def start_receive(self, peer: int, envelope: Envelope, into: Tensor | None = None) -> IncomingMessage:
        """Start to receive."""
        self._waits.phase = envelope.label
        return self.receive_queue.start_receive(peer, envelope, into)

    def wait(self, transfer: Transfer, phase: str) -> None:
        """Wait until a transfer is done."""
        if not transfer.done.is_set():
            since = self._detector.clock.now()
            with self._waits.waiting_for(transfer.peer, phase):
                while not transfer.done.wait(min(0.25, self._detector.tick_s)):
                    make_error = self._liveness.suspect_error(self.rank, transfer.peer, since)
                    if make_error is not None and not transfer.done.is_set():
                        raise make_error(phase)
        if transfer.make_error is not None:
            raise transfer.make_error(phase)

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Call a function for each post on a channel."""
        self.receive_queue.listen(channel, callback)

    def record_sent_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Do nothing: ranks of one owner keep no egress ledger."""

    def check_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Do nothing: ranks of one owner trust each other's values."""

    def fail(self, message: str) -> None:
        """Report a failure to every peer; if a peer reported one first, pass that one on."""
        with self._lock:
            if self._failure is None:
                self._failure = (self.rank, self._waits.current()[1], message)
            origin, where, text = self._failure
        payload = text.encode()[:_MAX_TEXT_BYTES]
        make_error = comm_closed(self.rank, self.hosts, why=f"failed: {message}")
        for link in self._links.values():
            link.send_queue.fail_queued(make_error)
            link.send_queue.put_urgent(ControlFrame(FrameKind.ABORT, payload, number=origin, label=where))
        end = time.monotonic() + 1
        for link in self._links.values():
            link.send_queue.flush(max(0.0, end - time.monotonic()))
        self.receive_queue.fail_all(make_error)

    def close(self) -> None:
        """Send a CLOSE frame after all data, wait for its acknowledgement, and end all threads and connections."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.receive_queue.fail_all(comm_closed(self.rank, self.hosts))
        for link in self._links.values():
            link.send_queue.send_close()
        self._linger()
        self._ending.set()
        for link in self._links.values():
            link.close()
        self._heartbeat_thread.join(_LINGER_S)
        self.receive_queue.close(timeout_s=_LINGER_S)

    def _linger(self) -> None:
        """Wait until each peer that is not silent has acknowledged the CLOSE frame, as long as data still flows."""
        linger_s = min(_LINGER_S, self._detector.deadline_s)
        end, sent = time.monotonic() + linger_s, -1
        for peer, link in self._links.items():
            while (
                not (link.close_acknowledged.wait(0.05) or self._detector.is_silent(peer))
                and time.monotonic() < end
            ):
                if (now_sent := sum(link.sent_bytes for link in self._links.values())) != sent:
                    end, sent = time.monotonic() + linger_s, now_sent

    def _send_to_self(self, envelope: Envelope, values: Tensor, transfer: Transfer) -> None:
        arrival = self.receive_queue.begin_message(self.rank, envelope, tuple(values.shape), values.dtype)
        assert arrival.values is not None
        arrival.values.copy_(values)
        self.receive_queue.finish_message(arrival, envelope)
        transfer.finish()

    def _send_heartbeats(self) -> None:
        while True:
            waits_for, phase = self._waits.current()
            moved_bytes = sum(link.sent_bytes + link.received_bytes for link in self._links.values())
            beat = Heartbeat(work_s(), moved_bytes, waits_for, phase)
            self._detector.beat(self.rank, beat)
            for link in self._links.values():
                link.send_queue.beat(ControlFrame(FrameKind.HEARTBEAT, _pack_heartbeat(beat), label=phase))
            if self._ending.wait(self._detector.tick_s):
                return

    # Called by links.

    @property
    def tick_s(self) -> float:
        """Seconds between two checks of a blocked link whether its peer is lost."""
        return min(0.25, self._detector.tick_s)

    def heard(self, peer: int, *, data: bool) -> None:
        """Record that something arrived from a peer."""
        self._detector.heard(peer, data=data)

    def stalled(self, peer: int, stalled_s: float) -> ErrorFactory | None:
        """Return the error of a peer that has taken no data for ``stalled_s``; None if sending should go on."""
        return self._liveness.suspect_error(self.rank, peer, self._detector.clock.now() - stalled_s)

    def lost(self, peer: int, make_error: ErrorFactory) -> None:
        """Record that a peer is lost, which ends the group."""
        self._detector.peers[peer].ended = True
        self.receive_queue.fail_all(make_error)

    def handle(
        self, peer: int, kind: FrameKind, number: int, label: str, payload: bytes
    ) -> ErrorFactory | None:
        """Handle a control frame; returns the error of later sends to that peer, or None."""
        match kind:
            case FrameKind.HEARTBEAT:
                self._detector.beat(peer, _unpack_heartbeat(payload, label, self.world_size))
            case FrameKind.CLOSE:
                make_error = peer_ended(self.rank, peer, self.hosts)
                self._detector.peers[peer].ended = True
                self.receive_queue.fail_peer(peer, make_error)
                return make_error
            case FrameKind.ABORT:
                text, origin = payload.decode(errors="replace"), number % self.world_size
                with self._lock:
                    self._failure = self._failure or (origin, label, text)
                make_error = peer_failed(origin, self.hosts, where=label, message=text)
                self.lost(peer, make_error)
                return make_error
        return None


class _PeerLink:
    """The connection to one peer, with its sender and receiver threads."""

    def __init__(self, transport: SocketTransport, peer: int, sock: socket.socket) -> None:
        self._stream = SocketStream(sock, tick_s=transport.tick_s)
        self.send_queue = SendQueue(
            self._stream,
            tick_s=transport.tick_s,
            check_stalled=self._stalled,
            connection_error=self._connection_error,
            on_sent=self._sent,
        )
        self.close_acknowledged = threading.Event()  # the peer has acknowledged our CLOSE frame, or is gone
        self.sent_bytes = 0
        self.received_bytes = 0
        self._transport = transport
        self._peer = peer
        self._reader = FrameReader(
            self._stream, peer, transport.receive_queue, control=self._control, moved=self._moved
        )
        self._finished = False  # the end of the connection is no error any more
        self._threads = [
            threading.Thread(target=run, name=f"siafu-comm {what} rank {peer}", daemon=True)
            for run, what in ((self._send, "to"), (self._receive, "from"))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._finished = True
        self.send_queue.stop()
        self._stream.shutdown()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LINGER_S)
        self._stream.close()
        self.send_queue.fail_all(comm_closed(self._transport.rank, self._transport.hosts))

    def _send(self) -> None:
        try:
            self.send_queue.run()
        except ConnectionBroken as broken:
            self._fail_link(broken.make_error)

    def _receive(self) -> None:
        try:
            self._reader.run()
        except EOFError:
            self._fail_link(self._connection_lost("its connection closed"))
        except OSError as error:
            self._fail_link(self._connection_error(error))
        except frames.FrameError as error:
            self._fail_link(self._protocol_error(str(error)))
        except Exception as error:
            self._fail_link(self._protocol_error(f"{type(error).__name__}: {error}"))

    def _fail_link(self, make_error: ErrorFactory) -> None:
        if not self._finished:
            self._finished = True
            self._transport.lost(self._peer, make_error)
        self.send_queue.fail_all(make_error)
        self.close_acknowledged.set()

    def _control(self, kind: FrameKind, number: int, label: str, payload: bytes) -> None:
        make_error = self._transport.handle(self._peer, kind, number, label, payload)
        if make_error is not None:
            self._finished = True
            self.send_queue.fail_queued(make_error)
            self.send_queue.put_urgent(ControlFrame(FrameKind.CLOSE_ACK))
        if make_error is not None or kind == FrameKind.CLOSE_ACK:
            self.close_acknowledged.set()

    def _stalled(self, stalled_s: float) -> ErrorFactory | None:
        return self._transport.stalled(self._peer, stalled_s)

    def _sent(self, count: int, is_data: bool) -> None:
        if is_data:
            self.sent_bytes += count
        else:
            self._transport.meter.add(BEATS, count)

    def _moved(self, count: int) -> None:
        self.received_bytes += count
        self._transport.heard(self._peer, data=count > 0)

    def _connection_error(self, error: OSError) -> ErrorFactory:
        return self._connection_lost(error.strerror or str(error))

    def _connection_lost(self, how: str) -> ErrorFactory:
        return connection_lost(self._transport.rank, self._peer, self._transport.hosts, how=how)

    def _protocol_error(self, what: str) -> ErrorFactory:
        peer, hosts = self._peer, self._transport.hosts
        text = (
            f"{format_rank(self._transport.rank, hosts)} cannot use what {format_rank(peer, hosts)} sent: {what}; look "
            "at the network and the memory of both hosts, then resume the run"
        )

        def error(phase: str) -> CommError:
            return PeerProtocolError(text, peer=peer, host=hosts[peer], phase=phase)

        return error


def _pack_heartbeat(beat: Heartbeat[int]) -> bytes:
    return _HEARTBEAT.pack(
        beat.work_s, beat.moved_bytes, _NO_PEER if beat.waits_for is None else beat.waits_for
    )


def _unpack_heartbeat(payload: bytes, phase: str, world_size: int) -> Heartbeat[int]:
    if len(payload) != _HEARTBEAT.size:
        raise frames.FrameError(f"a heartbeat of {len(payload)} bytes; expected {_HEARTBEAT.size}")
    work, moved_bytes, waits_for = _HEARTBEAT.unpack(payload)
    if not _NO_PEER <= waits_for < world_size:
        raise frames.FrameError(f"a heartbeat that waits for rank {waits_for} in a group of {world_size}")
    return Heartbeat(work, moved_bytes, None if waits_for == _NO_PEER else waits_for, phase)
