"""Network profiles, and the estimated duration of counted transfers on them. Pure functions: no clock."""

from collections.abc import Iterable
from typing import NamedTuple


class NetworkProfile(NamedTuple):
    """The network connection of each member.

    Attributes:
        up, down: bandwidths of sending and receiving, bits per second, full duplex.
        latency_s: one-way latency, seconds.
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
    """Messages of all members that are sent at the same time, since none depends on another.

    Attributes:
        sent, received: bytes of the member that sends most, and of the one that receives most.
        trips: the number of such steps in sequence; ``sent`` and ``received`` are totals of all of them.
    """

    sent: int
    received: int
    trips: int = 1


def transfer_seconds(steps: Iterable[TransferStep], level: NetworkProfile) -> float:
    """Sum over steps the latency and the longer of sending and receiving."""
    return sum(
        step.trips * level.latency_s + max(8 * step.sent / level.up, 8 * step.received / level.down)
        for step in steps
    )
