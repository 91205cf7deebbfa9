"""Two ranks get to know each other over a fresh connection, before any frame.

Both sides send a hello with a random challenge, then prove that they know the group's token (HMAC-SHA256 of both
challenges), then say who they are. Each field has a fixed size or a small limit, and all of it a time limit. Nothing
is believed before the proof. The form of all this stays the same in all versions, so that two versions can tell each
other what they are.
"""

import hashlib
import hmac
import json
import secrets
import socket
import struct
import time
from dataclasses import asdict, dataclass

from siafu.comm.frames import PROTOCOL
from siafu.comm.meet import Group

_MAGIC = b"siafu rank\n\x00\r\n\xff\x00"  # no text protocol begins like this
_CHALLENGE_BYTES = 32
_HELLO_BYTES = len(_MAGIC) + _CHALLENGE_BYTES
_PROOF_BYTES = 32
_MAX_IDENTITY_BYTES = 4096


class Stranger(Exception):
    """The other side of a connection is no rank of this group: it speaks something else or nothing, or has no token."""


class Unanswered(Stranger):
    """The other side closed the connection before it said anything: it may have been busy."""


class Mismatch(Exception):
    """The other side is a rank with the same token, but the two cannot train together."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a rank says of itself."""

    rank: int
    world_size: int
    name: str
    version: str
    protocol: int
    settings: str

    @classmethod
    def of(cls, group: Group) -> "Identity":
        """The identity of this rank."""
        return cls(group.rank, group.world_size, group.name, group.version, PROTOCOL, group.settings)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.name}"


def shake_hands(sock: socket.socket, group: Group, *, listening: bool, until: float) -> Identity:
    """Make sure of the other side; raises Stranger or Mismatch. ``until`` is a time of ``time.monotonic``."""
    challenge = secrets.token_bytes(_CHALLENGE_BYTES)
    try:
        if not listening:
            _send(sock, _MAGIC + challenge, until)
        hello = _read(sock, _HELLO_BYTES, until, begins=_MAGIC)
        if listening:
            _send(sock, _MAGIC + challenge, until)  # not a byte to who does not speak first, and like a rank
        challenges = [challenge, hello[len(_MAGIC) :]]
        transcript = b"".join(challenges[::-1] if listening else challenges)  # the caller's first
        _send(sock, _proof(group.token, listening, transcript), until)
        if not hmac.compare_digest(
            _read(sock, _PROOF_BYTES, until), _proof(group.token, not listening, transcript)
        ):
            raise Stranger("it has another token; both must have been started by the same launch")
        _send(sock, _signed(Identity.of(group), group.token, transcript), until)
        other = _read_identity(sock, group.token, transcript, until)
    except TimeoutError:
        raise Stranger("it did not answer in time") from None
    except OSError as error:
        raise Stranger(f"the connection broke ({error.strerror or error})") from None
    _compare(Identity.of(group), other)
    return other


def _proof(token: bytes, listening: bool, transcript: bytes) -> bytes:
    side = b"listener" if listening else b"caller"
    return hmac.digest(token, side + transcript, hashlib.sha256)


def _signed(identity: Identity, token: bytes, transcript: bytes) -> bytes:
    body = json.dumps(asdict(identity)).encode()
    return struct.pack("<H", len(body)) + body + hmac.digest(token, transcript + body, hashlib.sha256)


def _read_identity(sock: socket.socket, token: bytes, transcript: bytes, until: float) -> Identity:
    (length,) = struct.unpack("<H", _read(sock, 2, until))
    if length > _MAX_IDENTITY_BYTES:
        raise Stranger(f"it describes itself in {length} bytes")
    body, proof = _read(sock, length, until), _read(sock, _PROOF_BYTES, until)
    if not hmac.compare_digest(proof, hmac.digest(token, transcript + body, hashlib.sha256)):
        raise Stranger("its description of itself was damaged on its way")
    try:
        return Identity(**json.loads(body))
    except (ValueError, TypeError):
        raise Stranger("its description of itself cannot be read") from None


def _compare(own: Identity, other: Identity) -> None:
    if other.version != own.version or other.protocol != own.protocol:
        raise Mismatch(
            f"{other} runs siafu {other.version} (protocol {other.protocol}), {own} {own.version} "
            f"(protocol {own.protocol}); install the same version on both"
        )
    if other.world_size != own.world_size:
        raise Mismatch(
            f"{other} belongs to a group of {other.world_size} ranks, {own} to one of {own.world_size}; "
            "start all ranks with the same number"
        )
    if other.settings != own.settings:
        raise Mismatch(
            f"{other} has settings {other.settings!r}, {own} {own.settings!r}; start all ranks with the same settings"
        )
    if other.rank == own.rank or not 0 <= other.rank < own.world_size:
        raise Mismatch(
            f"{own} is called by a rank {other.rank} on {other.name}; each rank must be there once"
        )


def _send(sock: socket.socket, data: bytes, until: float) -> None:
    _limit(sock, until)
    sock.sendall(data)


def _read(sock: socket.socket, count: int, until: float, *, begins: bytes = b"") -> bytes:
    """Exactly so many bytes; a stranger is recognised by the first that is wrong."""
    got = b""
    while len(got) < count:
        _limit(sock, until)
        piece = sock.recv(count - len(got))
        if not piece:
            raise (
                Unanswered("it closed the connection at once")
                if begins and not got
                else Stranger("it closed the connection")
            )
        got += piece
        if got[: len(begins)] != begins[: len(got)]:
            raise Stranger(f"it speaks another protocol: it began with {got[:16]!r}")
    return got


def _limit(sock: socket.socket, until: float) -> None:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
