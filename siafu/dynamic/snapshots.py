"""Snapshots: the graph of each step, as a view of the event log.

A snapshot is made from the previous one in one linear pass, by adding the events of its step and removing expired ones.
The result is bit for bit the same as building it from scratch.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from siafu import native
from siafu.array_checks import ValidatedCsr
from siafu.dynamic.chunk import Chunk, Packer
from siafu.dynamic.delta_snapshots import DeltaSnapshots, pack_deltas
from siafu.dynamic.graph import DynamicGraph
from siafu.dynamic.unpacking import unpack_log
from siafu.graph import Block
from siafu.native import Csr
from siafu.prefetch import prefetch

_KEY_FRAME_INTERVAL = 16  # steps
_MAX_DELTAS = 8  # so many deltas still cost less than building a snapshot anew


class Snapshots:
    """A view of a dynamic graph in which an event lives for ``life`` steps; caches key frames only.

    The snapshot of step t is the multiset of the events of steps ``t - life + 1`` to ``t``, by destination, in both
    directions where the graph is undirected. A pair that occurred c times is there c times, so the snapshot is the sum
    of the last ``life`` adjacency matrices without stored values. Key frames are cached only where ``life`` exceeds the
    interval between them; otherwise building from the log is as cheap.
    """

    def __init__(
        self, graph: DynamicGraph, *, life: int, weighted: bool = False, steps: range | None = None
    ) -> None:
        """Make a view; with ``weighted`` edges have the weights of their events, else 1.

        ``steps`` are the steps of the view. If the log is a part of a longer one, its last step is the last of
        ``steps``; its earlier steps hold edges that are still alive.
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
        """Return the snapshot of one step: N rows, N columns, sorted columns in each row."""
        return self._block(self._find(self._log_step(step)))

    def walk(self, start: int, stop: int) -> Iterator[Block]:
        """Yield the snapshots of steps ``start`` to before ``stop``, each prefetched while the previous one is used."""
        if stop <= start:
            return iter(())
        return prefetch(map(self._block, self._csrs(self._log_step(start), self._log_step(stop - 1) + 1)))

    def pack(self, start: int, stop: int, *, deltas: bool = True) -> Chunk:
        """Pack the snapshots of steps ``start`` to before ``stop`` into few bytes; see :func:`unpack`.

        If an edge lives for one step and has no weight, they are packed as a key frame and deltas. ``deltas=False``
        packs the events themselves, which is smaller where snapshots have little in common.
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
        """Return the in-degree in the snapshot, (N,) float32: the number of edges, or the sum of their weights."""
        events = self._window(self._log_step(step))
        degree = self._counts(self.graph.dst, events)
        return degree + self._counts(self.graph.src, events) if self.graph.undirected else degree

    def active(self, step: int) -> Tensor:
        """Return whether each node has an edge in the snapshot, (N,) bool."""
        events = self._window(self._log_step(step))
        active = torch.zeros(self.graph.num_nodes, dtype=torch.bool)
        active[self.graph.src[events].long()] = True
        active[self.graph.dst[events].long()] = True
        return active

    def _log_step(self, step: int) -> int:
        """Convert a step of the view to a step of the log."""
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
        csr = self._find(start)
        yield csr
        for step in range(start + 1, stop):
            csr = self._next(step, csr)
            self._cache(step, csr)
            yield csr

    def _find(self, step: int) -> Csr:
        """Return the snapshot of a step, from the nearest cached one or built from the log."""
        frames = (
            dict(self._key_frames) if self._last is None else dict([*self._key_frames.items(), self._last])
        )
        near = max((at for at in frames if at <= step), default=None)
        if near is None or step - near > min(_MAX_DELTAS, self.life // 2):
            csr = self._build(self._window(step))
        else:
            csr = frames[near]
            for at in range(near + 1, step + 1):
                csr = self._next(at, csr)
        self._cache(step, csr)
        return csr

    def _next(self, step: int, csr: Csr) -> Csr:
        """Make the snapshot of a step from the previous step's."""
        new, old = (
            self.graph.events(step, step + 1),
            self.graph.events(step - self.life, step - self.life + 1),
        )
        window = self._window(step)
        if new.stop - new.start + old.stop - old.start >= window.stop - window.start:
            return self._build(window)
        return native.apply_delta(csr, add=self._build(new), drop=self._build(old, plain=True))

    def _cache(self, step: int, csr: Csr) -> None:
        self._last = step, csr
        if self.life > _KEY_FRAME_INTERVAL and step % _KEY_FRAME_INTERVAL == 0:
            self._key_frames[step] = csr

    def _pack_log(self, first: int, stop: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """Pack the events of some steps and their weights; undirected pairs are stored by their higher node."""
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
        """Build the CSR of some events; ``origin`` is the event of each edge, if weights are asked for."""
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
    """Unpack a chunk; the result has ``block`` and ``walk`` as the packed snapshots had."""
    if chunk.as_deltas:
        return DeltaSnapshots(chunk)
    src, dst, counts = unpack_log(chunk)
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
