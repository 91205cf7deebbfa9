"""TLS between peers: version 1.3 only, and certificates that are checked by their fingerprint."""

import ssl
import time

import pytest
from connections import both, plain_pair, secure_pair

from siafu.wire.certificates import self_signed
from siafu.wire.tls import WrongCertificate, accept, dial, do_handshake


def test_a_listener_with_another_certificate_is_refused() -> None:
    with plain_pair() as (caller, listener):
        context = self_signed().server_context()

        def listen() -> bytes:
            with context.wrap_socket(listener, server_side=True) as secure:
                return secure.recv(100)

        found = both(lambda: dial(caller, fingerprint=self_signed().fingerprint), listen)
    assert isinstance(found[0], WrongCertificate)
    assert not found[1] or isinstance(found[1], OSError)  # not a byte was said


def test_both_sides_agree_on_tls_1_3_and_on_the_fingerprint() -> None:
    certificate = self_signed("run")
    with secure_pair(certificate) as (caller, listener):
        assert isinstance(caller, ssl.SSLSocket)
        assert caller.version() == "TLSv1.3"
        caller.sendall(b"hello")
        assert listener.recv(100) == b"hello"


def test_nothing_before_tls_1_3_is_agreed_on() -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode, old.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    context = self_signed().server_context()
    with plain_pair() as (caller, listener):
        found = both(lambda: old.wrap_socket(caller), lambda: context.wrap_socket(listener, server_side=True))
    assert all(isinstance(each, OSError) for each in found)


def test_a_certificate_does_not_show_its_key() -> None:
    made = self_signed()
    assert "PRIVATE" not in repr(made)
    with pytest.raises(AttributeError):
        made.key = b""  # type: ignore[misc]


def test_a_connection_that_another_thread_closes_during_the_handshake_is_an_error_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with plain_pair() as (_, listener):
        secure = accept(listener, self_signed().server_context())

        def closed_meanwhile(self: ssl.SSLSocket) -> None:
            self.close()
            raise ssl.SSLWantReadError

        monkeypatch.setattr(ssl.SSLSocket, "do_handshake", closed_meanwhile)
        with pytest.raises(ConnectionAbortedError, match="closed during the TLS handshake"):
            do_handshake(secure, until=time.monotonic() + 10)
