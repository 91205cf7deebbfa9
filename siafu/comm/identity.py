"""Two ranks over a fresh connection: both prove the group's secret, and compare what they are, before any frame."""

import socket
from dataclasses import asdict, dataclass, replace
from typing import Any

from siafu.comm.rendezvous import Group
from siafu.wire.frames import PROTOCOL
from siafu.wire.handshake import HandshakeError, authenticate


class Mismatch(Exception):
    """The other side is a rank with the same secret, but the two cannot train together."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The description that a rank gives of itself."""

    rank: int
    world_size: int
    name: str
    version: str
    protocol: int
    settings: str
    encrypt: bool

    @classmethod
    def of(cls, group: Group) -> "Identity":
        """The identity of this rank."""
        return cls(
            group.rank, group.world_size, group.name, group.version, PROTOCOL, group.settings, group.encrypt
        )

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.name}" if self.name else f"rank {self.rank}"


def shake_hands(
    sock: socket.socket,
    group: Group,
    *,
    listening: bool,
    until: float,
    binding: bytes = b"",
    suits: bool = True,
) -> Identity:
    """Make sure of the other side; raises HandshakeError or Mismatch. ``until`` and ``binding`` as in ``wire.handshake``.

    A connection that does not ``suit`` this rank, because it is plain and should be TLS or the other way round, always
    ends in Mismatch. A rank that encrypts keeps its name and its settings to itself there.
    """
    own = Identity.of(group)
    shown = replace(own, name="", settings="") if group.encrypt and not suits else own
    said = authenticate(sock, group.secret, asdict(shown), listening=listening, until=until, binding=binding)
    other = _read(said)
    if not suits or other.encrypt != own.encrypt:
        raise Mismatch(_encryption(own, replace(other, encrypt=not own.encrypt)))
    _compare(own, other)
    return other


def _read(said: dict[str, Any]) -> Identity:
    fields = Identity.__annotations__
    if said.keys() != fields.keys() or any(type(said[name]) is not kind for name, kind in fields.items()):
        raise HandshakeError(
            f"it describes itself by {', '.join(sorted(said))}; expected {', '.join(fields)}"
        )
    return Identity(**said)


def _encryption(own: Identity, other: Identity) -> str:
    how = {True: "true", False: "false"}
    return (
        f"comm.encrypt is {how[other.encrypt]} at {other}, but {how[own.encrypt]} at {own}; set it to the same on all "
        "ranks"
    )


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
