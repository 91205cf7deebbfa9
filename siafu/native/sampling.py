"""Which in-edges of a node are drawn, and the places of the nodes that are met; twins in ``sampling_reference``.

What is drawn depends on a key and the node's own id alone: not on threads, ranks, or what else is drawn.
"""

from typing import TYPE_CHECKING, NamedTuple

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
        edge: (E,) int64, places of edges, ascending within a row.
    """

    indptr: Tensor
    edge: Tensor


def draw(
    csr: "Csr", rows: Tensor, *, key: Tensor, node_id: Tensor, fanout: int, replace: bool = False
) -> Draws:
    """At most ``fanout`` edges of each row, all where it is negative; ``key`` and ``node_id`` are (R,) int64."""
    if native._core is None:
        return reference.draw(csr, rows, key=key, node_id=node_id, fanout=fanout, replace=replace)
    indptr = torch.empty(rows.numel() + 1, dtype=torch.int64)
    native._core.count_draws(csr.indptr, rows, fanout, replace, indptr)
    edge = torch.empty(int(indptr[-1]), dtype=torch.int64)
    native._core.draw_edges(csr.indptr, rows, key, node_id, fanout, replace, indptr, edge)
    return Draws(indptr, edge)


def first_met(known: list[Tensor], met: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """For each group, the places of met nodes among the known ones and then those met first; and the latter.

    Nodes are int64 and not negative; places are int32.
    """
    if native._core is None:
        return reference.first_met(known, met)
    place = [torch.empty(nodes.numel(), dtype=torch.int32) for nodes in met]
    all_met = torch.cat(met)
    places, fresh = torch.empty(all_met.numel(), dtype=torch.int32), torch.empty_like(all_met)
    num_fresh = torch.empty(len(met), dtype=torch.int64)
    native._core.first_met(torch.cat(known), _ends(known), all_met, _ends(met), places, fresh, num_fresh)
    place = list(places.split([nodes.numel() for nodes in met]))
    groups = fresh.split([nodes.numel() for nodes in met])
    return place, [group[:count] for group, count in zip(groups, num_fresh.tolist(), strict=True)]


def sort_rows_by_id(csr: "Csr", node_id: Tensor) -> "Csr":
    """Each row's columns in the order of their ids, which no renaming of columns changes; ``origin`` goes along."""
    if native._core is None:
        return reference.sort_rows_by_id(csr, node_id)
    origin = None if csr.origin is None else csr.origin.clone()
    out = native.Csr(csr.indptr, csr.indices.clone(), origin)
    native._core.sort_rows_by_id(out.indptr, out.indices, out.origin, node_id)
    return out


def _ends(groups: list[Tensor]) -> Tensor:
    return torch.tensor([0, *(nodes.numel() for nodes in groups)]).cumsum(0)
