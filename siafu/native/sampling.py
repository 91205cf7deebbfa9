"""Which in-edges of a node are drawn, and the places of the nodes that are met; twins in ``sampling_reference``.

What is drawn depends on a key and the node's own id alone: not on threads, ranks, or what else is drawn. Nodes come in
groups, such as minibatches; ``sizes`` says how many each has.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

import siafu.native as native
from siafu.native import sampling_reference as reference

if TYPE_CHECKING:
    from siafu.native import Csr


class Draws(NamedTuple):
    """Edges drawn for R rows.

    Attributes:
        indptr: (R + 1,) int64.
        source: (E,) int32, the names of the columns that they come from, in the order of the edges.
        edge: (E,) int64, their places, ascending within a row; None where nobody asked.
    """

    indptr: Tensor
    source: Tensor
    edge: Tensor | None = None


def draw(
    csr: "Csr",
    rows: Tensor,
    *,
    sizes: Tensor,
    key: Tensor,
    fanout: int,
    replace: bool = False,
    node_id: Tensor | None = None,
    name: Tensor | None = None,
    edges: bool = False,
) -> Draws:
    """At most ``fanout`` edges of each row, all where it is negative: (R,) int32.

    ``sizes`` and ``key`` are (G,) int64, of the groups; ``node_id`` is that of each row of the CSR, ``name`` that of
    each column, int32; None: its number. ``edges`` asks for the places of edges too.
    """
    group_ptr = _ends(sizes)
    if native._core is None:
        known: dict[str, Any] = {"node_id": node_id, "name": name, "edges": edges}
        return reference.draw(
            csr, rows, group_ptr=group_ptr, key=key, fanout=fanout, replace=replace, **known
        )
    asked = (csr.indptr, csr.indices, name, node_id, rows, group_ptr, key, fanout, replace)
    indptr = torch.empty(rows.numel() + 1, dtype=torch.int64)
    native._core.count_draws(*asked, indptr)
    num_edges = int(indptr[-1])
    source = native.empty_rows(num_edges, 1, torch.int32)[:, 0]
    edge = torch.empty(num_edges, dtype=torch.int64) if edges else None
    native._core.draw_edges(*asked, indptr, source, edge)
    return Draws(indptr, source, edge)


class Met(NamedTuple):
    """Edges drawn for R rows in G groups, and the nodes that they come from.

    Attributes:
        indptr: (R + 1,) int64.
        places: of each group, (E,) int32, where the edges' sources stand among its rows and then those met first.
        fresh: of each group, (N,) int32, the nodes met first; parts of one array.
        edge: (E,) int64, the places of all edges; None where nobody asked.
    """

    indptr: Tensor
    places: list[Tensor]
    fresh: list[Tensor]
    edge: Tensor | None = None


def sample_and_relabel(
    csr: "Csr",
    known: list[Tensor],
    *,
    key: Tensor,
    fanout: int,
    replace: bool = False,
    node_id: Tensor | None = None,
    edges: bool = False,
) -> Met:
    """What :func:`draw` and :func:`local_rows` find, at once: what was drawn is placed before it leaves the cache.

    ``known`` has the rows of each group, (R,) int32, none of them twice; columns are called as rows are.
    """
    rows, sizes = torch.cat(known), torch.tensor([nodes.numel() for nodes in known])
    if native._core is None:
        drawn = draw(
            csr, rows, sizes=sizes, key=key, fanout=fanout, replace=replace, node_id=node_id, edges=edges
        )
        num_met = drawn.indptr[_ends(sizes)].diff().tolist()
        return Met(drawn.indptr, *local_rows(known, drawn.source, num_met), drawn.edge)
    group_ptr, indptr = _ends(sizes), torch.empty(rows.numel() + 1, dtype=torch.int64)
    asked = (csr.indptr, csr.indices, None, node_id, rows, group_ptr, key, fanout, replace)
    native._core.count_draws(*asked, indptr)
    num_met = indptr[group_ptr].diff().tolist()
    num_edges = sum(num_met)
    place, fresh = (native.empty_rows(num_edges, 1, torch.int32)[:, 0] for _ in range(2))
    edge = torch.empty(num_edges, dtype=torch.int64) if edges else None
    num_fresh = torch.empty(len(known), dtype=torch.int64)
    native._core.draw_met(*asked, indptr, place, edge, fresh, num_fresh)
    firsts = [group[:count] for group, count in zip(fresh.split(num_met), num_fresh.tolist(), strict=True)]
    return Met(indptr, list(place.split(num_met)), firsts, edge)


def local_rows(known: list[Tensor], met: Tensor, sizes: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """For each group, the places of met nodes among the known ones and then those met first; and the latter.

    ``known`` has no node of a group twice. ``sizes`` says how many of the met nodes, (E,), belong to each group. Nodes
    are int32 and not negative; so are places.
    """
    if native._core is None:
        return reference.local_rows(known, met, sizes)
    places, fresh = (native.empty_rows(met.numel(), 1, torch.int32)[:, 0] for _ in range(2))
    num_fresh = torch.empty(len(sizes), dtype=torch.int64)
    known_ptr = _ends(torch.tensor([nodes.numel() for nodes in known]))
    met_ptr = _ends(torch.tensor(sizes))
    native._core.first_met(torch.cat(known), known_ptr, met, met_ptr, places, fresh, num_fresh)
    groups = zip(fresh.split(sizes), num_fresh.tolist(), strict=True)
    return list(places.split(sizes)), [group[:count].clone() for group, count in groups]


def scatter_rows(indptr: Tensor, values: Tensor, rows: Tensor, to: Tensor, out: Tensor) -> None:
    """Copy the values of row ``i``, 4 bytes each, to where those of row ``rows[i]`` begin, as ``to`` says."""
    if native._core is None:
        reference.scatter_rows(indptr, values, rows, to, out)
    else:
        native._core.spread_rows(indptr, values.view(torch.int32), rows, to, out.view(torch.int32))


def sort_rows_by_id(csr: "Csr", node_id: Tensor, *, indices: Tensor | None = None) -> "Csr":
    """Each row's columns in the order of their ids, which no renaming of columns changes; ``origin`` goes along.

    ``indices`` is memory for the result's, (E,) int32; None: it is made.
    """
    indices = torch.empty_like(csr.indices) if indices is None else indices
    if native._core is None:
        out = reference.sort_rows_by_id(csr, node_id)
        return out._replace(indices=indices.copy_(out.indices))
    origin = None if csr.origin is None else csr.origin.clone()
    out = native.Csr(csr.indptr, indices.copy_(csr.indices), origin)
    native._core.sort_rows_by_id(out.indptr, out.indices, out.origin, node_id)
    return out


def _ends(sizes: Tensor) -> Tensor:
    """Where each group begins, and the last ends: (G,) -> (G + 1,)."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
