"""What every message of a site passes before it leaves: the policy, the cap, the ledger and the meter."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from siafu.comm.meter import ByteMeter
from siafu.launch.sites.config import Policy
from siafu.launch.sites.ledger import Ledger, Sent
from siafu.launch.sites.policy import check


@dataclass
class Guard:
    """Stands at the door of one site, for one run.

    Attributes:
        policy, ledger: of the site.
        run: what the run is called in the ledger.
        meter: counts what passed, by label.
    """

    policy: Policy
    ledger: Ledger
    run: str
    meter: ByteMeter = field(default_factory=ByteMeter)
    _rows: dict[str, Sequence[Tensor]] = field(default_factory=dict)

    def let_out(self, to: str, label: str, tensor: str, num_bytes: int, *, rank: int | None = None) -> None:
        """Note a message that is about to leave; raises Refused where it must not."""
        what = check(self.policy, label)
        told = self._rows.get(label)
        rows = told[rank] if told is not None and rank is not None else None
        self.ledger.write(Sent(self.run, to, label, what, tensor, num_bytes, rows))
        self.meter.add(label, num_bytes)

    def record_sent_rows(self, label: str, ids_by_rank: Sequence[Tensor]) -> None:
        """What is sent under a label from now on tells each rank of these own nodes, by their ids."""
        self._rows[label] = ids_by_rank
