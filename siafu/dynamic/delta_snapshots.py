"""Snapshots of an unpacked chunk that holds one key frame and a delta for each later step."""

from collections.abc import Iterator

from torch import Tensor

from siafu import native
from siafu.array_checks import ValidatedCsr
from siafu.dynamic.chunk import Chunk, Packer, difference, select_edges
from siafu.graph import Block
from siafu.native import Csr
from siafu.prefetch import prefetch


class DeltaSnapshots:
    """The snapshots of a chunk with edge life 1; caches the last snapshot made."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self._last: tuple[int, Csr] | None = None

    def block(self, step: int) -> Block:
        """Return the snapshot of a step, from the cached one if that is not later, else from the key frame."""
        self._check(step)
        at, csr = (
            self._last if self._last is not None and self._last[0] <= step else (self.chunk.start - 1, None)
        )
        while at < step:
            at, csr = at + 1, self._next(at + 1, csr)
        assert csr is not None
        self._last = step, csr
        known = ValidatedCsr(
            csr.indptr, csr.indices, self.chunk.num_nodes
        )  # pairs out of range are not unpacked
        return Block(csr.indptr, csr.indices, self.chunk.num_nodes, checked=known)

    def walk(self, start: int, stop: int) -> Iterator[Block]:
        """Yield the snapshots of steps ``start`` to before ``stop``, each prefetched while the previous one is used."""
        if stop <= start:
            return iter(())
        self._check(start)
        self._check(stop - 1)
        return prefetch(map(self.block, range(start, stop)))

    def _check(self, step: int) -> None:
        if not self.chunk.start <= step < self.chunk.stop:
            raise IndexError(f"step {step} of a chunk of steps {self.chunk.start} to {self.chunk.stop - 1}")

    def _next(self, step: int, csr: Csr | None) -> Csr:
        add = native.build_csr(*self.chunk.pairs(step), num_rows=self.chunk.num_nodes)
        if csr is None:
            return add
        return native.apply_delta(
            csr, add=add, drop=select_edges(csr, self.chunk.removed(step, csr.indices.numel()))
        )


def pack_deltas(snapshots: Iterator[Csr], num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pack snapshots into counts, lengths and data: the first as key frame, each other one as a delta."""
    packer, before = Packer(num_nodes), None
    for csr in snapshots:
        if before is None:
            packer.add(csr)
        else:
            packer.add(*difference(before, csr))
        before = csr
    return packer.arrays()
