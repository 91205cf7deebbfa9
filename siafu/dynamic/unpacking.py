"""The log of events that a chunk was packed from, step by step, in the order of its pairs."""

from collections.abc import Iterator

import torch
from torch import Tensor

from siafu.dynamic.chunk import Chunk, rows_of
from siafu.dynamic.delta_snapshots import DeltaSnapshots
from siafu.graph import Block


def events_of(chunk: Chunk) -> Iterator[tuple[Tensor, Tensor]]:
    """Sources and targets of the events of each step from ``chunk.first`` on, (n,) int32, targets ascending.

    A pair of an undirected graph comes as it was packed, its higher node as the target.
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
    """The events of which a snapshot is made; an undirected one has each twice, a loop in the same place."""
    row, col = rows_of(block.csr).int(), block.indices
    if not undirected:
        return col, row
    once, loops = row > col, (row == col).nonzero()[:, 0]
    once[loops[::2]] = True
    return col[once], row[once]


def log_of(chunk: Chunk) -> tuple[Tensor, Tensor, Tensor]:
    """All events of a chunk, sources and targets, and how many each step has."""
    events = list(events_of(chunk))
    src, dst = (torch.cat(ends) for ends in zip(*events, strict=True))
    return src, dst, torch.tensor([each.numel() for each, _ in events])
