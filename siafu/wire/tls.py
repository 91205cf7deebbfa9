"""TLS 1.3 between peers that authenticate by a secret or a fingerprint, not by a name. Needs only the standard library.

A listener shows a self-signed certificate. The dialling side accepts any certificate in the TLS handshake; it then
compares its fingerprint (:func:`dial`), or binds the proof of a shared secret to it (``wire.handshake``).
"""

import hashlib
import select
import socket
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

FIRST_BYTE = b"\x16"  # of every TLS connection: a record of the handshake
_HANDSHAKE_S = 10.0


@dataclass(frozen=True, repr=False)
class Certificate:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes

    @property
    def fingerprint(self) -> bytes:
        """SHA-256 of the certificate."""
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.certificate.decode())).digest()

    def server_context(self) -> ssl.SSLContext:
        """Return the SSL context of the listener that owns the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.TemporaryDirectory(prefix="siafu-") as folder:  # only its owner can enter it
            both = Path(folder, "both.pem")
            both.write_bytes(self.key + self.certificate)
            context.load_cert_chain(both)
        return context


class WrongCertificate(ValueError):
    """The listener's certificate is not the expected one."""


def accept(sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Wrap an accepted socket in TLS and take it over; call :func:`do_handshake` next."""
    _check_connected(sock)
    return context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)


def do_handshake(secure: ssl.SSLSocket, *, until: float) -> None:
    """Do the TLS handshake; raises TimeoutError at ``until`` (``time.monotonic``), however slow the peer is."""
    timeout_s = secure.gettimeout()
    secure.setblocking(False)
    while True:
        try:
            secure.do_handshake()
            return secure.settimeout(timeout_s)
        except ssl.SSLWantReadError:
            event = select.POLLIN
        except ssl.SSLWantWriteError:
            event = select.POLLOUT
        descriptor = secure.fileno()
        if descriptor < 0:  # by another thread
            raise ConnectionAbortedError("the connection was closed during the TLS handshake")
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(1000 * max(0.0, until - time.monotonic())):
            raise TimeoutError("no TLS handshake in time")


def dial(
    sock: socket.socket, *, fingerprint: bytes | None = None, until: float | None = None
) -> tuple[ssl.SSLSocket, bytes]:
    """Start TLS over a connected socket; returns it with the fingerprint of the listener's certificate.

    Raises WrongCertificate if that is not the given ``fingerprint``. Without one, the caller must bind a proof to it.
    The handshake ends at ``until``, a time of ``time.monotonic``, else after 10 seconds.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = (
        False  # the listener is known by its fingerprint or its secret, whatever its name
    )
    context.verify_mode = ssl.CERT_NONE
    _check_connected(sock)
    secure = context.wrap_socket(sock, do_handshake_on_connect=False)
    try:
        do_handshake(secure, until=time.monotonic() + _HANDSHAKE_S if until is None else until)
    except BaseException:
        secure.close()
        raise
    shown = hashlib.sha256(secure.getpeercert(binary_form=True) or b"").digest()
    if fingerprint is not None and shown != fingerprint:
        secure.close()
        raise WrongCertificate(
            "the listener shows another certificate than expected: somebody stands between, or another run answers"
        )
    return secure, shown


def _check_connected(sock: socket.socket) -> None:
    """Close a socket whose peer is gone: ``wrap_socket`` would fail without closing it."""
    try:
        sock.getpeername()
    except OSError:
        sock.close()
        raise ConnectionResetError("the peer closed the connection") from None
