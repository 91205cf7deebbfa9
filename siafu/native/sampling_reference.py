"""Sampling in plain Python; see :mod:`siafu.native.sampling`."""

import torch
from torch import Tensor

from siafu.native.values import Csr, SampledRows

_MASK = 2**64 - 1


def _mixed(key: int, value: int) -> int:
    z = (key + value * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _draw_row(stream: int, degree: int, fanout: int, replace: bool) -> list[int]:
    def number(place: int, bound: int) -> int:
        return (_mixed(stream, place) * bound) >> 64

    if fanout < 0 or (not replace and degree <= fanout) or degree == 0:
        return list(range(degree))
    if replace:
        return sorted(number(place, degree) for place in range(fanout))
    drawn: list[int] = []
    for top in range(degree - fanout, degree):  # Floyd's method
        pick = number(len(drawn), top + 1)
        drawn.append(top if pick in drawn else pick)
    return sorted(drawn)


def sample_edges(
    csr: Csr,
    rows: Tensor,
    *,
    group_ptr: Tensor,
    key: Tensor,
    fanout: int,
    replace: bool,
    node_id: Tensor | None,
    name: Tensor | None,
    edges: bool,
) -> SampledRows:
    """Sample edges; see :func:`siafu.native.sample_edges`."""
    drawn: list[int] = []
    counts = [0]
    keys = key.repeat_interleave(group_ptr.diff())
    for row, row_key in zip(rows.tolist(), keys.tolist(), strict=True):
        begin, end = int(csr.indptr[row]), int(csr.indptr[row + 1])
        stream = _mixed(row_key & _MASK, row if node_id is None else int(node_id[row]))
        drawn += [begin + place for place in _draw_row(stream, end - begin, fanout, replace)]
        counts.append(len(drawn))
    edge = torch.tensor(drawn, dtype=torch.int64)
    source = csr.indices[edge]
    source = source if name is None else name[source.long()]
    return SampledRows(torch.tensor(counts), source, edge if edges else None)


def local_rows(known: list[Tensor], met: Tensor, sizes: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Number nodes by first occurrence; see :func:`siafu.native.local_rows`."""
    places, firsts = [], []
    for nodes, seen in zip(known, met.split(sizes), strict=True):
        place_of = {node: place for place, node in enumerate(nodes.tolist())}
        fresh: list[int] = []
        for node in seen.tolist():
            if node not in place_of:
                place_of[node] = len(place_of)
                fresh.append(node)
        places.append(torch.tensor([place_of[node] for node in seen.tolist()], dtype=torch.int32))
        firsts.append(torch.tensor(fresh, dtype=torch.int32))
    return places, firsts


def scatter_rows(indptr: Tensor, values: Tensor, rows: Tensor, to: Tensor, out: Tensor) -> None:
    """Copy rows of values; see :func:`siafu.native.scatter_rows`."""
    begins, ends = indptr[:-1].tolist(), indptr[1:].tolist()
    for begin, end, row in zip(begins, ends, rows.tolist(), strict=True):
        out[int(to[row]) : int(to[row]) + end - begin] = values[begin:end]


def sort_rows_by_id(csr: Csr, node_id: Tensor) -> Csr:
    """Columns in the order of their ids; see :func:`siafu.native.sort_rows_by_id`."""
    row_edge = torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())
    order = node_id[csr.indices.long()].argsort(stable=True)
    order = order[row_edge[order].argsort(stable=True)]
    return Csr(csr.indptr, csr.indices[order], None if csr.origin is None else csr.origin[order])
