"""Hold what crossed a site's interface, opened, against its ledger, and look for its features in it."""

from collections import Counter
from collections.abc import Iterator, Set
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
    rows = [row for row in x.float().numpy() if np.unique(row[row != 0]).size >= 2 * _VALUES]
    owner = {needle: place for place, row in enumerate(rows) for needle in _needles(row)}
    return len({owner[each] for each in _windows(content, owner.keys())}), len(rows)


def _needles(row: np.ndarray) -> list[bytes]:
    """What is looked for: values around the largest one, as they stand in the row, and without its zeros."""
    packed = row[row != 0]
    found = []
    for values in (packed, row):
        at = min(int(np.abs(values).argmax()), values.size - _VALUES)
        found += [(values[at : at + _VALUES] / scale).tobytes() for scale in (np.float32(1), row.sum())]
    return found


def _windows(content: bytes, wanted: Set[bytes]) -> Iterator[bytes]:
    """Those of the wanted ones that stand somewhere in some bytes."""
    begin = np.unique(np.frombuffer(b"".join(each[:4] for each in wanted), np.uint32))
    for shift in range(4):
        whole = np.frombuffer(content[shift : shift + (len(content) - shift) // 4 * 4], np.uint32)
        for at in np.isin(whole, begin).nonzero()[0] * 4 + shift:
            window = content[at : at + 4 * _VALUES]
            if window in wanted:
                yield window
