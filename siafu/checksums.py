"""Checksums by which a reader notices that a file of a run changed after it was written.

``config.toml`` ends in a comment with the checksum of the text before it. ``metrics.json`` has a field ``checksum``.
The lines of ``events.jsonl`` are a hash chain: each ends in a field ``seal``, a checksum of the line and of the
previous seal. So a line that was changed, added, moved or removed is detected where it stands.
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
    """Return the xxh3 checksum of a text, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "replace"))


def add_text_checksum(text: str) -> bytes:
    """Append a last line that holds the checksum of the text."""
    return f"{text}{_MARK}{checksum(text)}\n".encode()


def verify_text_checksum(data: bytes) -> str | None:
    """Return the text that :func:`add_text_checksum` was given, or None if it was changed since."""
    text, mark, found = data.decode("utf-8", "replace").rpartition(_MARK)
    return text if mark and found == f"{checksum(text)}\n" else None


def add_fields_checksum(fields: dict[str, Any]) -> bytes:
    """Serialise the fields as JSON, with their checksum among them."""
    sealed = fields | {"checksum": checksum(_canonical(fields))}
    return (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode()


def verify_fields_checksum(data: bytes) -> dict[str, Any] | None:
    """Return the fields that :func:`add_fields_checksum` was given, or None if they were changed since."""
    try:
        found: dict[str, Any] = json.loads(data)
        return found if found.pop("checksum") == checksum(_canonical(found)) else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


def seal_line(line: bytes, before: str) -> tuple[bytes, str]:
    """Add a seal to the line of a JSON object; return the line and its seal. ``before`` is the previous seal."""
    seal = _seal(line, before)
    return line[:-1] + _FIELD + seal.encode() + b'"}', seal


def read_seal(line: bytes) -> str | None:
    """Return the seal at the end of a line, valid or not; None where there is none."""
    end = line[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(_FIELD) or not end.endswith(b'"}'):
        return None
    found = end[len(_FIELD) : -2]
    return found.decode() if set(found) <= set(b"0123456789abcdef") else None


def is_seal_valid(line: bytes, before: str) -> bool:
    """Return whether a line is unchanged and follows the line with the seal ``before``."""
    found = read_seal(line)
    return found is not None and found == _seal(line[:-_END_BYTES] + b"}", before)


def _seal(line: bytes, before: str) -> str:
    return xxhash.xxh3_64_hexdigest(before.encode() + line)


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)
