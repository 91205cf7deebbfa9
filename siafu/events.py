"""Write what a run does: one event a line, in JSON. Who reads them, and when, is not known here.

An event has ``time`` (seconds since 1970), ``rank`` and ``phase``; the phases of a run on one machine:

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
from pathlib import Path
from typing import Any, Protocol


class Progress(Protocol):
    """Told how far something is: ``done`` of ``total`` units, ``total`` None where nobody knows."""

    def __call__(self, label: str, done: int, total: int | None) -> None:
        """Show it, or don't."""


def silent(label: str, done: int, total: int | None) -> None:
    """The progress that nobody watches."""


class Events:
    """Appends events to a file; each line is whole on disk before :meth:`flush` returns."""

    def __init__(self, path: Path, *, rank: int = 0) -> None:
        cut_off = _is_cut_off(path)
        self._file = path.open("a", encoding="utf-8")
        self._rank = rank
        if cut_off:
            self._file.write("\n")

    def write(self, phase: str, **fields: Any) -> None:
        """Write one event."""
        event = {"time": time.time(), "rank": self._rank, "phase": phase, **fields}
        self._file.write(json.dumps(event, separators=(",", ":"), allow_nan=True) + "\n")

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


class Unheard:
    """The events of a rank that writes none."""

    def write(self, phase: str, **fields: Any) -> None:
        """Write nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _is_cut_off(path: Path) -> bool:
    """Whether a writer was killed in the middle of the last line."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
