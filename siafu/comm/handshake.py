"""Two ranks over a fresh connection: both prove the group's secret, and compare what they are, before any frame."""

import socket
from dataclasses import asdict, dataclass
from typing import Any

from siafu.comm.meet import Group
from siafu.wire.frames import PROTOCOL
from siafu.wire.handshake import Stranger, authenticate


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

    @classmethod
    def of(cls, group: Group) -> "Identity":
        """The identity of this rank."""
        return cls(group.rank, group.world_size, group.name, group.version, PROTOCOL, group.settings)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.name}"


def shake_hands(
    sock: socket.socket, group: Group, *, listening: bool, until: float, binding: bytes = b""
) -> Identity:
    """Make sure of the other side; raises Stranger or Mismatch. ``until`` and ``binding`` as in ``wire.handshake``."""
    own = Identity.of(group)
    said = authenticate(sock, group.secret, asdict(own), listening=listening, until=until, binding=binding)
    other = _read(said)
    _compare(own, other)
    return other


def _read(said: dict[str, Any]) -> Identity:
    fields = Identity.__annotations__
    if said.keys() != fields.keys() or any(type(said[name]) is not kind for name, kind in fields.items()):
        raise Stranger(f"it describes itself by {', '.join(sorted(said))}; expected {', '.join(fields)}")
    return Identity(**said)


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
