"""Recover the event log that a chunk was packed from, step by step."""

from collections.abc import Iterator

import torch
from torch import Tensor

from siafu.dynamic.chunk import Chunk, edge_rows
from siafu.dynamic.delta_snapshots import DeltaSnapshots
from siafu.graph import Block


def events_of(chunk: Chunk) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield sources and targets of the events of each step from ``chunk.first`` on, (n,) int32, targets ascending.

    An undirected pair comes as it was packed, with its higher node as the target.
    """
    if chunk.as_deltas:
        deltas = DeltaSnapshots(chunk)
        for step in range(chunk.first, chunk.stop):
            yield _events(deltas.block(step), undirected=chunk.undirected)
        return
    for step in range(chunk.first, chunk.stop):
        row, col = chunk.pairs(step)
        yield col, row


def _events(block: Block, *, undirected: bool) -> tuple[Tensor, Tensor]:
    """Recover the events of a snapshot; undirected ones occur twice in it, a self-loop at adjacent positions."""
    row, col = edge_rows(block.csr).int(), block.indices
    if not undirected:
        return col, row
    once, loops = row > col, (row == col).nonzero()[:, 0]
    once[loops[::2]] = True
    return col[once], row[once]


def unpack_log(chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources and targets of all events of a chunk, and the number of events of each step."""
    events = list(events_of(chunk))
    src, dst = (torch.cat(ends) for ends in zip(*events, strict=True))
    return src, dst, torch.tensor([each.numel() for each, _ in events])
