"""Handshake of two ranks over a new connection: both prove the group's secret and compare their identities."""

import socket
from dataclasses import asdict, dataclass, replace
from typing import Any

from siafu.comm.rendezvous import GroupConfig
from siafu.wire.frames import PROTOCOL
from siafu.wire.handshake import HandshakeError, authenticate


class IdentityMismatch(Exception):
    """The peer holds the same secret but cannot train with this rank: its identity does not fit."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields that two ranks compare before they exchange data."""

    rank: int
    world_size: int
    name: str
    version: str
    protocol: int
    settings: str
    encrypt: bool

    @classmethod
    def of(cls, group: GroupConfig) -> "Identity":
        """Return the identity of this rank."""
        return cls(
            group.rank, group.world_size, group.name, group.version, PROTOCOL, group.settings, group.encrypt
        )

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.name}" if self.name else f"rank {self.rank}"


def exchange_identities(
    sock: socket.socket,
    group: GroupConfig,
    *,
    listening: bool,
    until: float,
    binding: bytes = b"",
    encryption_matches: bool = True,
) -> Identity:
    """Authenticate the peer and return its identity; raises HandshakeError or IdentityMismatch.

    ``until`` and ``binding`` are as in ``wire.handshake``. If not ``encryption_matches`` (the connection is plain but
    this rank encrypts, or the reverse), the result is always IdentityMismatch. A rank that encrypts does not send its
    name and settings over a plain connection.
    """
    own = Identity.of(group)
    shown = replace(own, name="", settings="") if group.encrypt and not encryption_matches else own
    received = authenticate(
        sock, group.secret, asdict(shown), listening=listening, until=until, binding=binding
    )
    other = _parse_identity(received)
    if not encryption_matches or other.encrypt != own.encrypt:
        raise IdentityMismatch(_encryption_mismatch(own, replace(other, encrypt=not own.encrypt)))
    _check_compatible(own, other)
    return other


def _parse_identity(received: dict[str, Any]) -> Identity:
    fields = Identity.__annotations__
    if received.keys() != fields.keys() or any(
        type(received[name]) is not kind for name, kind in fields.items()
    ):
        raise HandshakeError(
            f"it describes itself by {', '.join(sorted(received))}; expected {', '.join(fields)}"
        )
    return Identity(**received)


def _encryption_mismatch(own: Identity, other: Identity) -> str:
    how = {True: "true", False: "false"}
    return (
        f"comm.encrypt is {how[other.encrypt]} at {other}, but {how[own.encrypt]} at {own}; set it to the same on all "
        "ranks"
    )


def _check_compatible(own: Identity, other: Identity) -> None:
    if other.version != own.version or other.protocol != own.protocol:
        raise IdentityMismatch(
            f"{other} runs siafu {other.version} (protocol {other.protocol}), {own} {own.version} "
            f"(protocol {own.protocol}); install the same version on both"
        )
    if other.world_size != own.world_size:
        raise IdentityMismatch(
            f"{other} belongs to a group of {other.world_size} ranks, {own} to one of {own.world_size}; "
            "start all ranks with the same number"
        )
    if other.settings != own.settings:
        raise IdentityMismatch(
            f"{other} has settings {other.settings!r}, {own} {own.settings!r}; start all ranks with the same settings"
        )
    if other.rank == own.rank or not 0 <= other.rank < own.world_size:
        raise IdentityMismatch(
            f"{own} is called by a rank {other.rank} on {other.name}; each rank must be there once"
        )
