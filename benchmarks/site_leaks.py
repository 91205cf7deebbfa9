"""Hold what crossed a site's interface, opened, against its ledger, and look for its features in it."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from capture import Capture, messages, opened, read_secrets

from siafu.engine.sites.config import COORDINATOR
from siafu.engine.sites.frames import wire_bytes
from siafu.engine.sites.ledger import read_ledger
from siafu.engine.sites.schema import unpack
from siafu.store import open_store

_VALUES = 4  # of a row that are looked for, one after another
_MOST_ROWS = 4000

Line = tuple[str, str, int]


@dataclass(frozen=True)
class Left:
    """What left a site, as its interface saw it.

    Attributes:
        lines: to whom, under which label, in how many bytes: how often.
        content: all that messages carried, one after another.
    """

    lines: Counter[Line]
    content: bytes


def left(capture: Capture, keylog: Path, address: tuple[str, int], names: dict[str, str]) -> Left:
    """Open what was sent from an address; ``names`` has the sites by their hosts."""
    secrets, lines, content = read_secrets(keylog), Counter[Line](), bytearray()
    for (source, target), stream in capture.sent.items():
        if source != address:
            continue
        said = opened(capture.sent[target, source], stream, secrets, by_server=True)
        to = names[target[0]]
        for call in messages(said).values():
            lines.update(_of_reports(call) if to == COORDINATOR else _of_frames(to, call))
            content += b"".join(call)
    return Left(lines, bytes(content))


def _of_reports(call: list[bytes]) -> Counter[Line]:
    """Of messages to the coordinator the sizes; an empty answer says nothing."""
    return Counter((COORDINATOR, "", wire_bytes(data)) for data in call if data)


def _of_frames(to: str, call: list[bytes]) -> Counter[Line]:
    sizes: list[tuple[str, int]] = []
    for place, data in enumerate(call):
        if place == 0:
            unpack("Hello", data)
            sizes.append(("control", wire_bytes(data)))
            continue
        frame = unpack("Frame", data)
        if frame.offset:
            label, size = sizes[-1]
            sizes[-1] = (label, size + wire_bytes(data))
        else:
            sizes.append((frame.label or "control", wire_bytes(data)))
    return Counter((to, label, size) for label, size in sizes)


def noted(ledger: Path) -> Counter[Line]:
    """The same, as a ledger has it."""
    lines = [line for line in read_ledger(ledger) if "bytes" in line]
    return Counter(
        (line["to"], "" if line["to"] == COORDINATOR else line["label"], line["bytes"]) for line in lines
    )


def rows_found(store: Path, content: bytes) -> tuple[int, int]:
    """How many rows of features, as they are or scaled to sum to 1, are in some bytes; and of how many.

    A row is taken to be there where some of its values other than 0 stand there as float32, one after another,
    whichever way zeros are left out. Rows whose values are all alike, as counts of words, cannot be told apart and are
    not looked for.
    """
    x = open_store(store).graph().x
    assert x is not None
    rows = [row for row in x.float().numpy()[:_MOST_ROWS] if np.unique(row[row != 0]).size >= 2 * _VALUES]
    return sum(any(needle in content for needle in _needles(row)) for row in rows), len(rows)


def _needles(row: np.ndarray) -> list[bytes]:
    """What is looked for: values from the middle of a row, packed, and the widest run of the row as it is."""
    at = int(np.abs(row).argmax())
    dense = row[max(0, at - _VALUES) : at + _VALUES]
    packed = row[row != 0]
    middle = packed.size // 2
    found = []
    for scale in (np.float32(1), row.sum(dtype=np.float32)):
        found += [(each / scale).tobytes() for each in (packed[middle : middle + _VALUES], dense)]
    return found
