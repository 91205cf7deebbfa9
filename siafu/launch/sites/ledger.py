"""The ledger of a site, an audit log: receiver, tensor, bytes and rows of every message that left, one JSON line each.

A line is written before its bytes are handed to the network, so the ledger never shows less than what left. Rows are
ids of own nodes; a set of ids is written out once and then referred to by its checksum. Because of the ids only the
owner may read the file.
"""

import errno
import json
import os
import stat
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from xxhash import xxh3_64_hexdigest

from siafu.comm.tensor_bytes import byte_view
from siafu.launch.sites.policy import DataKind, EgressRefused


@dataclass(frozen=True)
class LedgerEntry:
    """One message that leaves.

    Attributes:
        run: the run that it belongs to.
        to: the receiver, a site or the coordinator.
        label: its phase.
        kind: the kind of its data.
        tensor: its dtype and shape, such as "float32 (3, 4)"; or the name of a file.
        num_bytes: its bytes on the wire.
        rows: (R,) int64, the ids of the own nodes whose rows it holds; None if it holds none.
    """

    run: str
    to: str
    label: str
    kind: DataKind
    tensor: str
    num_bytes: int
    rows: Tensor | None = None


@dataclass
class LedgerTotals:
    """Sums of the bytes that have left."""

    all: int = 0
    by_what: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_peer: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_run: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_label: dict[str, dict[str, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )  # by run

    def add(self, line: dict[str, Any]) -> None:
        """Count a line of a ledger; a line that lists row ids has no bytes."""
        count = int(line.get("bytes", 0))
        self.all += count
        if count:
            self.by_what[line["what"]] += count
            self.by_peer[line["to"]] += count
            self.by_run[line["run"]] += count
            self.by_label[line["run"]][line["label"]] += count


class Ledger:
    """Appends to the file of a ledger; the totals include its earlier lines."""

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._lock, self._row_sets = threading.Lock(), set[str]()
        self.totals = LedgerTotals()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(_open_private(path), "r+b", buffering=0)
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def write(self, sent: LedgerEntry) -> None:
        """Record a message that is about to leave; raises EgressRefused at the cap, or if it cannot be recorded."""
        line: dict[str, Any] = {
            "time": time.time(), "run": sent.run, "to": sent.to, "label": sent.label, "what": sent.kind,
            "tensor": sent.tensor, "bytes": sent.num_bytes,
        }  # fmt: skip
        with self._lock:
            if self._file.closed:
                raise EgressRefused("the site ends, so nothing more is sent")
            self._check_cap(sent)
            try:
                if sent.rows is not None:
                    line |= {"rows": self._row_set_name(sent.rows), "num_rows": sent.rows.numel()}
                self._append(line)
            except OSError as error:
                raise EgressRefused(
                    f"the ledger {self.path} cannot be written ({error.strerror}), so nothing more is sent; make room "
                    "there, then start the federation again"
                ) from error
            self.totals.add(line)

    def close(self) -> None:
        """Close the file; after that every message is refused."""
        with self._lock:
            self._file.close()

    def _check_cap(self, sent: LedgerEntry) -> None:
        """Refuse data above the cap; control messages pass, so that the site can report why it stopped."""
        if self.max_bytes is None or sent.kind == "control":
            return
        if self.totals.all + sent.num_bytes > self.max_bytes:
            raise EgressRefused(
                f"max_bytes is {self.max_bytes:,} and {self.totals.all:,} bytes have left, so nothing more is sent; "
                "raise max_bytes in site.toml, or begin a new ledger"
            )

    def _row_set_name(self, rows: Tensor) -> str:
        """Return the name of a set of rows; write the set out if it is new."""
        ids = rows.contiguous()
        name = xxh3_64_hexdigest(byte_view(ids))
        if name not in self._row_sets:
            self._append({"rows": name, "ids": ids.tolist()})
            self._row_sets.add(name)
        return name

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        written = self._file.write(data)
        if written != len(data):
            self._file.truncate(self._file.tell() - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _read(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            return
        data = self._file.read()
        for line in _parse(data, self.path):
            self.totals.add(line)
            if "ids" in line:
                self._row_sets.add(line["rows"])
        if data and not data.endswith(b"\n"):  # the process was killed while it wrote the last line
            self._file.write(b"\n")


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a ledger; an incomplete last line is left out, since its bytes did not leave."""
    return _parse(path.read_bytes(), path)


def _open_private(path: Path) -> int:
    """Open a ledger for appending, readable by its owner alone; raises ValueError for a link or another user's file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        why = "is a symbolic link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
        raise ValueError(
            f"{path}: the ledger {why}; expected a file, or none, in a folder of this user's"
        ) from None
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_uid != os.geteuid():
        os.close(file)
        raise ValueError(
            f"{path}: the ledger belongs to user {found.st_uid}, but this is user {os.geteuid()}; expected an own one"
        )
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
        os.fchmod(file, 0o600)  # written by an older version, which left it readable
    return file


def _parse(data: bytes, path: Path) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(data.decode("utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            lines.append(json.loads(text))
        except ValueError:
            if text.endswith("}"):
                raise ValueError(
                    f"{path}: line {number} is damaged; put the ledger back from a copy"
                ) from None
    return lines
