"""The bytes that all ranks of a run have sent, across restarts."""

import json

from siafu.comm import Comm
from siafu.comm.all_gather import all_gather_texts


class ByteCounter:
    """Adds up the meters of all ranks.

    Attributes:
        by_label: bytes of all ranks by label, as far as they are counted.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._counted: dict[str, int] = {}  # of this rank's meter
        self.by_label: dict[str, int] = {}

    def start_now(self) -> None:
        """Leave out what this rank has sent so far."""
        self._counted = self._comm.meter.sent

    def update(self) -> dict[str, int]:
        """Add what every rank has sent since the last call; returns the total by label. Collective."""
        sent = self._comm.meter.sent
        new = {label: count - self._counted.get(label, 0) for label, count in sent.items()}
        self._counted = sent
        for text in all_gather_texts(self._comm, json.dumps(new), label="control"):
            for label, count in json.loads(text).items():
                self.by_label[label] = self.by_label.get(label, 0) + count
        return self.by_label
