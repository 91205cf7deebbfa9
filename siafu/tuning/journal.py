"""The journal of a search: one JSON object per line, in the form that Optuna's ``JournalStorage`` reads and writes.

Each line ends in a seal (:mod:`siafu.checksums`), so that a changed line is detected. Several processes append under a
lock that ends with its process. A line that a kill cut off is removed by the next writer.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from siafu.checksums import FIRST_SEAL, is_seal_valid, read_seal, seal_line
from siafu.files import lock_file, open_append

_WAIT_S = 60.0
Record = dict[str, Any]


class Journal:
    """Appends records to a file, and reads those that other processes append; a backend of Optuna's storage."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, path.with_name(f".{path.name}.lock")
        self._records: list[Record] = []
        self._offset, self._seal = 0, FIRST_SEAL

    def read_logs(self, log_number_from: int) -> Iterator[Record]:
        """Yield all records from the given number on."""
        self._read_new()
        yield from self._records[log_number_from:]

    def append_logs(self, logs: Sequence[Record]) -> None:
        """Append records."""
        refusal = f"{self._path}: locked by another process for {_WAIT_S:.0f} s; end the process that hangs"
        with lock_file(self._lock, refusal=refusal, wait_s=_WAIT_S):
            self._read_new()
            lines, seal = [], self._seal
            for record in logs:
                line, seal = seal_line(json.dumps(record, separators=(",", ":")).encode(), seal)
                lines.append(line + b"\n")
            with open_append(self._path, buffering=0) as file:
                os.ftruncate(file.fileno(), self._offset)  # removes a line that was cut off
                file.write(b"".join(lines))

    def _read_new(self) -> None:
        """Read the whole lines that were appended since the last call."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        for line in (whole + newline).splitlines():
            self._records.append(self._parse(line))
            self._seal = read_seal(line) or self._seal
            self._offset += len(line) + 1

    def _parse(self, line: bytes) -> Record:
        """Parse a line; a line whose seal is wrong is refused."""
        record = json.loads(line) if is_seal_valid(line, self._seal) else None
        if not isinstance(record, dict):
            raise ValueError(
                f"{self._path}, line {len(self._records) + 1}: changed or damaged; the search cannot go on from it; "
                "start another one with another --out"
            )
        del record["seal"]
        return record
