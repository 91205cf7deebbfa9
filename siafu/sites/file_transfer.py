"""File transfer between sites and coordinator: files travel in checksummed pieces and are written when complete."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from siafu.comm.message_frames import CHUNK_BYTES
from siafu.files import write_atomically
from siafu.launch.sites.schema import BadMessage, make

MAX_FILE_BYTES = 1 << 32  # of a file


def split_into_pieces(name: str, data: bytes, *, offset: int = 0) -> Iterator[Any]:
    """Split a file, or the data appended to it at ``offset``, into messages."""
    total = offset + len(data)
    for begin in range(0, len(data) or 1, CHUNK_BYTES):
        chunk = data[begin : begin + CHUNK_BYTES]
        yield make(
            "Piece",
            file=name,
            offset=offset + begin,
            total=total,
            data=chunk,
            data_sum=xxh3_64_intdigest(chunk),
        )


class FileAssembler:
    """Assembles received files; only files that have a destination are accepted."""

    def __init__(self, places: dict[str, Callable[[bytes], None]]) -> None:
        self._places, self._parts = places, dict[str, bytearray]()

    def add(self, piece: Any) -> None:
        """Add a piece; after the last one, hand the file to its destination. Raises BadMessage."""
        if piece.file not in self._places or piece.total > MAX_FILE_BYTES:
            raise BadMessage(f"a piece of a file that is not expected, of {piece.total} bytes")
        if xxh3_64_intdigest(piece.data) != piece.data_sum:
            raise BadMessage("a damaged piece of a file")
        part = self._parts.setdefault(piece.file, bytearray())
        if piece.offset == 0:
            part.clear()
        if piece.offset != len(part) or len(part) + len(piece.data) > piece.total:
            raise BadMessage("a piece of a file came out of its order")
        if piece.total and not piece.data:
            raise BadMessage("an empty piece of a file that is not empty")
        part += piece.data
        if len(part) == piece.total:
            self._places[piece.file](bytes(self._parts.pop(piece.file)))


def atomic_writer(path: Path) -> Callable[[bytes], None]:
    """Return a function that writes ``path`` atomically."""

    def write(data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)

    return write
