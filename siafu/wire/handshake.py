"""Mutual authentication by a shared secret, over a new connection, before any frame.

Both peers send a random challenge, then an HMAC-SHA256 over both challenges and the certificate of the connection, if
there is one, then a signed identity. The secret never travels, and a proof cannot be replayed. Because the proof covers
the certificate, a man in the middle of a TLS connection cannot pass it on. Every field has a fixed size or a small
limit, and the whole exchange has a time limit. Nothing that a peer sends is used before its proof is checked.

The format is the same in all versions of siafu, so that two versions can tell each other that they differ.
"""

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

_MAGIC = b"siafu peer\n\x00\r\n\xff\x00"  # no text protocol begins like this
_CHALLENGE_BYTES = 32
_HELLO_BYTES = len(_MAGIC) + _CHALLENGE_BYTES
_PROOF_BYTES = 32
_MAX_IDENTITY_BYTES = 4096


class HandshakeError(Exception):
    """Authentication failed: the peer speaks another protocol, does not answer, or does not hold the secret."""


class HandshakeUnanswered(HandshakeError):
    """The peer closed the connection before it sent anything; it may have been busy."""


def authenticate(
    sock: socket.socket,
    secret: bytes,
    identity: Mapping[str, Any],
    *,
    listening: bool,
    until: float,
    binding: bytes = b"",
) -> dict[str, Any]:
    """Authenticate both peers; returns the peer's identity, or raises HandshakeError.

    ``binding`` is the SHA-256 of the listener's certificate, as each side sees it, or empty without TLS (channel
    binding). ``until`` is a time of ``time.monotonic``. The identity is signed JSON; the caller checks its fields.
    """
    if not secret:
        raise ValueError("the secret is empty; expected one that only the peers know")
    challenge = secrets.token_bytes(_CHALLENGE_BYTES)
    try:
        if not listening:
            _send(sock, _MAGIC + challenge, until)
        hello = _read(sock, _HELLO_BYTES, until, begins=_MAGIC)
        if listening:
            _send(
                sock, _MAGIC + challenge, until
            )  # a listener sends nothing before the peer has sent a valid greeting
        challenges = [challenge, hello[len(_MAGIC) :]]
        transcript = b"".join(challenges[::-1] if listening else challenges) + binding  # the caller's first
        _send(sock, _proof(secret, listening, transcript), until)
        if not hmac.compare_digest(
            _read(sock, _PROOF_BYTES, until), _proof(secret, not listening, transcript)
        ):
            raise HandshakeError("it holds another secret, or somebody stands between the two")
        _send(sock, _signed(identity, secret, listening, transcript), until)
        return _read_identity(sock, secret, not listening, transcript, until)
    except TimeoutError:
        raise HandshakeError("it did not answer in time") from None
    except OSError as error:
        raise HandshakeError(f"the connection broke ({error.strerror or error})") from None


def _proof(secret: bytes, listening: bool, transcript: bytes) -> bytes:
    side = b"listener" if listening else b"caller"
    return hmac.digest(secret, b"proof of " + side + transcript, hashlib.sha256)


def _signature(secret: bytes, listening: bool, transcript: bytes, body: bytes) -> bytes:
    side = b"listener" if listening else b"caller"
    return hmac.digest(secret, b"identity of " + side + transcript + body, hashlib.sha256)


def _signed(identity: Mapping[str, Any], secret: bytes, listening: bool, transcript: bytes) -> bytes:
    body = json.dumps(dict(identity)).encode()
    if len(body) > _MAX_IDENTITY_BYTES:
        raise ValueError(f"an identity of {len(body)} bytes; expected at most {_MAX_IDENTITY_BYTES}")
    return struct.pack("<H", len(body)) + body + _signature(secret, listening, transcript, body)


def _read_identity(
    sock: socket.socket, secret: bytes, listening: bool, transcript: bytes, until: float
) -> dict[str, Any]:
    (length,) = struct.unpack("<H", _read(sock, 2, until))
    if length > _MAX_IDENTITY_BYTES:
        raise HandshakeError(f"its identity has {length} bytes")
    body, given = _read(sock, length, until), _read(sock, _PROOF_BYTES, until)
    if not hmac.compare_digest(given, _signature(secret, listening, transcript, body)):
        raise HandshakeError("its identity was damaged on its way")
    try:
        identity = json.loads(body)
    except (ValueError, RecursionError):
        identity = None
    if not isinstance(identity, dict):
        raise HandshakeError("its identity cannot be read")
    return identity


def _send(sock: socket.socket, data: bytes, until: float) -> None:
    _limit(sock, until)
    sock.sendall(data)


def _read(sock: socket.socket, count: int, until: float, *, begins: bytes = b"") -> bytes:
    """Read exactly ``count`` bytes; fail at the first byte that differs from ``begins``."""
    got = b""
    while len(got) < count:
        _limit(sock, until)
        piece = sock.recv(count - len(got))
        if not piece:
            raise (
                HandshakeUnanswered("it closed the connection at once")
                if begins and not got
                else HandshakeError("it closed the connection")
            )
        got += piece
        if got[: len(begins)] != begins[: len(got)]:
            raise HandshakeError(f"it speaks another protocol: it began with {got[:16]!r}")
    return got


def _limit(sock: socket.socket, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
