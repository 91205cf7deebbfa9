"""Authentication by a shared secret: peers without it, and men in the middle, are refused and learn nothing."""

import socket
import struct
import time
from typing import Any

import pytest
from connections import PATIENCE_S, both, plain_pair

from siafu.wire import handshake
from siafu.wire.certificates import self_signed
from siafu.wire.handshake import HandshakeError, HandshakeUnanswered, authenticate
from siafu.wire.tls import Certificate, dial

SECRET = b"only the peers know this one"
CALLER, LISTENER = {"rank": 1}, {"rank": 0}


def shake(sock: socket.socket, *, listening: bool, secret: bytes = SECRET, **given: Any) -> dict[str, Any]:
    until = time.monotonic() + given.pop("seconds", PATIENCE_S)
    identity = given.pop("identity", LISTENER if listening else CALLER)
    try:
        return authenticate(sock, secret, identity, listening=listening, until=until, **given)
    except BaseException:
        sock.close()  # as its owner does
        raise


def test_two_that_hold_the_secret_learn_each_others_identity() -> None:
    with plain_pair() as (caller, listener):
        found = both(lambda: shake(caller, listening=False), lambda: shake(listener, listening=True))
    assert found == (LISTENER, CALLER)


def test_another_secret_is_refused_on_both_sides() -> None:
    with plain_pair() as (caller, listener):
        found = both(
            lambda: shake(caller, listening=False, secret=b"guessed"), lambda: shake(listener, listening=True)
        )
    assert all(isinstance(each, HandshakeError) for each in found)
    assert any("it holds another secret" in str(each) for each in found)


def test_an_empty_secret_is_refused_before_a_byte_is_sent() -> None:
    with plain_pair() as (caller, listener):
        with pytest.raises(ValueError, match="the secret is empty"):
            shake(caller, listening=False, secret=b"")
        assert listener.recv(1) == b""


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"siafu peer?"])
def test_another_protocol_is_refused_at_its_first_wrong_byte_without_an_answer(said: bytes) -> None:
    with plain_pair() as (caller, listener):
        caller.sendall(said)
        with pytest.raises(HandshakeError, match="it speaks another protocol: it began with"):
            shake(listener, listening=True)
        assert _rest(caller) == b""


def _rest(sock: socket.socket) -> bytes:
    """All that still comes; a close with unread bytes resets the connection, after which nothing does."""
    try:
        return sock.recv(100)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("listening", [True, False])
def test_a_silent_peer_is_waited_for_only_until_the_limit(listening: bool) -> None:
    with plain_pair() as (caller, listener), pytest.raises(HandshakeError, match="did not answer in time"):
        shake(listener if listening else caller, listening=listening, seconds=0.05)


def test_a_peer_that_sends_slowly_does_not_get_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(handshake.time, "monotonic", lambda: now[0])

    class Drip:
        """One byte each second."""

        def settimeout(self, seconds: float) -> None:
            assert seconds <= 5

        def recv(self, count: int) -> bytes:
            now[0] += 1
            return handshake._MAGIC[int(now[0]) - 1 : int(now[0])]

        def sendall(self, data: bytes) -> None:
            raise AssertionError("a listener says nothing before the caller has")

    with pytest.raises(HandshakeError, match="did not answer in time"):
        authenticate(Drip(), SECRET, {}, listening=True, until=5)  # type: ignore[arg-type]
    assert now[0] == 5


def test_a_listener_that_hangs_up_at_once_may_have_been_busy() -> None:
    with plain_pair() as (caller, listener):
        listener.close()
        with pytest.raises(HandshakeError) as raised:
            shake(caller, listening=False)
    assert isinstance(raised.value, HandshakeUnanswered) or "broke" in str(raised.value)


def test_an_identity_that_is_too_long_is_not_sent_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with plain_pair() as (caller, listener):
        found = both(
            lambda: shake(caller, listening=False, identity={"name": "x" * 5000}),
            lambda: shake(listener, listening=True),
        )
    assert isinstance(found[0], ValueError)
    assert "expected at most 4096" in str(found[0])

    def long_one(identity: Any, secret: bytes, listening: bool, transcript: bytes) -> bytes:
        body = b" " * 5000
        return struct.pack("<H", len(body)) + body + handshake._signature(secret, listening, transcript, body)

    monkeypatch.setattr(handshake, "_signed", long_one)
    with plain_pair() as (caller, listener):
        found = both(lambda: shake(caller, listening=False), lambda: shake(listener, listening=True))
    assert any("its identity has 5000 bytes" in str(each) for each in found)


def test_recorded_proofs_cannot_be_replayed() -> None:
    with plain_pair() as (caller, listener):
        recorder = Recorder(caller)
        both(lambda: shake(recorder, listening=False), lambda: shake(listener, listening=True))  # type: ignore[arg-type]
    with plain_pair() as (caller, listener):
        caller.sendall(recorder.sent)
        with pytest.raises(HandshakeError, match="another secret, or somebody stands between"):
            shake(listener, listening=True)


def test_a_reflected_proof_is_refused() -> None:
    with plain_pair() as (caller, listener):

        def echo() -> None:
            while data := listener.recv(4096):
                listener.sendall(data)

        found, _ = both(lambda: shake(caller, listening=False), echo)
    assert "another secret, or somebody stands between" in str(found)


class Recorder:
    """A socket that keeps what it sent."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self.sent = sock, b""

    def sendall(self, data: bytes) -> None:
        self.sent += data
        self._sock.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def test_a_man_in_the_middle_cannot_pass_the_proof_on() -> None:
    right, own = self_signed(), self_signed()
    with plain_pair() as (caller, front), plain_pair() as (back, listener):

        def call() -> dict[str, Any]:
            secure, shown = dial(caller)
            with secure:  # its end ends the relay
                return shake(secure, listening=False, binding=shown)

        def listen() -> dict[str, Any]:
            with right.server_context().wrap_socket(listener, server_side=True) as secure:
                return shake(secure, listening=True, binding=right.fingerprint)

        (called, listened), _ = both(lambda: both(call, listen), lambda: _relay(front, back, own))  # type: ignore[misc]
    assert isinstance(called, HandshakeError)
    assert isinstance(listened, HandshakeError)


def _relay(front: socket.socket, back: socket.socket, certificate: Certificate) -> None:
    """Hand on all that either side says, opened."""
    near, (far, _) = certificate.server_context().wrap_socket(front, server_side=True), dial(back)

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(4096):
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()

    both(lambda: pump(near, far), lambda: pump(far, near))


def test_a_relay_with_the_right_certificate_is_accepted() -> None:
    right = self_signed()
    with plain_pair() as (caller, listener):

        def call() -> dict[str, Any]:
            secure, shown = dial(caller, fingerprint=right.fingerprint)
            with secure:
                return shake(secure, listening=False, binding=shown)

        def listen() -> dict[str, Any]:
            with right.server_context().wrap_socket(listener, server_side=True) as secure:
                return shake(secure, listening=True, binding=right.fingerprint)

        assert both(call, listen) == (LISTENER, CALLER)
