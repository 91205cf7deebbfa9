"""Files over the wire: cut into pieces that are checked one by one, and put in place when all are there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from siafu.comm.message_frames import CHUNK_BYTES
from siafu.files import write_atomically
from siafu.launch.sites.schema import BadMessage, make

MOST_BYTES = 1 << 32  # of a file


def pieces_of(name: str, data: bytes, *, offset: int = 0) -> Iterator[Any]:
    """The pieces of a file, or of what was added to it at ``offset``."""
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


class Arriving:
    """Files that arrive, each of which has a place of its own; none other is taken."""

    def __init__(self, places: dict[str, Callable[[bytes], None]]) -> None:
        self._places, self._parts = places, dict[str, bytearray]()

    def take(self, piece: Any) -> None:
        """Take a piece; a file whose last piece it is goes to its place. Raises BadMessage."""
        if piece.file not in self._places or piece.total > MOST_BYTES:
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


def into(path: Path) -> Callable[[bytes], None]:
    """Puts a file in its place, whole or not at all."""

    def write(data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)

    return write
