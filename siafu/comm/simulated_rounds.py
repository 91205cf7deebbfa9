"""Rounds of many members in one process: nothing moves, every byte is counted, by member and by link.

A message holds the rows that one member sends another at once, each packed by itself. It travels in short frames: 16
bytes (the number of the exchange, the length, a checksum), then the payload.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from siafu.comm.availability import Attendance
from siafu.comm.meter import ByteMeter
from siafu.comm.network_profiles import NETWORK_PROFILES, TransferStep, transfer_seconds
from siafu.comm.rounds import MemberLinks
from siafu.comm.wire_sizes import EXACT, UpdateWire, row_bytes

HEAD_BYTES = 16  # of a short frame
MOST_BYTES = 2**32 - 1  # of its payload; a longer message takes several
_COUNTS = ("sent", "received", "up", "down")


def framed_bytes(num_bytes: int) -> int:
    """The bytes that a message between devices takes, heads included."""
    return num_bytes + HEAD_BYTES * max(1, -(-num_bytes // MOST_BYTES))


class SimulatedRounds:
    """All members of rounds, and what they sent.

    ``needed`` are those, each (P,) bool, of whom somebody must be there for a stage.

    Attributes:
        counts: bytes by member, (P,) int64 each: ``sent`` to and ``received`` from other members, ``up`` to and
            ``down`` from the coordinator.
        by_link: (L,) int64, bytes over each link.
        steps: what was sent at once, in order.
    """

    def __init__(
        self, attendance: Attendance, links: MemberLinks, meter: ByteMeter, *, needed: Sequence[Tensor] = ()
    ) -> None:
        self.attendance, self.links, self.steps = attendance, links, list[TransferStep]()
        self._meter, self._needed = meter, needed
        self.counts = {name: torch.zeros(attendance.num_members, dtype=torch.int64) for name in _COUNTS}
        self.by_link = torch.zeros(links.pair.shape[0], dtype=torch.int64)

    @property
    def num_members(self) -> int:
        """P."""
        return self.attendance.num_members

    def meet(self, stage: int) -> Tensor:
        """Who is there for a stage, (P,) bool."""
        return self.attendance.present(stage, self._needed)

    def draw(self, number: int, among: Tensor) -> Tensor:
        """Who takes part in a round, (P,) bool."""
        return self.attendance.drawn(number, among)

    def exchange(self, x_own: Tensor, asked: Tensor, *, label: str) -> tuple[Tensor, Tensor]:
        """Count what messages weigh; those asked for come, (M,) bool."""
        links = self.links
        weight = _row_bytes(x_own, links.row[asked])
        payload = torch.zeros_like(self.by_link).index_add_(0, links.link[asked], weight)
        used = torch.zeros(self.by_link.numel(), dtype=torch.bool)
        used[links.link[asked]] = True
        total = torch.where(used, _framed(payload), 0)
        sender, reader = links.pair.unbind(1)
        self._over_links(total, sender, reader, label)
        return x_own, asked

    def ask(self, asked: Tensor, *, label: str) -> None:
        """Count that readers ask for rows first: over each link, against its direction, a bit for each row."""
        links = self.links
        sender, reader = links.pair.unbind(1)
        wanted = torch.zeros_like(self.by_link).index_add_(
            0, links.link[asked], torch.ones_like(links.link[asked])
        )
        rows = torch.bincount(links.link, minlength=self.by_link.numel())
        self._over_links(torch.where(wanted > 0, _framed((rows + 7) // 8), 0), reader, sender, label)

    def tell(self, values: Tensor, hearers: Tensor, *, label: str, wire: UpdateWire = EXACT) -> Tensor:
        """Count what numbers, (N,), weigh for each hearer."""
        down = hearers * framed_bytes(wire.num_bytes(values.numel()))
        self.counts["down"] += down
        self._count(torch.zeros_like(down), down, label)
        return wire.arrived(values[None])[0]

    def collect(self, values: Tensor, givers: Tensor, *, label: str, wire: UpdateWire = EXACT) -> Tensor:
        """Count what as many numbers weigh, (N,), for each giver."""
        up = givers * framed_bytes(wire.num_bytes(values.numel()))
        self.counts["up"] += up
        self._count(up, torch.zeros_like(up), label)
        return values

    def told(self, trains: Tensor) -> dict[str, Any]:
        """What members sent and received, those who train, (P,) bool, by themselves; and how long it takes."""
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
        """What was counted so far; for a checkpoint."""
        steps = torch.tensor([list(step) for step in self.steps], dtype=torch.int64).view(-1, 3)
        return {**self.counts, "by_link": self.by_link, "steps": steps}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such counts."""
        self.counts = {name: state[name].clone() for name in _COUNTS}
        self.by_link = state["by_link"].clone()
        self.steps = [TransferStep(*step) for step in state["steps"].tolist()]

    def _over_links(self, total: Tensor, sender: Tensor, reader: Tensor, label: str) -> None:
        """Count a step of messages, so many bytes over each link, (L,) int64."""
        nobody = torch.zeros(self.num_members, dtype=torch.int64)
        sent, received = nobody.index_add(0, sender, total), nobody.index_add(0, reader, total)
        self.by_link += total
        self.counts["sent"] += sent
        self.counts["received"] += received
        self._count(sent, received, label)

    def _count(self, sent: Tensor, received: Tensor, label: str) -> None:
        """One step; who hears and who speaks are of different members where the coordinator is the other side."""
        total = max(int(sent.sum()), int(received.sum()))
        if total:
            self._meter.add(label, total)
            self.steps.append(TransferStep(int(sent.max()), int(received.max())))


def _row_bytes(rows: Tensor, travelling: Tensor) -> Tensor:
    """What each of some rows weighs, packed by itself: (N, F), (M,) -> (M,) int64."""
    each, place = travelling.unique(return_inverse=True)
    return row_bytes(rows[each])[place]


def _framed(payload: Tensor) -> Tensor:
    """The bytes of messages with such payloads on the wire, (L,) int64."""
    sizes, place = payload.unique(return_inverse=True)
    return torch.tensor([framed_bytes(size) for size in sizes.tolist()], dtype=torch.int64)[place]
