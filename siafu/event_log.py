"""The event log of a run: one JSON object per line.

An event has ``time`` (seconds since 1970), ``rank``, ``phase`` and, last, ``seal``. The phases and their fields:

    start       config, graph, machine, versions
    resume      epoch
    epoch       epoch (from 1), loss, lr, seconds (the training step), train_score, val_score, test_score, rss_bytes,
                bytes_sent (by this rank); if metered, dollars and value: 1 / (seconds x dollars)
    task        a pipeline task on a worker: lane (the worker), name, epoch, interval, start (seconds since the last
                start or resume), seconds; rank is the rank that owns the task
    graph       a pipeline task on a rank itself, with the same fields
    stage       the end of a stage of ``lazy``: stage (from 1), epoch, text, sends, bits, fits,
                rounds, best_epoch, train_score, val_score, test_score, val_loss, message_bytes, parameter_bytes
    change      of a dynamic graph, one number per step: edges, added, removed, active and arrived (nodes)
    blocks      of time, in the first epoch, one number per block: steps, planned_bytes, rss_bytes (of this rank)
    samples     of validation and test: the split, step and score of each
    note        text: a message for people, such as the reason why workers cannot be started
    race        names (of recipes), chosen (its place), rounds (epoch, places, scores of each), seconds, bytes
    checkpoint  epoch, seconds, bytes
    stop        epoch, reason (done, patience, SIGTERM, SIGINT, callback; paused in a race)
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
    """Callback for progress: ``done`` of ``total`` units are finished; ``total`` is None if unknown."""

    def __call__(self, label: str, done: int, total: int | None) -> None:
        """Show the progress, or ignore it."""


def no_progress(label: str, done: int, total: int | None) -> None:
    """Ignore the progress."""


class EventLog:
    """Appends events to a file; each line is whole on disk before :meth:`flush` returns.

    Each line ends in a seal, see :mod:`siafu.checksums`. A later writer of the same file continues the hash chain.
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
        """Write an event from another log, with a new seal."""
        kept = {name: value for name, value in event.items() if name != "seal"}
        line = json.dumps(kept, separators=(",", ":"), allow_nan=True).encode()
        sealed, self._seal = seal_line(line, self._seal)
        self._file.write(sealed + b"\n")

    def flush(self) -> None:
        """Hand the events written so far to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


class NullEventLog:
    """An event log that writes nothing, for ranks other than the writer."""

    def write(self, phase: str, **fields: Any) -> None:
        """Write nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _end_of_chain(path: Path) -> tuple[str, bool]:
    """Return the last valid-looking seal, and whether the last line is incomplete because its writer was killed."""
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
