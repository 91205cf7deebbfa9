"""The unpacked sizes in the page headers of a Parquet file: Arrow unpacks by these, and the footer may claim less.

A page header is a Thrift struct in the compact protocol. Two fields of it are read, the others are skipped.
"""

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO

_FIRST_BYTES, _MOST_BYTES = 1 << 12, 1 << 24  # of a header; Arrow reads no longer ones
_MOST_DEPTH = 16
_UNPACKED, _PACKED = 2, 3  # fields: uncompressed_page_size, compressed_page_size


class _Kind(IntEnum):
    """The kinds of values of the compact protocol."""

    TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


def unpacked_bytes(path: Path, chunks: list[Any]) -> int:
    """Add up the unpacked page sizes of some column chunks, by their page headers; raises ValueError."""
    with path.open("rb") as file:
        return sum(size for chunk in chunks for size in _pages(file, chunk, path))


def _pages(file: BinaryIO, chunk: Any, path: Path) -> Iterator[int]:
    """Yield the unpacked size of each page of a column chunk."""
    starts = [chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset]
    place = min(starts)
    end = place + chunk.total_compressed_size
    while place < end:
        try:
            length, sizes = _read_header(file, place)
            unpacked, packed = sizes[_UNPACKED], sizes[_PACKED]
        except (IndexError, KeyError):
            raise ValueError(f"{path} is not readable: no page header at byte {place:,}") from None
        if min(unpacked, packed) < 0:
            raise ValueError(f"{path} is not readable: a page of negative size at byte {place:,}")
        yield unpacked
        place += length + packed


def _read_header(file: BinaryIO, place: int) -> tuple[int, dict[int, int]]:
    """Return a header's length and its integer fields; raises IndexError if it does not end."""
    size = _FIRST_BYTES
    while True:
        file.seek(place)
        data = file.read(size)
        try:
            header = _Header(data)
            return header.place, header.fields
        except IndexError:
            if len(data) < size or size >= _MOST_BYTES:
                raise
            size *= 16


class _Header:
    """A parsed struct; a byte beyond the data raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place, self.fields = data, 0, dict[int, int]()
        self._struct(self.fields, 0)

    def _struct(self, into: dict[int, int] | None, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise IndexError
        field = 0
        while (head := self._byte()) != 0:
            field = field + (head >> 4) if head >> 4 else self._signed()
            value = self._value(head & 15, depth)
            if into is not None and value is not None:
                into[field] = value

    def _value(self, kind: int, depth: int) -> int | None:
        """Skip a value; return it if it is an integer."""
        match kind:
            case _Kind.I16 | _Kind.I32 | _Kind.I64:
                return self._signed()
            case _Kind.BYTE:
                self._skip(1)
            case _Kind.DOUBLE:
                self._skip(8)
            case _Kind.BINARY:
                self._skip(self._varint())
            case _Kind.LIST | _Kind.SET:
                self._list(depth)
            case _Kind.MAP:
                if count := self._varint():
                    kinds = self._byte()
                    for _ in range(count):
                        self._element(kinds >> 4, depth)
                        self._element(kinds & 15, depth)
            case _Kind.STRUCT:
                self._struct(None, depth + 1)
            case _ if kind not in (_Kind.TRUE, _Kind.FALSE):
                raise IndexError
        return None

    def _list(self, depth: int) -> None:
        head = self._byte()
        for _ in range(head >> 4 if head >> 4 != 15 else self._varint()):
            self._element(head & 15, depth)

    def _element(self, kind: int, depth: int) -> None:
        if kind in (_Kind.TRUE, _Kind.FALSE):  # in a field the kind is the value; here it takes a byte
            self._skip(1)
        else:
            self._value(kind, depth + 1)

    def _byte(self) -> int:
        self.place += 1
        return self.data[self.place - 1]

    def _skip(self, count: int) -> None:
        self.place += count
        if self.place > len(self.data):
            raise IndexError

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise IndexError

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
