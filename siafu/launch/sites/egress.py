"""The egress guard of a site: messages pass the policy, the byte cap, the ledger and the meter before they leave."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from siafu.comm.meter import ByteMeter
from siafu.launch.sites.config import SitePolicy
from siafu.launch.sites.ledger import Ledger, LedgerEntry
from siafu.launch.sites.policy import check_label


@dataclass
class EgressGuard:
    """Checks and records every message that leaves one site, for one run.

    Attributes:
        policy, ledger: those of the site.
        run: the name of the run in the ledger.
        meter: counts the bytes of authorised messages by label.
    """

    policy: SitePolicy
    ledger: Ledger
    run: str
    meter: ByteMeter = field(default_factory=ByteMeter)
    _rows: dict[str, Sequence[Tensor]] = field(default_factory=dict)

    def authorize(self, to: str, label: str, tensor: str, num_bytes: int, *, rank: int | None = None) -> None:
        """Record a message that is about to leave; raises EgressRefused if it must not leave."""
        kind = check_label(self.policy, label)
        by_rank = self._rows.get(label)
        rows = by_rank[rank] if by_rank is not None and rank is not None else None
        self.ledger.write(LedgerEntry(self.run, to, label, kind, tensor, num_bytes, rows))
        self.meter.add(label, num_bytes)

    def record_sent_rows(self, label: str, ids_by_rank: Sequence[Tensor]) -> None:
        """Record which own nodes, by id, the next messages of a label hold for each rank."""
        self._rows[label] = ids_by_rank
