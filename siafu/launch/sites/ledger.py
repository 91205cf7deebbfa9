"""The ledger of a site: every byte that left, to whom, which tensor, which rows. A line of JSON each.

A line is handed to the system before its bytes are handed to the network, so the ledger never says less than what
left. Rows are ids of own nodes; a set of them is written out once and then called by its checksum. The ids are why
nobody but its owner may read the file.
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
from siafu.launch.sites.policy import Refused, What


@dataclass(frozen=True)
class Sent:
    """One message.

    Attributes:
        run: which run it was for.
        to: the site, or the coordinator.
        label: the phase it belongs to.
        what: what it is.
        tensor: its dtype and shape, such as "float32 (3, 4)"; or the name of a file.
        num_bytes: on the wire.
        rows: (R,) int64, the ids of the own nodes that it tells of; None where it tells of none.
    """

    run: str
    to: str
    label: str
    what: What
    tensor: str
    num_bytes: int
    rows: Tensor | None = None


@dataclass
class Totals:
    """What left so far, in bytes."""

    all: int = 0
    by_what: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_peer: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_run: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    by_label: dict[str, dict[str, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )  # of each run

    def add(self, line: dict[str, Any]) -> None:
        """Count a line of a ledger; one that names rows has no bytes."""
        count = int(line.get("bytes", 0))
        self.all += count
        if count:
            self.by_what[line["what"]] += count
            self.by_peer[line["to"]] += count
            self.by_run[line["run"]] += count
            self.by_label[line["run"]][line["label"]] += count


class Ledger:
    """Appends to the file of a ledger; what it held before counts too."""

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._lock, self._sets = threading.Lock(), set[str]()
        self.totals = Totals()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(_open_private(path), "r+b", buffering=0)
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def write(self, sent: Sent) -> None:
        """Note a message that is about to leave; raises Refused where it may not, or where it cannot be noted."""
        line: dict[str, Any] = {
            "time": time.time(), "run": sent.run, "to": sent.to, "label": sent.label, "what": sent.what,
            "tensor": sent.tensor, "bytes": sent.num_bytes,
        }  # fmt: skip
        with self._lock:
            if self._file.closed:
                raise Refused("the site ends, so nothing more is sent")
            self._check_cap(sent)
            try:
                if sent.rows is not None:
                    line |= {"rows": self._named(sent.rows), "num_rows": sent.rows.numel()}
                self._append(line)
            except OSError as error:
                raise Refused(
                    f"the ledger {self.path} cannot be written ({error.strerror}), so nothing more is sent; make room "
                    "there, then start the federation again"
                ) from error
            self.totals.add(line)

    def close(self) -> None:
        """Close the file; nothing more is sent."""
        with self._lock:
            self._file.close()

    def _check_cap(self, sent: Sent) -> None:
        """Data must stay below the cap; reports go on, so that the site can say why it stopped."""
        if self.max_bytes is None or sent.what == "control":
            return
        if self.totals.all + sent.num_bytes > self.max_bytes:
            raise Refused(
                f"max_bytes is {self.max_bytes:,} and {self.totals.all:,} bytes have left, so nothing more is sent; "
                "raise max_bytes in site.toml, or begin a new ledger"
            )

    def _named(self, rows: Tensor) -> str:
        """The name of a set of rows, which is written out where it is new."""
        ids = rows.contiguous()
        name = xxh3_64_hexdigest(byte_view(ids))
        if name not in self._sets:
            self._append({"rows": name, "ids": ids.tolist()})
            self._sets.add(name)
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
                self._sets.add(line["rows"])
        if data and not data.endswith(b"\n"):  # a kill cut the last line off
            self._file.write(b"\n")


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger; one that a kill cut off is left out, since its bytes did not leave."""
    return _parse(path.read_bytes(), path)


def _open_private(path: Path) -> int:
    """Open a ledger for appending, a new one for its owner alone; raises ValueError for a link or another's file."""
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
        os.fchmod(file, 0o600)  # it was written before ledgers were private
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
