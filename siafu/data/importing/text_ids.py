"""Ids in text that are no plain integers: zero-padded ids keep their text, whole floats become integers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siafu.data.importing.file_location import FileLocation

NeededParsing = Literal["whole", "text"]
_PIECE = 1 << 17
_PADDED = r"^\s*[+-]?0[0-9]"
_WHOLE = r"^(-?(?:0|[1-9][0-9]*))\.0*$"
_INTEGER = r"^-?(?:0|[1-9][0-9]{0,17})$"


class TextIdsError(ValueError):
    """Ids that were parsed as integers need another parsing.

    Attributes:
        path: the table.
        needs: ``whole``: some ids are written as floats; ``text``: some ids differ only as text.
    """

    def __init__(self, path: Path, needs: NeededParsing, message: str) -> None:
        super().__init__(message)
        self.path, self.needs = path, needs


class PaddedIdScanner:
    """A text stream that counts its bytes and detects fields with a leading zero, such as ``007``.

    It knows no columns, so a date or a time may also be detected.

    Attributes:
        num_bytes: read so far.
        padded: whether there was such a field so far.
    """

    closed = False

    def __init__(self, stream: Any, *, watch: bool) -> None:
        self._stream, self._watch = stream, watch
        self._last = np.array([10], dtype=np.uint8)  # a line feed, as before every line
        self.num_bytes, self.padded = 0, False

    def read(self, size: int) -> bytes:
        """Read the next bytes of the stream."""
        return self.read_buffer(size).to_pybytes()

    def read_buffer(self, size: int) -> pa.Buffer:
        """Read the next bytes of the stream without a copy."""
        block = self._stream.read_buffer(size)
        self.num_bytes += block.size
        if self._watch and not self.padded and block.size:
            text = np.frombuffer(block, dtype=np.uint8)
            self.padded = _has_padding(np.concatenate([self._last, text[:2]])) or _has_padding(text)
            self._last = np.concatenate([self._last, text[-2:]])[-2:]
        return block

    def close(self) -> None:
        """Do nothing: the owner of the stream closes it."""


def _has_padding(values: np.ndarray) -> bool:
    for start in range(0, values.size - 2, _PIECE):
        piece = values[start : start + _PIECE + 2]
        # Before a field stand a line feed, a tab, a space, a quote or a comma; a point, a minus or a slash come later.
        found = (piece[1:-1] == 48) & (piece[:-2] <= 44) & (piece[2:] - np.uint8(48) <= 9)
        if found.any():
            return True
    return False


def has_padded_ids(ids: pa.Array) -> bool:
    """Return whether any of the string ids has leading zeros."""
    return bool(pc.any(pc.match_substring_regex(ids, _PADDED)).as_py())


def whole_numbers(
    ids: pa.Array, place: FileLocation, column: str, fail: Callable[[NeededParsing, str], None]
) -> pa.Array:
    """Convert ids that are integers or whole floats to int64; ``2`` and ``2.0`` are equal, empty ones are null.

    Any other id is reported to ``fail``, which raises.
    """
    if pa.types.is_integer(ids.type):
        return ids
    if pa.types.is_floating(ids.type):
        known = pc.is_finite(ids)
        bad = pc.and_(known, pc.or_(pc.not_equal(pc.floor(ids), ids), pc.greater(pc.abs(ids), 2.0**53)))
        ids = pc.if_else(known, ids, pa.scalar(None, ids.type))
    else:
        text = pc.utf8_trim_whitespace(ids)
        text = pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text)
        ids = pc.replace_substring_regex(text, pattern=_WHOLE, replacement=r"\1")
        bad = pc.invert(pc.match_substring_regex(ids, _INTEGER))
    row = pc.index(bad, True).as_py()
    if row >= 0:
        fail("text", f"{place.at(row)}, column {column!r}: {str(ids[row].as_py())!r} is not an integer")
    return ids.cast(pa.int64())
