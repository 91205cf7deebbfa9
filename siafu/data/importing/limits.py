"""Limits on what files claim and unpack to, so that a small file cannot fill memory or disk."""

from dataclasses import dataclass

BLOCK_BYTES = 1 << 22
_ROOM_BYTES = 1 << 30  # unpacked data up to this size are never refused
_ROOM_NODES = 1 << 24
_NODES_AN_EDGE = 100


@dataclass(frozen=True)
class Limits:
    """Limits of an import.

    Attributes:
        line_bytes: the longest line of a text; as much of it is read at a time.
        ratio: how many times larger than its file unpacked data may be, where they are larger than 1 GiB.
        nodes: the most nodes that a bare count may claim; None: 16,777,216, or 100 for each edge if that is more.
    """

    line_bytes: int = BLOCK_BYTES
    ratio: int = 500
    nodes: int | None = None

    def __post_init__(self) -> None:
        if min(self.line_bytes, self.ratio, self.nodes or 1) < 1:
            raise ValueError(f"{self}; expected numbers from 1")

    def check_unpacked(self, what: str, unpacked: int, packed: int) -> None:
        """Refuse data that unpack to absurdly many bytes."""
        if unpacked > max(_ROOM_BYTES, self.ratio * packed):
            raise ValueError(
                f"{what} unpacks to at least {unpacked:,} bytes, {unpacked // max(1, packed):,} times its {packed:,} "
                f"bytes; expected at most {self.ratio} times: if you trust the file, raise the limit with --max-ratio"
            )

    def check_nodes(self, count: int, counted_by: str, most_edges: int) -> None:
        """Refuse a number of nodes that nothing else in the files supports."""
        most = max(_ROOM_NODES, _NODES_AN_EDGE * most_edges) if self.nodes is None else self.nodes
        if count > most:
            raise ValueError(
                f"{counted_by} counts {count:,} nodes beside at most {most_edges:,} edges and no features, labels or "
                f"split; expected at most {most:,}: if you trust the file, raise the limit with --max-nodes"
            )

    def too_long(self, what: str) -> str:
        """Return the error message for a line that is too long."""
        return (
            f"{what} has a line of more than {self.line_bytes:,} bytes; if that is right, raise the limit with "
            "--max-line-bytes"
        )


DEFAULT = Limits()
