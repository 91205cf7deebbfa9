"""The graph of each step, as a view of the log of events: what lives at a step is what happened of late.

A snapshot follows from the one before by putting in the events of its step and taking out those that are too old, in
one linear pass; it is the same, bit for bit, as what would be built from nothing.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from siafu import native
from siafu.array_checks import ValidatedCsr
from siafu.dynamic.chunk import Chunk, Packer
from siafu.dynamic.delta_snapshots import DeltaSnapshots, pack_deltas
from siafu.dynamic.graph import DynamicGraph
from siafu.dynamic.unpacking import log_of
from siafu.graph import Block
from siafu.native import Csr
from siafu.prefetch import prefetch

_KEY_EVERY = 16  # steps
_FEW = 8  # so many deltas still cost less than building a snapshot anew


class Snapshots:
    """A view of a dynamic graph in which an event lives for ``life`` steps; it keeps key frames and nothing else.

    The snapshot of step t is the multiset of the events of steps ``t - life + 1`` to ``t``, by destination, in both
    directions where the graph is undirected: a pair that happened c times stands c times, so that it is the sum of the
    last ``life`` adjacencies without a value an edge. Key frames are kept where a life is longer than the way between
    two of them; elsewhere the log itself is as near.
    """

    def __init__(
        self, graph: DynamicGraph, *, life: int, weighted: bool = False, steps: range | None = None
    ) -> None:
        """With ``weighted`` edges weigh what the events do, else 1.

        ``steps`` are those there are; where the log is a part of a longer one, its last step is the last of them, and
        its first steps are there for edges that live on.
        """
        if life < 1:
            raise ValueError(f"{graph.name}: an edge life of {life} steps; expected at least 1")
        if weighted and graph.weight is None:
            raise ValueError(f"{graph.name}: weights were asked for, but its events have none")
        self.graph, self.life, self.weighted = graph, life, weighted
        self.steps = range(graph.num_steps) if steps is None else steps
        self._first = self.steps.stop - graph.num_steps  # what step 0 of the log is called
        self._key_frames: dict[int, Csr] = {}
        self._last: tuple[int, Csr] | None = None

    def block(self, step: int) -> Block:
        """The snapshot of one step: N rows, N columns, the columns of a row ascending."""
        return self._block(self._reach(self._log_step(step)))

    def walk(self, start: int, stop: int) -> Iterator[Block]:
        """The snapshots of steps ``start`` to before ``stop``, each made while the one before is used."""
        if stop <= start:
            return iter(())
        return prefetch(map(self._block, self._csrs(self._log_step(start), self._log_step(stop - 1) + 1)))

    def pack(self, start: int, stop: int, *, deltas: bool = True) -> Chunk:
        """The snapshots of steps ``start`` to before ``stop`` in few bytes; see :func:`unpack`.

        Where an edge lives for one step and has no weight, they are packed as ``deltas``, or as the events that they
        are where snapshots have little in common.
        """
        begin, end = self._log_step(start), self._log_step(stop - 1) + 1
        first, weight = begin, None
        deltas = deltas and self.life == 1 and not self.weighted
        if deltas:
            counts, lengths, data = pack_deltas(self._csrs(begin, end), self.graph.num_nodes)
        else:
            first = max(0, begin - self.life + 1)
            (counts, lengths, data), weight = self._pack_log(first, end)
        graph, first = self.graph, first + self._first
        about = graph.num_nodes, self.life, graph.undirected, start, stop, first
        return Chunk(*about, counts, lengths, data, weight, as_deltas=deltas)

    def degree(self, step: int) -> Tensor:
        """(N,) float32, the in-degree in the snapshot: how many edges, or the sum of their weights."""
        events = self._window(self._log_step(step))
        degree = self._counts(self.graph.dst, events)
        return degree + self._counts(self.graph.src, events) if self.graph.undirected else degree

    def active(self, step: int) -> Tensor:
        """(N,) bool, whether a node has an edge in the snapshot."""
        events = self._window(self._log_step(step))
        active = torch.zeros(self.graph.num_nodes, dtype=torch.bool)
        active[self.graph.src[events].long()] = True
        active[self.graph.dst[events].long()] = True
        return active

    def _log_step(self, step: int) -> int:
        """What a step is called in the log."""
        if step not in self.steps:
            there = f"{self.steps.start} to {self.steps.stop - 1}"
            raise IndexError(f"{self.graph.name}: step {step} of {len(self.steps)} ({there})")
        return step - self._first

    def _window(self, step: int) -> slice:
        return self.graph.events(step - self.life + 1, step + 1)

    def _counts(self, ends: Tensor, events: slice) -> Tensor:
        weight = self.graph.weight[events] if self.weighted and self.graph.weight is not None else None
        return torch.bincount(ends[events], weight, minlength=self.graph.num_nodes).float()

    def _block(self, csr: Csr) -> Block:
        weight, known = None, ValidatedCsr(csr.indptr, csr.indices, self.graph.num_nodes)  # as the log is
        if self.weighted and self.graph.weight is not None and csr.origin is not None:
            weight = self.graph.weight[csr.origin]
        return Block(csr.indptr, csr.indices, self.graph.num_nodes, weight, checked=known)

    def _csrs(self, start: int, stop: int) -> Iterator[Csr]:
        csr = self._reach(start)
        yield csr
        for step in range(start + 1, stop):
            csr = self._next(step, csr)
            self._keep(step, csr)
            yield csr

    def _reach(self, step: int) -> Csr:
        """The snapshot of a step, from the nearest one at hand, or built."""
        frames = (
            dict(self._key_frames) if self._last is None else dict([*self._key_frames.items(), self._last])
        )
        near = max((at for at in frames if at <= step), default=None)
        if near is None or step - near > min(_FEW, self.life // 2):
            csr = self._build(self._window(step))
        else:
            csr = frames[near]
            for at in range(near + 1, step + 1):
                csr = self._next(at, csr)
        self._keep(step, csr)
        return csr

    def _next(self, step: int, csr: Csr) -> Csr:
        """The snapshot of a step from that of the step before."""
        new, old = (
            self.graph.events(step, step + 1),
            self.graph.events(step - self.life, step - self.life + 1),
        )
        window = self._window(step)
        if new.stop - new.start + old.stop - old.start >= window.stop - window.start:
            return self._build(window)
        return native.apply_delta(csr, add=self._build(new), drop=self._build(old, plain=True))

    def _keep(self, step: int, csr: Csr) -> None:
        self._last = step, csr
        if self.life > _KEY_EVERY and step % _KEY_EVERY == 0:
            self._key_frames[step] = csr

    def _pack_log(self, first: int, stop: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """The events of some steps of the log, and their weights; a pair of an undirected graph by its higher node."""
        packer, weights = Packer(self.graph.num_nodes), []
        for step in range(first, stop):
            events = self.graph.events(step, step + 1)
            row, col = self.graph.dst[events], self.graph.src[events]
            if self.graph.undirected:
                row, col = torch.maximum(row, col), torch.minimum(row, col)
            csr = native.build_csr(row, col, num_rows=self.graph.num_nodes, origin=self.weighted)
            csr = native.sort_rows(csr)
            packer.add(csr)
            if csr.origin is not None and self.graph.weight is not None:
                weights.append(self.graph.weight[events][csr.origin])
        return packer.arrays(), torch.cat(weights) if self.weighted else None

    def _build(self, events: slice, *, plain: bool = False) -> Csr:
        """The CSR of some events; ``origin`` is the event of each edge, where weights are asked for."""
        row, col = self.graph.dst[events], self.graph.src[events]
        if self.graph.undirected:  # an event beside its reverse: equal columns are in the order of events
            row, col = torch.stack([row, col], 1).reshape(-1), torch.stack([col, row], 1).reshape(-1)
        weighted = self.weighted and not plain
        csr = native.build_csr(row, col, num_rows=self.graph.num_nodes, origin=weighted)
        csr = native.sort_rows(csr)
        if csr.origin is None:
            return csr
        origin = csr.origin // 2 if self.graph.undirected else csr.origin
        return csr._replace(origin=origin + events.start)


def unpack(chunk: Chunk) -> Snapshots | DeltaSnapshots:
    """The snapshots of a chunk, which are reached as those that were packed are: ``block`` and ``walk``."""
    if chunk.as_deltas:
        return DeltaSnapshots(chunk)
    src, dst, counts = log_of(chunk)
    ptr = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    ptr[1:] = counts.cumsum(0)
    graph = DynamicGraph(
        *(src, dst, ptr, chunk.num_nodes),
        undirected=chunk.undirected,
        weight=chunk.weight,
        name="chunk",
        checked=(src, dst),  # what does not fit the chunk's nodes is refused as it is unpacked
    )
    weighted, steps = chunk.weight is not None, range(chunk.start, chunk.stop)
    return Snapshots(graph, life=chunk.life, weighted=weighted, steps=steps)
