"""Checksums by which a reader notices that a file of a run changed since it was written.

``config.toml`` ends in a comment with the checksum of the text before it. ``metrics.json`` has a field ``checksum``.
Each line of ``events.jsonl`` ends in a field ``seal``: a checksum of the line and of the seal before it. So the lines
are a chain: a line that was changed, added, moved or taken out is noticed where it is.
"""

import json
from typing import Any

import xxhash

_MARK = "# checksum "
_FIELD = b',"seal":"'
_SEAL_CHARS = 16
_END_BYTES = len(_FIELD) + _SEAL_CHARS + len(b'"}')

FIRST_SEAL = "0" * _SEAL_CHARS  # before the first line


def checksum(text: str) -> str:
    """Of a text, for noticing that it changed."""
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "replace"))


def add_text_checksum(text: str) -> bytes:
    """A text with a last line that holds its checksum."""
    return f"{text}{_MARK}{checksum(text)}\n".encode()


def verify_text_checksum(data: bytes) -> str | None:
    """The text that :func:`add_text_checksum` was given; None where it is another now."""
    text, mark, found = data.decode("utf-8", "replace").rpartition(_MARK)
    return text if mark and found == f"{checksum(text)}\n" else None


def add_fields_checksum(fields: dict[str, Any]) -> bytes:
    """Fields as JSON, with their checksum among them."""
    sealed = fields | {"checksum": checksum(_canonical(fields))}
    return (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode()


def verify_fields_checksum(data: bytes) -> dict[str, Any] | None:
    """The fields that :func:`add_fields_checksum` was given; None where they are others now."""
    try:
        found: dict[str, Any] = json.loads(data)
        return found if found.pop("checksum") == checksum(_canonical(found)) else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def seal_line(line: bytes, before: str) -> tuple[bytes, str]:
    """The line of a JSON object with its seal, and that seal; ``before`` is the seal of the line before it."""
    seal = _seal(line, before)
    return line[:-1] + _FIELD + seal.encode() + b'"}', seal


def read_seal(line: bytes) -> str | None:
    """The seal that a line bears, right or wrong; None where it bears none."""
    end = line[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(_FIELD) or not end.endswith(b'"}'):
        return None
    found = end[len(_FIELD) : -2]
    return found.decode() if set(found) <= set(b"0123456789abcdef") else None


def is_seal_valid(line: bytes, before: str) -> bool:
    """Whether a line is as it was written, after the line with the seal ``before``."""
    found = read_seal(line)
    return found is not None and found == _seal(line[:-_END_BYTES] + b"}", before)


def _seal(line: bytes, before: str) -> str:
    return xxhash.xxh3_64_hexdigest(before.encode() + line)


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)
