"""Connections between ranks, before their handshake: Unix sockets on one host, TCP with TLS between hosts.

On one host the peer's user is checked, and addresses follow from the group's secret: nobody else can guess them, and no
board is needed. Between hosts the addresses stand on a board that anybody may write. They are only dialled: the
handshake decides who answers, and its proof covers the certificate of the TLS connection.
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
from siafu.comm.rendezvous import Group, Meet
from siafu.wire import tls
from siafu.wire.handshake import HandshakeError, HandshakeUnanswered

PHASE = "meeting"
_AGAIN_S = 0.05
_SAME = "comm.encrypt must be the same on all ranks"
_MAX_ADDRESS_BYTES = 1024
_MAX_NAME = 255


class Absent(Exception):
    """A rank that is called has not come yet, and time is over."""


class Contact(NamedTuple):
    """A connection to a rank that was called, before the handshake.

    Attributes:
        sock: the connection.
        binding: the fingerprint of the listener's certificate, empty without TLS.
    """

    sock: socket.socket
    binding: bytes


class Network(Protocol):
    """The way from rank to rank."""

    def listen(self) -> tuple[socket.socket, str]:
        """Wait for calls: the listening socket, and its place for messages."""
        ...

    def begins_tls(self, sock: socket.socket, *, until: float) -> bool:
        """Whether a caller's first byte is that of TLS; waits for it, leaves it there, and raises HandshakeError."""
        ...

    def wrap(self, sock: socket.socket) -> socket.socket:
        """An accepted connection of a caller that begins TLS, with TLS around it; exchanges nothing."""
        ...

    def suits(self, sock: socket.socket) -> bool:
        """Whether a connection is encrypted where it must be, and only there."""
        ...

    def greet(self, sock: socket.socket, *, until: float) -> bytes:
        """Before the handshake with a caller; returns the binding, raises HandshakeError."""
        ...

    def name(self, peer: int, *, until: float) -> str:
        """How messages speak of a peer that is called; waits for its address and raises Absent."""
        ...

    def dial(self, peer: int, *, limit: float, until: float) -> Contact:
        """Call a peer, for as long as ``limit``; one that is not there may come ``until``. Raises Absent, HandshakeError."""
        ...


class OneHost:
    """Unix sockets in the abstract namespace: no file is left behind, and no other host reaches them."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def listen(self) -> tuple[socket.socket, str]:
        """Wait for calls."""
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

    def begins_tls(self, sock: socket.socket, *, until: float) -> bool:
        """No: the kernel keeps others away from a Unix socket."""
        return False

    def wrap(self, sock: socket.socket) -> socket.socket:
        """As it is."""
        return sock

    def suits(self, sock: socket.socket) -> bool:
        """Whether or not ranks encrypt between hosts."""
        return True

    def greet(self, sock: socket.socket, *, until: float) -> bytes:
        """Check the caller's user."""
        _check_user(sock)
        return b""

    def name(self, peer: int, *, until: float) -> str:
        """A peer on this host."""
        return self._group.name

    def dial(self, peer: int, *, limit: float, until: float) -> Contact:
        """Call a peer and check its user."""
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(max(0.001, limit - time.monotonic()))
                sock.connect(self._address(peer))
                _check_user(sock)
                return Contact(sock, b"")
            except (ConnectionRefusedError, BlockingIOError):  # it does not listen yet, or its queue is full
                sock.close()
            except BaseException:
                sock.close()
                raise
            if time.monotonic() >= until:
                raise Absent
            limit = max(limit, time.monotonic() + 1)
            time.sleep(_AGAIN_S)

    def _address(self, rank: int) -> bytes:
        place = hmac.digest(self._group.secret, b"address of rank %d" % rank, hashlib.sha256)
        return b"\0siafu/" + place[:16].hex().encode()


def _check_user(sock: socket.socket) -> None:
    pid, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid():
        raise HandshakeError(f"process {pid} belongs to user {user}, expected user {os.geteuid()}")


class ManyHosts:
    """TCP, with a TLS certificate that each rank makes for itself.

    A listener answers a caller in the way the caller begins, TLS or plain, so that both can prove the secret and learn
    that ``comm.encrypt`` differs. A connection that does not suit the own setting is refused whatever the peer says.
    """

    def __init__(self, group: Group, meet: Meet) -> None:
        self._group, self._meet = group, meet
        self._addresses: dict[int, tuple[str, int, str]] = {}
        self._lock = threading.Lock()
        self._made: tuple[tls.Certificate, ssl.SSLContext] | None = None
        if group.encrypt:
            self._shown()  # before anybody waits for it

    def _shown(self) -> tuple[tls.Certificate, ssl.SSLContext]:
        """The certificate of this rank, and the TLS settings that show it."""
        from siafu.wire.certificates import self_signed

        with self._lock:
            if self._made is None:
                certificate = self_signed()
                self._made = certificate, certificate.server_context()
            return self._made

    def listen(self) -> tuple[socket.socket, str]:
        """Wait for calls, and leave the address on the board."""
        sock = _listen(self._group.bind)
        address, port = sock.getsockname()[:2]
        try:
            value = json.dumps([address, port, self._group.name]).encode()
            self._meet.set(_key(self._group.rank), value)
        except BaseException:
            sock.close()
            raise
        return sock, f"{address} port {port}"

    def begins_tls(self, sock: socket.socket, *, until: float) -> bool:
        """Look at the caller's first byte."""
        try:
            sock.settimeout(max(0.001, until - time.monotonic()))
            first = sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            raise HandshakeError("it said nothing in time") from None
        except OSError as error:
            raise HandshakeError(f"the connection broke ({error.strerror or error})") from None
        if first == tls.FIRST_BYTE:
            self._shown()
        return first == tls.FIRST_BYTE

    def wrap(self, sock: socket.socket) -> socket.socket:
        """With TLS around it."""
        return tls.accept(sock, self._shown()[1])

    def suits(self, sock: socket.socket) -> bool:
        """Whether it has TLS if ranks encrypt, and none if they do not."""
        return isinstance(sock, ssl.SSLSocket) == self._group.encrypt

    def greet(self, sock: socket.socket, *, until: float) -> bytes:
        """The TLS handshake, if the caller begins one."""
        if not isinstance(sock, ssl.SSLSocket):
            return b""
        try:
            tls.shake(sock, until=until)
        except OSError as error:
            raise HandshakeError(f"no TLS ({_reason(error)}); {_SAME}") from None
        return self._shown()[0].fingerprint

    def name(self, peer: int, *, until: float) -> str:
        """A peer's host by its own word."""
        address, port, name = self._address(peer, until=until)
        return f"{name} ({address} port {port})"

    def dial(self, peer: int, *, limit: float, until: float) -> Contact:
        """Call a peer, and do the TLS handshake."""
        address, port, _ = self._address(peer, until=until)
        sock = socket.create_connection((address, port), timeout=max(0.001, limit - time.monotonic()))
        if not self._group.encrypt:
            return Contact(sock, b"")
        try:
            return Contact(*tls.dial(sock, until=limit))
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise HandshakeUnanswered(f"it closed the connection at once; {_SAME}") from None
        except OSError as error:
            raise HandshakeError(f"no TLS ({_reason(error)}); {_SAME}") from None

    def _address(self, peer: int, *, until: float) -> tuple[str, int, str]:
        if peer not in self._addresses:
            try:
                value = self._meet.get(_key(peer), timeout_s=max(0.001, until - time.monotonic()))
            except TimeoutError:
                raise Absent from None
            self._addresses[peer] = read_address(value, peer)
        return self._addresses[peer]


def read_address(value: bytes, peer: int) -> tuple[str, int, str]:
    """Address, port and host name of a rank, from the board; raises HandshakeError for anything else."""
    try:
        address, port, name = json.loads(value[:_MAX_ADDRESS_BYTES])
        ip_address(str(address))
        types = [type(field) for field in (address, port, name)]
        if types == [str, int, str] and 0 < port < 1 << 16 and name.isprintable() and len(name) <= _MAX_NAME:
            return address, port, name
    except (ValueError, TypeError, RecursionError):
        pass
    raise HandshakeError(
        f"the board says {value[:60]!r} where the address of rank {peer} was expected; somebody else writes there"
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


def _reason(error: OSError) -> str:
    return error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror or str(error)
