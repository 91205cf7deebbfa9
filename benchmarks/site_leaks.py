"""Hold what crossed a site's interface, opened, against its ledger, and look for its features in it.

Rows of features are looked for in every form in which siafu writes rows down (``comm/compression.py`` and
``comm/quantization.py``), by code of its own: numbers of 32 and 16 bits, with and without zeros, as they are and
divided by their sum; levels of 8 and 4 bits; and which columns are not zero, by gaps or by bits. What is looked for are
16 or 32 bytes of a row that no other one has. Where features may leave, the ledger says of which nodes, so that the
search itself is seen to find these and no others.
"""

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from capture import Capture, messages, opened, read_secrets
from numpy.typing import NDArray

from siafu.comm.message_frames import is_message, unpack_chunk_head
from siafu.comm.quantization import QUANT_MAX, quantization_scales
from siafu.launch.sites.config import COORDINATOR
from siafu.launch.sites.frame_stream import split_frame, wire_bytes
from siafu.launch.sites.ledger import read_ledger
from siafu.launch.sites.schema import unpack
from siafu.partition.cross_site import node_ids
from siafu.store import open_store

_SHORT, _LONG = 16, 32  # bytes of a form of a row that are looked for: of few bits a number, and of 32
_VARIED = 4  # different bytes that these have at least

Line = tuple[str, str, int]
Row = NDArray[np.float32]


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
        header, head, _ = split_frame(data)
        if not is_message(header.kind):
            sizes.append(("control", wire_bytes(data)))
        elif (message := unpack_chunk_head(head).message) is not None:
            sizes.append((message.label, wire_bytes(data)))
        else:
            label, size = sizes[-1]
            sizes[-1] = (label, size + wire_bytes(data))
    return Counter((to, label, size) for label, size in sizes)


def noted(ledger: Path) -> Counter[Line]:
    """The same, as a ledger has it."""
    lines = [line for line in read_ledger(ledger) if "bytes" in line]
    return Counter(
        (line["to"], "" if line["to"] == COORDINATOR else line["label"], line["bytes"]) for line in lines
    )


def features_told(ledger: Path) -> set[int]:
    """The ids of the nodes whose features have left, as a ledger says."""
    lines = read_ledger(ledger)
    sets = {line["rows"]: line["ids"] for line in lines if "ids" in line}
    told = {line["rows"] for line in lines if line.get("what") == "features" and "rows" in line}
    return {node for name in told for node in sets[name]}


def rows_found(store: Path, content: bytes) -> dict[str, tuple[set[int], set[int]]]:
    """For each form, the ids of the nodes whose features can be looked for in it, and of those that are in some bytes.

    A row whose bytes are too few or too much alike, or are another row's too, cannot be told apart in that form.
    """
    graph = open_store(store).graph()
    assert graph.x is not None
    x, forms = graph.x.float(), dict[str, dict[bytes, set[int]]]()
    shares = x / x.sum(1, keepdim=True)  # as data.normalize has it
    for node, row, share in zip(node_ids(graph).tolist(), x.numpy(), shares.numpy(), strict=True):
        for form, needle in _forms(row, share):
            if len(needle) == _length(form) and len(set(needle)) >= _VARIED:
                forms.setdefault(form, {}).setdefault(needle, set()).add(node)
    owned = {
        form: {n: whose for n, whose in needles.items() if len(whose) == 1} for form, needles in forms.items()
    }
    there = set(_there(content, {needle for needles in owned.values() for needle in needles}))
    return {
        form: (
            set().union(*needles.values()),
            set().union(*(needles[each] for each in there & needles.keys())),
        )
        for form, needles in owned.items()
    }


def _forms(row: Row, share: Row) -> Iterator[tuple[str, bytes]]:
    """The forms of a row: what each is called, and the bytes that are looked for, too few where it has few numbers."""
    columns = row.nonzero()[0]
    if not columns.size:
        return
    packed = row[columns]
    for each in (packed, row, share[columns], share):
        yield "32 bits", _around_largest(each, 8).tobytes()
        yield "16 bits", _rounded(_around_largest(each, 8))
    yield "8 bits", _around_largest(_levels(packed, "int8"), 16).astype(np.int8).tobytes()
    shifted = (_levels(packed, "int4") + QUANT_MAX["int4"] + 1).astype(np.uint8)
    for begin in (0, 1):  # two in a byte, beginning with either
        pairs = shifted[begin : begin + 2 * _SHORT]
        yield "4 bits", (pairs[: pairs.size // 2 * 2 : 2] | pairs[1::2] << 4).tobytes()
    gaps = np.diff(columns, prepend=-1) - 1
    yield "columns, by gaps", _sevens(gaps[:_SHORT])[:_SHORT]
    for begin in range(8):  # wherever in a byte the row begins
        yield "columns, by bits", np.packbits(row[begin : begin + 8 * _SHORT] != 0).tobytes()


def _length(form: str) -> int:
    return _LONG if form == "32 bits" else _SHORT


def _around_largest(values: Row, count: int) -> Row:
    at = max(0, min(int(np.abs(values).argmax()), values.size - count))
    return values[at : at + count]


def _rounded(values: Row) -> bytes:
    return torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.uint8).numpy().tobytes()


def _levels(values: Row, precision: Literal["int8", "int4"]) -> Row:
    """Whole numbers of a scale for the row, those that are not zero."""
    scale = (
        quantization_scales(torch.from_numpy(np.abs(values).max(keepdims=True)), precision).float().numpy()
    )
    levels = np.round(values / scale)
    return levels[levels != 0]


def _sevens(values: NDArray[np.int64]) -> bytes:
    """Whole numbers in 7 bits a byte, the low ones first, all but the last byte of each above 127."""
    made = bytearray()
    for value in values.tolist():
        while value > 127:
            made.append(value & 127 | 128)
            value >>= 7
        made.append(value)
    return bytes(made)


def _there(content: bytes, wanted: Set[bytes]) -> Iterator[bytes]:
    """Those of the wanted ones, each of 16 or 32 bytes, that stand somewhere in some bytes."""
    halves = np.frombuffer(b"".join(each[:_SHORT] for each in wanted), np.uint64).reshape(-1, 2)
    marks = np.unique(_mark(halves[:, 0], halves[:, 1]))
    for shift in range(8):
        whole = np.frombuffer(content[shift : shift + (len(content) - shift) // 8 * 8], np.uint64)
        for at in np.isin(_mark(whole[:-1], whole[1:]), marks).nonzero()[0] * 8 + shift:
            windows = (content[at : at + size] for size in (_SHORT, _LONG))
            yield from (window for window in windows if window in wanted)


def _mark(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return first * np.uint64(0x9E3779B97F4A7C15) + second
