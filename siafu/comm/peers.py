"""Connect the ranks of a group: each rank listens, dials the ranks below it, and accepts those above it.

Connections from strangers are dropped. Their number at once is limited, and each has a few seconds to authenticate.
"""

import socket
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from siafu.comm.errors import PeerLost, PeerMismatch
from siafu.comm.identity import Identity, IdentityMismatch, exchange_identities
from siafu.comm.network import PHASE, MultiHostNetwork, Network, RendezvousTimeout, SingleHostNetwork
from siafu.comm.rendezvous import GroupConfig, RendezvousStore
from siafu.wire.handshake import HandshakeError, HandshakeUnanswered

_HANDSHAKE_S = 10.0
_NOTIFY_S = 5.0  # to show other ranks that this one does not fit
_MAX_EXTRA_CONNECTIONS = 32  # connections at once, beyond one for each rank


class PeerConnection(NamedTuple):
    """A connection to an authenticated rank."""

    sock: socket.socket
    identity: Identity


def connect_peers(
    group: GroupConfig, store: RendezvousStore | None, *, timeout_s: float
) -> dict[int, PeerConnection]:
    """Connect to all other ranks; raises PeerLost if one does not connect in time, PeerMismatch if one does not fit.

    Without a ``store`` all ranks must be on this host.
    """
    until = time.monotonic() + timeout_s
    network = SingleHostNetwork(group) if store is None else MultiHostNetwork(group, store)
    listener = _Listener(group, network, until=until)
    connections: dict[int, PeerConnection] = {}
    try:
        _dial_lower_ranks(group, network, connections, until=until)
        connections.update(listener.wait(timeout_s=timeout_s))
    except BaseException:
        for connection in connections.values():
            connection.sock.close()
        listener.close(keep=False)
        raise
    listener.close(keep=True)
    return connections


class _Listener:
    """Accepts and authenticates connections from the ranks above this one."""

    def __init__(self, group: GroupConfig, network: Network, *, until: float) -> None:
        self._group = group
        self._network = network
        self._until = until
        self._changed = threading.Condition()
        self._connections: dict[int, PeerConnection] = {}
        self._refused = ""
        self._error: IdentityMismatch | None = None
        self._handshakes: dict[socket.socket, threading.Thread] = {}
        self._sock, self._listen_address = network.listen()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="siafu-comm listener", daemon=True)
        self._thread.start()

    def wait(self, *, timeout_s: float) -> dict[int, PeerConnection]:
        wanted = self._group.world_size - 1 - self._group.rank
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or len(self._connections) == wanted,
                max(0.0, self._until - time.monotonic()),
            )
            if self._error is not None:
                raise _mismatch(str(self._error))
            if len(self._connections) < wanted:
                raise self._missing(timeout_s)
            return dict(self._connections)

    def close(self, *, keep: bool) -> None:
        with self._changed:
            self._closing = True
            handshakes = dict(self._handshakes)
            connections = {connection.sock for connection in self._connections.values()}
        for sock in (
            {self._sock, *handshakes} - connections if keep else {self._sock, *handshakes, *connections}
        ):
            _shut_down(sock)
        for thread in (self._thread, *handshakes.values()):
            thread.join(_HANDSHAKE_S)

    def _missing(self, timeout_s: float) -> PeerLost:
        group = self._group
        missing = [rank for rank in range(group.rank + 1, group.world_size) if rank not in self._connections]
        names = ", ".join(f"rank {rank}" for rank in missing)
        refused = f" (the last connection that was refused: {self._refused})" if self._refused else ""
        text = (
            f"{names} did not call rank {group.rank} on {group.name} at {self._listen_address} "
            f"within {timeout_s:g} s{refused}; look whether it started and whether its host reaches this one"
        )
        return PeerLost(text, peer=missing[0], host="unknown", phase=PHASE)

    def _accept(self) -> None:
        while True:
            try:
                raw, address = self._sock.accept()
            except OSError:  # closed
                return
            caller = address[0] if address else "this host"
            thread = threading.Thread(
                target=self._handle_connection, args=(raw, caller), name="siafu-comm handshake", daemon=True
            )
            with self._changed:
                full = (
                    self._closing or len(self._handshakes) >= self._group.world_size + _MAX_EXTRA_CONNECTIONS
                )
                if not full:
                    self._handshakes[raw] = thread
                    thread.start()
            if full:
                raw.close()

    def _handle_connection(self, sock: socket.socket, address: str) -> None:
        keep = False
        try:
            until = min(self._until, time.monotonic() + _HANDSHAKE_S)
            if self._network.peer_starts_tls(sock, until=until):
                sock = self._wrap(sock)
            binding, encryption_matches = (
                self._network.finish_accept(sock, until=until),
                self._network.encryption_matches(sock),
            )
            identity = exchange_identities(
                sock,
                self._group,
                listening=True,
                until=until,
                binding=binding,
                encryption_matches=encryption_matches,
            )
            keep = self._admit(PeerConnection(sock, identity))
        except HandshakeError as error:
            self._record(refused=f"from {address}: {error}")
        except IdentityMismatch as error:
            self._record(error=error)
        finally:
            if not keep:
                _shut_down(sock)
            with self._changed:
                if not self._closing:
                    del self._handshakes[sock]

    def _wrap(self, raw: socket.socket) -> socket.socket:
        """Wrap an accepted connection in TLS and replace it in the table that :meth:`close` reads."""
        with self._changed:
            try:
                sock = self._network.wrap(raw)
            except OSError:
                raise HandshakeError("it closed the connection") from None
            if not self._closing:
                self._handshakes[sock] = self._handshakes.pop(raw)
            else:
                _shut_down(sock)
            return sock

    def _admit(self, connection: PeerConnection) -> bool:
        with self._changed:
            if self._closing:
                return False
            rank = connection.identity.rank
            if rank in self._connections:
                first = self._connections[rank].identity.name
                self._error = IdentityMismatch(
                    f"two processes, on {first} and on {connection.identity.name}, both say that they are "
                    f"rank {rank}; start each rank once"
                )
            else:
                self._connections[rank] = connection
            self._changed.notify_all()
            return self._connections[rank] is connection

    def _record(self, *, refused: str = "", error: IdentityMismatch | None = None) -> None:
        with self._changed:
            self._refused = refused or self._refused
            self._error = self._error or error
            self._changed.notify_all()


def _dial_lower_ranks(
    group: GroupConfig, network: Network, connections: dict[int, PeerConnection], *, until: float
) -> None:
    """Connect to all ranks below this one.

    If one does not fit, the others are still dialled for a moment, so that they fail too and need not wait.
    """
    refused: PeerMismatch | None = None
    for peer in range(group.rank):
        try:
            connections[peer] = _dial_until_answered(group, network, peer, until=until)
        except PeerMismatch as error:
            if refused is None:
                refused, until = error, min(until, time.monotonic() + _NOTIFY_S)
        except PeerLost:
            if refused is None:
                raise
    if refused is not None:
        raise refused


def _dial_until_answered(group: GroupConfig, network: Network, peer: int, *, until: float) -> PeerConnection:
    """Connect to a rank below this one; retry while its listener is busy."""
    began, me, where = time.monotonic(), f"rank {group.rank} on {group.name}", f"rank {peer}"
    while True:
        try:
            where = f"rank {peer} on {network.name(peer, until=until)}"
            return _dial(group, network, peer, until=until)
        except RendezvousTimeout:
            text = (
                f"rank {peer} did not come within {until - began:.3g} s to meet {me}; check that it started"
            )
            raise PeerLost(text, peer=peer, host="unknown", phase=PHASE) from None
        except IdentityMismatch as error:
            raise _mismatch(str(error), peer=peer) from None
        except (OSError, HandshakeUnanswered) as error:
            if time.monotonic() + 0.1 < until and isinstance(error, HandshakeUnanswered):
                time.sleep(0.1)  # its listener had too many connections
                continue
            text = f"{me} cannot reach {where}: {error}; look whether it still runs, and at the firewall between them"
            raise PeerLost(text, peer=peer, host="unknown", phase=PHASE) from None
        except HandshakeError as error:
            text = f"{me} called {where}, but what answered is no rank of this group: {error}"
            raise _mismatch(text, peer=peer) from None


def _dial(group: GroupConfig, network: Network, peer: int, *, until: float) -> PeerConnection:
    limit = min(until, time.monotonic() + _HANDSHAKE_S)
    sock, binding = network.dial(peer, limit=limit, until=until)
    try:
        limit = min(until, time.monotonic() + _HANDSHAKE_S)
        identity = exchange_identities(sock, group, listening=False, until=limit, binding=binding)
        if identity.rank != peer:
            raise IdentityMismatch(f"{identity} answered where rank {peer} was called; start the run again")
    except BaseException:
        sock.close()
        raise
    return PeerConnection(sock, identity)


def _mismatch(text: str, *, peer: int = -1, host: str = "unknown") -> PeerMismatch:
    return PeerMismatch(text, peer=peer, host=host, phase=PHASE)


def _shut_down(sock: socket.socket) -> None:
    """Close a socket and wake a thread that reads from it."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # SSLSocket's own would drop its state
    sock.close()
