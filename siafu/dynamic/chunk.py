"""Packed snapshots: consecutive snapshots in few bytes, to hold or to send.

Sorted pairs are stored as the distances between them, without values. If an edge lives for several steps, the chunk
stores the events of the steps: the edges removed at step t are the events of step ``t - life``. If an edge lives for
one step, the chunk stores a key frame, and for each later snapshot a delta: the pairs added, and the positions of the
edges removed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import xxhash
from torch import Tensor

from siafu import native
from siafu.native import Csr
from siafu.user_input import MAX_NODES

_HEADER = 8  # numbers


@dataclass(frozen=True, eq=False)
class Chunk:
    """Packed snapshots of steps ``start`` to before ``stop``.

    Attributes:
        num_nodes: N.
        life: of an edge, in steps.
        undirected: whether pairs stand once for both directions.
        start, stop: the steps.
        first: the step that the pairs begin with: ``start``, or earlier where edges of then still live.
        counts: (S, 2) int64, for each step from ``first`` on: pairs put in, and edges taken out.
        lengths: (S, 2) int64, their bytes.
        data: (B,) uint8, both, step after step.
        weight: (M,) float32, of the pairs put in, in their order; or None.
        as_deltas: whether steps hold what a snapshot has more and less than the one before, and not the events of the
            step; an edge lives for one step then, and there are no weights.
    """

    num_nodes: int
    life: int
    undirected: bool
    start: int
    stop: int
    first: int
    counts: Tensor
    lengths: Tensor
    data: Tensor
    weight: Tensor | None = None
    as_deltas: bool = False

    @property
    def num_bytes(self) -> int:
        """The size in bytes, in memory and on the wire."""
        return 8 + sum(part.nbytes for part in self._parts())

    def to_bytes(self) -> Tensor:
        """Serialise the chunk into one array, (B,) uint8, that begins with a checksum."""
        parts = [part.contiguous().view(torch.uint8).reshape(-1) for part in self._parts()]
        return torch.cat([_checksum(*parts), *parts])

    @staticmethod
    def from_bytes(data: Tensor) -> "Chunk":
        """Parse the bytes of :meth:`to_bytes`; refuse anything else."""
        data = data.contiguous()
        if data.numel() < 8 + 8 * _HEADER or not torch.equal(data[:8], _checksum(data[8:])):
            raise ValueError(
                f"packed snapshots: the checksum of {data.numel()} bytes is wrong: they were cut off or changed; send "
                "them again"
            )
        header = data[8 : 8 + 8 * _HEADER].clone().view(torch.int64).tolist()
        nodes, life, flags, start, stop, first, num_bytes, weights = header
        sizes = [8 + 8 * _HEADER, 32 * (stop - first), num_bytes, 4 * weights]
        if sum(sizes) != data.numel() or min(sizes) < 0:
            raise ValueError(
                f"packed snapshots: the header {header} does not fit; they come from another version"
            )
        _, tables, packed, rest = data.split(sizes)
        counts, lengths = tables.clone().view(torch.int64).view(2, -1, 2)
        weight = rest.clone().view(torch.float32) if flags & 2 else None
        about = nodes, life, bool(flags & 1), start, stop, first
        in_order = 1 <= nodes <= MAX_NODES and life >= 1 and 0 <= first <= start <= stop
        in_range = bool(((counts >= 0) & (counts <= lengths)).all())  # each number takes a byte or more
        if not in_order or not in_range or int(lengths.sum()) != num_bytes:
            raise ValueError(
                f"packed snapshots: the header {header} does not fit what follows; send them again"
            )
        if weights != (int(counts[:, 0].sum()) if flags & 2 else 0):
            raise ValueError(
                f"packed snapshots: {weights} weights for {int(counts[:, 0].sum())} pairs; send them again"
            )
        return Chunk(*about, counts, lengths, packed, weight, as_deltas=bool(flags & 4))

    def pairs(self, step: int) -> tuple[Tensor, Tensor]:
        """Unpack the pairs added at a step: destinations and sources, (n,) int32, ascending."""
        row = step - self.first
        data = self.data[self._begin[2 * row] : self._begin[2 * row + 1]]
        count = int(self.counts[row, 0])
        return native.unpack_pairs(data, count, num_rows=self.num_nodes, num_cols=self.num_nodes)

    def removed(self, step: int, num_edges: int) -> Tensor:
        """Unpack the positions, in the previous snapshot, of the edges removed at a step, (n,) int64, ascending."""
        row = step - self.first
        data = self.data[self._begin[2 * row + 1] : self._begin[2 * row + 2]]
        return native.unpack_ascending(data, int(self.counts[row, 1]), limit=num_edges)

    @cached_property
    def _begin(self) -> list[int]:
        return [0, *self.lengths.reshape(-1).cumsum(0).tolist()]

    def _parts(self) -> Iterator[Tensor]:
        flags = int(self.undirected) + 2 * (self.weight is not None) + 4 * self.as_deltas
        weights = 0 if self.weight is None else self.weight.numel()
        numbers = [
            self.num_nodes,
            self.life,
            flags,
            self.start,
            self.stop,
            self.first,
            self.data.numel(),
            weights,
        ]
        yield torch.tensor(numbers)
        yield torch.stack([self.counts, self.lengths])
        yield self.data
        if self.weight is not None:
            yield self.weight


class Packer:
    """Builds a chunk, step after step."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._counts: list[tuple[int, int]] = []
        self._data: list[Tensor] = []

    def add(self, new: Csr, removed: Tensor | None = None) -> None:
        """Add a step: a CSR of added pairs with sorted rows, and the positions of removed edges."""
        removed = torch.empty(0, dtype=torch.int64) if removed is None else removed
        self._counts.append((new.indices.numel(), removed.numel()))
        pairs = native.pack_pairs(edge_rows(new).int(), new.indices, num_cols=self._num_nodes)
        self._data += [pairs, native.pack_ascending(removed)]

    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return counts, lengths and data of the chunk."""
        lengths = torch.tensor([part.numel() for part in self._data], dtype=torch.int64).view(-1, 2)
        return torch.tensor(self._counts, dtype=torch.int64), lengths, torch.cat(self._data)


def difference(old: Csr, new: Csr) -> tuple[Csr, Tensor]:
    """Return the edges that ``new`` has and ``old`` lacks, and the positions in ``old`` of edges that ``new`` lacks."""
    return select_edges(new, native.edges_not_in(new, old)), native.edges_not_in(old, new)


def select_edges(csr: Csr, positions: Tensor) -> Csr:
    """Select the edges at ascending positions."""
    return Csr(torch.searchsorted(positions, csr.indptr), csr.indices[positions])


def edge_rows(csr: Csr) -> Tensor:
    """Return the row of each edge, (E,) int64."""
    return torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())


def _checksum(*parts: Tensor) -> Tensor:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(part.numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)
