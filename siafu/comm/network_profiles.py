"""How long counted messages take at a level of decentralisation. Pure functions: it knows no clock."""

from collections.abc import Iterable
from typing import NamedTuple


class NetworkProfile(NamedTuple):
    """The connection of each member to the others.

    Attributes:
        up, down: bits a second that it sends and receives, both at once.
        latency_s: seconds until a message that was sent begins to arrive.
    """

    up: float
    down: float
    latency_s: float


NETWORK_PROFILES = {
    "data centre": NetworkProfile(10e9, 10e9, 0.1e-3),
    "wan": NetworkProfile(100e6, 100e6, 50e-3),
    "proximity": NetworkProfile(2e6, 2e6, 20e-3),
    "edge": NetworkProfile(10e6, 10e6, 100e-3),
}


class TransferStep(NamedTuple):
    """Messages of all members that nobody has to wait for another of: they are sent at once.

    Attributes:
        sent, received: bytes of the member that sends most, and of the one that receives most.
        trips: how many such steps follow one another; ``sent`` and ``received`` are those of all.
    """

    sent: int
    received: int
    trips: int = 1


def transfer_seconds(steps: Iterable[TransferStep], level: NetworkProfile) -> float:
    """How long steps take one after another: latency, and the longer of sending and receiving."""
    return sum(
        step.trips * level.latency_s + max(8 * step.sent / level.up, 8 * step.received / level.down)
        for step in steps
    )
