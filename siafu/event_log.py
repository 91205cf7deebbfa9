"""Write what a run does: one event a line, in JSON. Who reads them, and when, is not known here.

An event has ``time`` (seconds since 1970), ``rank``, ``phase`` and, last, ``seal``; the phases of a run on one machine:

    start       config, graph, machine, versions
    resume      epoch
    epoch       epoch (from 1), loss, lr, seconds (the training step), train_score, val_score, test_score, rss_bytes,
                bytes_sent (by this rank); where they are metered, dollars and value: 1 / (seconds x dollars)
    task        of a pipeline, on a worker: lane (whose), name, epoch, interval, start (seconds since the last start or
                resume), seconds; rank is whose task it is
    graph       the same, on a rank itself
    stage       at the end of each, where a model is learned in such: stage (from 1), epoch, text, sends, bits, fits,
                rounds, best_epoch, train_score, val_score, test_score, val_loss, message_bytes, parameter_bytes
    change      of a graph that changes over time, a number a step: edges, added, removed, active and arrived (nodes)
    blocks      of time, in the first epoch, a number a block: steps, planned_bytes, rss_bytes (of this rank)
    samples     of validation and test: split, step and score of each
    note        text: what a person should know, such as why workers cannot be had
    checkpoint  epoch, seconds, bytes
    stop        epoch, reason (done, patience, SIGTERM, SIGINT)
    result      score per split, confusion (rows true, columns predicted, test nodes), class_names
    end         the metrics that ``--json`` prints
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from siafu.checksums import FIRST_SEAL, read_seal, seal_line
from siafu.files import open_append

_TAIL_BYTES = 1 << 16


class Progress(Protocol):
    """Told how far something is: ``done`` of ``total`` units, ``total`` None where nobody knows."""

    def __call__(self, label: str, done: int, total: int | None) -> None:
        """Show it, or don't."""


def silent(label: str, done: int, total: int | None) -> None:
    """The progress that nobody watches."""


class Events:
    """Appends events to a file; each line is whole on disk before :meth:`flush` returns.

    Each line ends in a seal, see :mod:`siafu.checksums`. Of several writers, one after another, each continues the chain.
    """

    def __init__(self, path: Path, *, rank: int = 0) -> None:
        self._seal, cut_off = _end_of_chain(path)
        self._file, self._rank = open_append(path), rank
        if cut_off:
            self._file.write(b"\n")

    def write(self, phase: str, **fields: Any) -> None:
        """Write one event."""
        self.copy({"time": time.time(), "rank": self._rank, "phase": phase, **fields})

    def copy(self, event: Mapping[str, Any]) -> None:
        """Write an event that another file had; its seal there is left out."""
        kept = {name: value for name, value in event.items() if name != "seal"}
        line = json.dumps(kept, separators=(",", ":"), allow_nan=True).encode()
        sealed, self._seal = seal_line(line, self._seal)
        self._file.write(sealed + b"\n")

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


class NullEventLog:
    """The events of a rank that writes none."""

    def write(self, phase: str, **fields: Any) -> None:
        """Write nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _end_of_chain(path: Path) -> tuple[str, bool]:
    """The seal of the last line that bears one, and whether a writer was killed in the middle of the last line."""
    if not path.is_file():
        return FIRST_SEAL, False
    with path.open("rb") as file:
        size, length = file.seek(0, 2), _TAIL_BYTES
        while True:
            file.seek(max(0, size - length))
            *_, last = lines = file.read().split(b"\n")
            for line in reversed(lines):
                if (seal := read_seal(line)) is not None:
                    return seal, bool(last)
            if length >= size:
                return FIRST_SEAL, bool(last)
            length *= 8
