"""Keyed neighbour sampling, and local rows for sampled nodes; plain versions in ``sampling_reference``.

A sample depends on a key and the node's own id alone: not on threads, ranks or other samples. Nodes come in groups,
such as minibatches; ``sizes`` has the number of nodes of each group.
"""

from typing import Any

import torch
from torch import Tensor

from siafu.native import core
from siafu.native import sampling_reference as reference
from siafu.native.memory import empty_rows
from siafu.native.values import Csr, RelabelledRows, SampledRows


def sample_edges(
    csr: Csr,
    rows: Tensor,
    *,
    sizes: Tensor,
    key: Tensor,
    fanout: int,
    replace: bool = False,
    node_id: Tensor | None = None,
    name: Tensor | None = None,
    edges: bool = False,
) -> SampledRows:
    """Sample at most ``fanout`` edges of each row, (R,) int32; all edges if ``fanout`` is negative.

    ``sizes`` and ``key`` are (G,) int64, one per group. ``node_id`` is the id of each row of the CSR, ``name`` the
    int32 name of each column; None stands for their numbers. ``edges`` asks for the positions of edges too.
    """
    group_ptr = _group_ptr(sizes)
    if core.kernels is None:
        known: dict[str, Any] = {"node_id": node_id, "name": name, "edges": edges}
        return reference.sample_edges(
            csr, rows, group_ptr=group_ptr, key=key, fanout=fanout, replace=replace, **known
        )
    asked = (csr.indptr, csr.indices, name, node_id, rows, group_ptr, key, fanout, replace)
    indptr = torch.empty(rows.numel() + 1, dtype=torch.int64)
    core.kernels.count_draws(*asked, indptr)
    num_edges = int(indptr[-1])
    source = empty_rows(num_edges, 1, torch.int32)[:, 0]
    edge = torch.empty(num_edges, dtype=torch.int64) if edges else None
    core.kernels.draw_edges(*asked, indptr, source, edge)
    return SampledRows(indptr, source, edge)


def sample_and_relabel(
    csr: Csr,
    known: list[Tensor],
    *,
    key: Tensor,
    fanout: int,
    replace: bool = False,
    node_id: Tensor | None = None,
    edges: bool = False,
) -> RelabelledRows:
    """Run :func:`sample_edges` and :func:`local_rows` in one pass, while the samples are in the cache.

    ``known`` has the distinct rows of each group, (R,) int32; columns use the same names as rows.
    """
    rows, sizes = torch.cat(known), torch.tensor([nodes.numel() for nodes in known])
    if core.kernels is None:
        drawn = sample_edges(
            csr, rows, sizes=sizes, key=key, fanout=fanout, replace=replace, node_id=node_id, edges=edges
        )
        num_met = drawn.indptr[_group_ptr(sizes)].diff().tolist()
        return RelabelledRows(drawn.indptr, *local_rows(known, drawn.source, num_met), drawn.edge)
    group_ptr, indptr = _group_ptr(sizes), torch.empty(rows.numel() + 1, dtype=torch.int64)
    asked = (csr.indptr, csr.indices, None, node_id, rows, group_ptr, key, fanout, replace)
    core.kernels.count_draws(*asked, indptr)
    num_met = indptr[group_ptr].diff().tolist()
    num_edges = sum(num_met)
    place, fresh = (empty_rows(num_edges, 1, torch.int32)[:, 0] for _ in range(2))
    edge = torch.empty(num_edges, dtype=torch.int64) if edges else None
    num_fresh = torch.empty(len(known), dtype=torch.int64)
    core.kernels.draw_met(*asked, indptr, place, edge, fresh, num_fresh)
    firsts = [group[:count] for group, count in zip(fresh.split(num_met), num_fresh.tolist(), strict=True)]
    return RelabelledRows(indptr, list(place.split(num_met)), firsts, edge)


def local_rows(known: list[Tensor], met: Tensor, sizes: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """For each group, number its nodes: known ones first, then new ones in order. Return rows and new nodes.

    ``known`` has the distinct nodes of each group. ``sizes`` says how many of the nodes ``met``, (E,), belong to each
    group. Nodes and rows are int32 and not negative.
    """
    if core.kernels is None:
        return reference.local_rows(known, met, sizes)
    places, fresh = (empty_rows(met.numel(), 1, torch.int32)[:, 0] for _ in range(2))
    num_fresh = torch.empty(len(sizes), dtype=torch.int64)
    known_ptr = _group_ptr(torch.tensor([nodes.numel() for nodes in known]))
    met_ptr = _group_ptr(torch.tensor(sizes))
    core.kernels.first_met(torch.cat(known), known_ptr, met, met_ptr, places, fresh, num_fresh)
    groups = zip(fresh.split(sizes), num_fresh.tolist(), strict=True)
    return list(places.split(sizes)), [group[:count].clone() for group, count in groups]


def scatter_rows(indptr: Tensor, values: Tensor, rows: Tensor, to: Tensor, out: Tensor) -> None:
    """Copy the 4-byte values of CSR row ``i`` to offset ``to[rows[i]]`` of ``out``."""
    if core.kernels is None:
        reference.scatter_rows(indptr, values, rows, to, out)
    else:
        core.kernels.spread_rows(indptr, values.view(torch.int32), rows, to, out.view(torch.int32))


def sort_rows_by_id(csr: Csr, node_id: Tensor, *, indices: Tensor | None = None) -> Csr:
    """Sort each row's columns by their ids, which no relabelling of columns changes; ``origin`` is permuted alike.

    ``indices`` is an (E,) int32 buffer for the result; None allocates one.
    """
    indices = torch.empty_like(csr.indices) if indices is None else indices
    if core.kernels is None:
        out = reference.sort_rows_by_id(csr, node_id)
        return out._replace(indices=indices.copy_(out.indices))
    origin = None if csr.origin is None else csr.origin.clone()
    out = Csr(csr.indptr, indices.copy_(csr.indices), origin)
    core.kernels.sort_rows_by_id(out.indptr, out.indices, out.origin, node_id)
    return out


def _group_ptr(sizes: Tensor) -> Tensor:
    """Return the begin of each group and the end of the last: (G,) -> (G + 1,)."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
