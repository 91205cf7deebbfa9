"""Connections between ranks, before their handshake: Unix sockets on one host, TCP with TLS between hosts.

On one host the peer's user is checked, and addresses are derived from the group's secret: nobody else can guess them,
and no store is needed. Between hosts the addresses are in a store that anybody may write, so they are not trusted:
the handshake authenticates the peer that answers, and its proof covers the certificate of the TLS connection.
"""

import hashlib
import hmac
import json
import os
import socket
import ssl
import struct
import threading
import time
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from siafu.comm.errors import CommError
from siafu.comm.rendezvous import GroupConfig, RendezvousStore
from siafu.wire import tls
from siafu.wire.handshake import HandshakeError, HandshakeUnanswered

PHASE = "meeting"
_RETRY_S = 0.05
_ENCRYPT_HINT = "comm.encrypt must be the same on all ranks"
_MAX_ADDRESS_BYTES = 1024
_MAX_NAME = 255


class RendezvousTimeout(Exception):
    """A rank did not appear in time."""


class DialedConnection(NamedTuple):
    """An outgoing connection to a rank, before the handshake.

    Attributes:
        sock: the connection.
        binding: the fingerprint of the listener's certificate for channel binding, empty without TLS.
    """

    sock: socket.socket
    binding: bytes


class Network(Protocol):
    """Listening and dialling among ranks."""

    def listen(self) -> tuple[socket.socket, str]:
        """Open the listening socket; returns it with its address as text for messages."""
        ...

    def peer_starts_tls(self, sock: socket.socket, *, until: float) -> bool:
        """Peek at the first byte of an accepted connection: True if it begins TLS. Raises HandshakeError."""
        ...

    def wrap(self, sock: socket.socket) -> socket.socket:
        """Wrap an accepted connection in TLS, without exchanging data yet."""
        ...

    def encryption_matches(self, sock: socket.socket) -> bool:
        """Return whether the connection uses TLS if and only if the group encrypts."""
        ...

    def finish_accept(self, sock: socket.socket, *, until: float) -> bytes:
        """Check the peer's user or finish the TLS handshake; returns the channel binding. Raises HandshakeError."""
        ...

    def name(self, peer: int, *, until: float) -> str:
        """Format a peer for messages; waits for its address. Raises RendezvousTimeout."""
        ...

    def dial(self, peer: int, *, limit: float, until: float) -> DialedConnection:
        """Connect to a peer: one attempt ends at ``limit``, the wait for a peer to appear at ``until``.

        Raises RendezvousTimeout, HandshakeError.
        """
        ...


class SingleHostNetwork:
    """Unix sockets in the abstract namespace: they leave no file, and no other host reaches them."""

    def __init__(self, group: GroupConfig) -> None:
        self._group = group

    def listen(self) -> tuple[socket.socket, str]:
        """Listen at the Unix socket of this rank."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.bind(self._address(self._group.rank))
            sock.listen(128)
        except OSError as error:
            sock.close()
            group = self._group
            text = (
                f"rank {group.rank} on {group.name} cannot listen at its Unix socket ({error.strerror}); another "
                "process holds it: end a run that was started twice, or set SIAFU_SECRET, so that nobody can guess it"
            )
            raise CommError(text, peer=-1, host=group.name, phase=PHASE) from None
        return sock, "its Unix socket"

    def peer_starts_tls(self, sock: socket.socket, *, until: float) -> bool:
        """Return False: a Unix socket needs no TLS."""
        return False

    def wrap(self, sock: socket.socket) -> socket.socket:
        """Return the connection unchanged."""
        return sock

    def encryption_matches(self, sock: socket.socket) -> bool:
        """Return True, whether or not ranks encrypt between hosts."""
        return True

    def finish_accept(self, sock: socket.socket, *, until: float) -> bytes:
        """Check the user of the peer's process; the binding is empty."""
        _check_user(sock)
        return b""

    def name(self, peer: int, *, until: float) -> str:
        """Return the name of this host."""
        return self._group.name

    def dial(self, peer: int, *, limit: float, until: float) -> DialedConnection:
        """Connect to a peer and check the user of its process."""
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(max(0.001, limit - time.monotonic()))
                sock.connect(self._address(peer))
                _check_user(sock)
                return DialedConnection(sock, b"")
            except (ConnectionRefusedError, BlockingIOError):  # it does not listen yet, or its queue is full
                sock.close()
            except BaseException:
                sock.close()
                raise
            if time.monotonic() >= until:
                raise RendezvousTimeout
            limit = max(limit, time.monotonic() + 1)
            time.sleep(_RETRY_S)

    def _address(self, rank: int) -> bytes:
        place = hmac.digest(self._group.secret, b"address of rank %d" % rank, hashlib.sha256)
        return b"\0siafu/" + place[:16].hex().encode()


def _check_user(sock: socket.socket) -> None:
    pid, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid():
        raise HandshakeError(f"process {pid} belongs to user {user}, expected user {os.geteuid()}")


class MultiHostNetwork:
    """TCP with TLS; each rank makes a certificate for itself.

    A listener answers with TLS or plain, as the peer begins, so that both can prove the secret and report that
    ``comm.encrypt`` differs. A connection that does not match the own setting is refused in any case.
    """

    def __init__(self, group: GroupConfig, store: RendezvousStore) -> None:
        self._group, self._store = group, store
        self._addresses: dict[int, tuple[str, int, str]] = {}
        self._lock = threading.Lock()
        self._server_tls: tuple[tls.Certificate, ssl.SSLContext] | None = None
        if group.encrypt:
            self._server_identity()  # in advance, so that no handshake waits for it

    def _server_identity(self) -> tuple[tls.Certificate, ssl.SSLContext]:
        """Return the certificate of this rank and its SSL context; make them on first use."""
        from siafu.wire.certificates import self_signed

        with self._lock:
            if self._server_tls is None:
                certificate = self_signed()
                self._server_tls = certificate, certificate.server_context()
            return self._server_tls

    def listen(self) -> tuple[socket.socket, str]:
        """Listen, and publish the address in the store."""
        sock = _listen(self._group.bind)
        address, port = sock.getsockname()[:2]
        try:
            value = json.dumps([address, port, self._group.name]).encode()
            self._store.set(_key(self._group.rank), value)
        except BaseException:
            sock.close()
            raise
        return sock, f"{address} port {port}"

    def peer_starts_tls(self, sock: socket.socket, *, until: float) -> bool:
        """Peek at the peer's first byte."""
        try:
            sock.settimeout(max(0.001, until - time.monotonic()))
            first = sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            raise HandshakeError("it said nothing in time") from None
        except OSError as error:
            raise HandshakeError(f"the connection broke ({error.strerror or error})") from None
        if first == tls.FIRST_BYTE:
            self._server_identity()
        return first == tls.FIRST_BYTE

    def wrap(self, sock: socket.socket) -> socket.socket:
        """Wrap the connection in TLS."""
        return tls.accept(sock, self._server_identity()[1])

    def encryption_matches(self, sock: socket.socket) -> bool:
        """Return whether the connection uses TLS if and only if the group encrypts."""
        return isinstance(sock, ssl.SSLSocket) == self._group.encrypt

    def finish_accept(self, sock: socket.socket, *, until: float) -> bytes:
        """Finish the TLS handshake, if there is one."""
        if not isinstance(sock, ssl.SSLSocket):
            return b""
        try:
            tls.do_handshake(sock, until=until)
        except OSError as error:
            raise HandshakeError(f"no TLS ({_ssl_reason(error)}); {_ENCRYPT_HINT}") from None
        return self._server_identity()[0].fingerprint

    def name(self, peer: int, *, until: float) -> str:
        """Return a peer's host name, which it published itself, and its address."""
        address, port, name = self._address(peer, until=until)
        return f"{name} ({address} port {port})"

    def dial(self, peer: int, *, limit: float, until: float) -> DialedConnection:
        """Connect to a peer and do the TLS handshake."""
        address, port, _ = self._address(peer, until=until)
        sock = socket.create_connection((address, port), timeout=max(0.001, limit - time.monotonic()))
        if not self._group.encrypt:
            return DialedConnection(sock, b"")
        try:
            return DialedConnection(*tls.dial(sock, until=limit))
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise HandshakeUnanswered(f"it closed the connection at once; {_ENCRYPT_HINT}") from None
        except OSError as error:
            raise HandshakeError(f"no TLS ({_ssl_reason(error)}); {_ENCRYPT_HINT}") from None

    def _address(self, peer: int, *, until: float) -> tuple[str, int, str]:
        if peer not in self._addresses:
            try:
                value = self._store.get(_key(peer), timeout_s=max(0.001, until - time.monotonic()))
            except TimeoutError:
                raise RendezvousTimeout from None
            self._addresses[peer] = read_address(value, peer)
        return self._addresses[peer]


def read_address(value: bytes, peer: int) -> tuple[str, int, str]:
    """Parse address, port and host name of a rank from the store; raises HandshakeError for anything else."""
    try:
        address, port, name = json.loads(value[:_MAX_ADDRESS_BYTES])
        ip_address(str(address))
        types = [type(field) for field in (address, port, name)]
        if types == [str, int, str] and 0 < port < 1 << 16 and name.isprintable() and len(name) <= _MAX_NAME:
            return address, port, name
    except (ValueError, TypeError, RecursionError):
        pass
    raise HandshakeError(
        f"the store holds {value[:60]!r} where the address of rank {peer} was expected; somebody else writes there"
    )


def _listen(address: str) -> socket.socket:
    if address in ("", "0.0.0.0", "::"):
        raise ValueError(
            f"cannot listen on {address!r}, which names no interface; give an address that the ranks reach"
        )
    try:
        family, *_, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=128)
    except OSError as error:
        text = f"cannot listen on {address!r} ({error.strerror or error}); expected an address of this host"
        raise CommError(text, peer=-1, host=address, phase=PHASE) from None


def _key(rank: int) -> str:
    return f"siafu/comm/{rank}"


def _ssl_reason(error: OSError) -> str:
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror or str(error)
