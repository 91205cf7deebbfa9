"""Simulated rounds of many members in one process: nothing is sent; every byte is counted, by member and by link.

The rows that one member sends to another at once form one payload, each row compressed by itself. It is counted in
short frames: a head of 16 bytes (the number of the exchange, the length, a checksum), then the payload.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from siafu.comm.availability import ClientAvailability
from siafu.comm.meter import ByteMeter
from siafu.comm.network_profiles import NETWORK_PROFILES, TransferStep, transfer_seconds
from siafu.comm.rounds import MemberLinks
from siafu.comm.wire_sizes import EXACT, UpdateEncoding, packed_row_bytes

HEAD_BYTES = 16  # of a short frame
MAX_PAYLOAD_BYTES = 2**32 - 1  # of a short frame; a longer message takes several
_COUNTS = ("sent", "received", "up", "down")


def framed_bytes(num_bytes: int) -> int:
    """Count the bytes of a message between devices, frame heads included."""
    return num_bytes + HEAD_BYTES * max(1, -(-num_bytes // MAX_PAYLOAD_BYTES))


class SimulatedRounds:
    """All members of the rounds, and the bytes that they sent.

    ``needed`` are groups of members, each (P,) bool; a stage needs at least one member of each group.

    Attributes:
        counts: bytes by member, (P,) int64 each: ``sent`` to and ``received`` from other members, ``up`` to and
            ``down`` from the coordinator.
        by_link: (L,) int64, bytes over each link.
        steps: the transfers that happened at once, in order.
    """

    def __init__(
        self,
        availability: ClientAvailability,
        links: MemberLinks,
        meter: ByteMeter,
        *,
        needed: Sequence[Tensor] = (),
    ) -> None:
        self.availability, self.links, self.steps = availability, links, list[TransferStep]()
        self._meter, self._needed = meter, needed
        self.counts = {name: torch.zeros(availability.num_members, dtype=torch.int64) for name in _COUNTS}
        self.by_link = torch.zeros(links.pair.shape[0], dtype=torch.int64)

    @property
    def num_members(self) -> int:
        """P, the number of members."""
        return self.availability.num_members

    def available(self, stage: int) -> Tensor:
        """Return the members available for a stage, (P,) bool."""
        return self.availability.sample_available(stage, self._needed)

    def sample_participants(self, number: int, among: Tensor) -> Tensor:
        """Sample the participants of a round, (P,) bool."""
        return self.availability.sample_participants(number, among)

    def exchange(self, x_own: Tensor, asked: Tensor, *, label: str) -> tuple[Tensor, Tensor]:
        """Count the bytes of the messages ``asked``, (M,) bool; all of them are delivered."""
        links = self.links
        weight = _row_bytes(x_own, links.row[asked])
        payload = torch.zeros_like(self.by_link).index_add_(0, links.link[asked], weight)
        used = torch.zeros(self.by_link.numel(), dtype=torch.bool)
        used[links.link[asked]] = True
        total = torch.where(used, _framed(payload), 0)
        sender, reader = links.pair.unbind(1)
        self._over_links(total, sender, reader, label)
        return x_own, asked

    def request(self, asked: Tensor, *, label: str) -> None:
        """Count the requests that precede an exchange: one bit per row, against the direction of each link."""
        links = self.links
        sender, reader = links.pair.unbind(1)
        wanted = torch.zeros_like(self.by_link).index_add_(
            0, links.link[asked], torch.ones_like(links.link[asked])
        )
        rows = torch.bincount(links.link, minlength=self.by_link.numel())
        self._over_links(torch.where(wanted > 0, _framed((rows + 7) // 8), 0), reader, sender, label)

    def broadcast(
        self, values: Tensor, receivers: Tensor, *, label: str, wire: UpdateEncoding = EXACT
    ) -> Tensor:
        """Count the bytes of values, (N,), for each receiver."""
        down = receivers * framed_bytes(wire.num_bytes(values.numel()))
        self.counts["down"] += down
        self._count(torch.zeros_like(down), down, label)
        return wire.quantize_rows(values[None])[0]

    def collect(self, values: Tensor, senders: Tensor, *, label: str, wire: UpdateEncoding = EXACT) -> Tensor:
        """Count the bytes of values, (N,), for each sender."""
        up = senders * framed_bytes(wire.num_bytes(values.numel()))
        self.counts["up"] += up
        self._count(up, torch.zeros_like(up), label)
        return values

    def traffic_metrics(self, trains: Tensor) -> dict[str, Any]:
        """Return the bytes per member, also of the training members ``trains``, (P,) bool, per link, and durations."""
        total = torch.stack(list(self.counts.values())).sum(0).double()
        links, training = self.by_link.double(), total[trains]
        return {
            "clients": self.num_members,
            "training_clients": training.numel(),
            "bytes_per_client": float(total.mean()),
            "most_bytes_per_client": int(total.max()),
            "bytes_per_training_client": float(training.mean()),
            "most_bytes_per_training_client": int(training.max()),
            "links": links.numel(),
            "bytes_per_link": float(links.mean()) if links.numel() else 0.0,
            "most_bytes_per_link": int(links.max()) if links.numel() else 0,
            "level_seconds": {
                name: transfer_seconds(self.steps, level) for name, level in NETWORK_PROFILES.items()
            },
        }

    def state(self) -> dict[str, Tensor]:
        """The counts so far, for a checkpoint."""
        steps = torch.tensor([list(step) for step in self.steps], dtype=torch.int64).view(-1, 3)
        return {**self.counts, "by_link": self.by_link, "steps": steps}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the counts of a checkpoint."""
        self.counts = {name: state[name].clone() for name in _COUNTS}
        self.by_link = state["by_link"].clone()
        self.steps = [TransferStep(*step) for step in state["steps"].tolist()]

    def _over_links(self, total: Tensor, sender: Tensor, reader: Tensor, label: str) -> None:
        """Count one step of simultaneous messages, ``total`` bytes over each link, (L,) int64."""
        zero = torch.zeros(self.num_members, dtype=torch.int64)
        sent, received = zero.index_add(0, sender, total), zero.index_add(0, reader, total)
        self.by_link += total
        self.counts["sent"] += sent
        self.counts["received"] += received
        self._count(sent, received, label)

    def _count(self, sent: Tensor, received: Tensor, label: str) -> None:
        """Record one step; between members and coordinator, only one of ``sent`` and ``received`` is not zero."""
        total = max(int(sent.sum()), int(received.sum()))
        if total:
            self._meter.add(label, total)
            self.steps.append(TransferStep(int(sent.max()), int(received.max())))


def _row_bytes(rows: Tensor, travelling: Tensor) -> Tensor:
    """Count the bytes of rows compressed one by one: (N, F), (M,) indices -> (M,) int64."""
    each, place = travelling.unique(return_inverse=True)
    return packed_row_bytes(rows[each])[place]


def _framed(payload: Tensor) -> Tensor:
    """Count the bytes of messages with such payloads, frame heads included, (L,) int64."""
    sizes, place = payload.unique(return_inverse=True)
    return torch.tensor([framed_bytes(size) for size in sizes.tolist()], dtype=torch.int64)[place]
