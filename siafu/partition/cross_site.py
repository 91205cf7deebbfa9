"""The part of one site: its own nodes, and the nodes of other sites that its edges come from.

No site sees the whole graph. A site sends each other site the ids that its cross edges name there, and learns whether
those nodes exist. Sites learn nothing else about each other's nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch
import xxhash
from torch import Tensor

from siafu import native
from siafu.comm import Comm
from siafu.comm.stale_rows import PartialRoute, StaleRowCache
from siafu.graph import Graph
from siafu.partition.cut import Part
from siafu.store.node_names import is_string

_COLUMNS = ("site", "src", "dst")
_LABEL = "ids"
_SHOWN = 3


@dataclass(frozen=True, eq=False)
class CrossEdges:
    """Edges from nodes of other sites to own nodes.

    Attributes:
        site: (E,) int64, the place in ``sites`` of who owns the source.
        sites: the names of other sites.
        src_id: (E,) int64, the sources' ids.
        dst_row: (E,) int64, own rows.
        weight: (E,) float32, or None where every edge weighs 1.
    """

    sites: tuple[str, ...]
    site: Tensor
    src_id: Tensor
    dst_row: Tensor
    weight: Tensor | None = None

    def named(self, site: str) -> Tensor:
        """Return the ids that edges name at a site, ascending and unique."""
        if site not in self.sites:
            return torch.empty(0, dtype=torch.int64)
        return self.src_id[self.site == self.sites.index(site)].unique()


def node_ids(graph: Graph) -> Tensor:
    """Return the ids by which other sites name nodes, (N,) int64: integers as they are, strings as 63-bit hashes."""
    if graph.node_names is not None:
        return hash_ids(graph.node_names)
    return torch.arange(graph.num_nodes) if graph.node_id is None else graph.node_id


def hash_ids(names: Any) -> Tensor:
    """Convert ids (an Arrow array of integers or strings) to numbers, (N,) int64."""
    names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    if pa.types.is_integer(names.type):
        return torch.from_numpy(names.cast(pa.int64()).to_numpy(zero_copy_only=False).copy())
    texts = names.to_pylist()
    return torch.tensor([xxhash.xxh3_64_intdigest(text.encode()) >> 1 for text in texts], dtype=torch.int64)


def no_cross_edges() -> CrossEdges:
    """Return the empty cross edges of a site whose nodes read no others."""
    nothing = torch.empty(0, dtype=torch.int64)
    return CrossEdges((), nothing, nothing, nothing)


def read_cross_edges(path: Path, graph: Graph, *, own: str, known: Sequence[str]) -> CrossEdges:
    """Read and validate a CSV or Parquet table with columns ``site``, ``src``, ``dst`` and maybe ``weight``.

    ``dst`` are ids of own nodes, ``src`` are ids of nodes of ``site``, which must be one of ``known``.
    """
    table = _open(path)
    missing = [name for name in _COLUMNS if name not in table.column_names]
    if missing:
        raise ValueError(
            f"{path} has columns {', '.join(table.column_names)}; expected {', '.join(_COLUMNS)} and maybe weight"
        )
    if any(table.column(name).null_count for name in _COLUMNS):
        raise ValueError(f"{path}: some cells are empty; expected a site and two ids in every row")
    sites = table.column("site").cast(pa.string()).combine_chunks().dictionary_encode()
    names = tuple(sites.dictionary.to_pylist())
    for name in names:
        if name not in known:
            row = int((sites.indices.to_numpy() == names.index(name)).argmax())
            told = (
                f"site {name}, which is this site itself"
                if name == own
                else f"site {name}, which nobody knows"
            )
            raise ValueError(f"{path}: row {row} names {told}; expected one of {', '.join(known)}")
    ids, src = node_ids(graph), _ids_of(path, table, "src")
    dst_row = _rows_of(path, table, ids)
    weight = None
    if "weight" in table.column_names:
        weight = torch.from_numpy(table.column("weight").to_numpy().astype(np.float32))
    found = CrossEdges(
        names, torch.from_numpy(sites.indices.to_numpy().astype(np.int64)), src, dst_row, weight
    )
    _check_owners(path, table, found, ids)
    return found


def build_site_part(
    comm: Comm,
    graph: Graph,
    cross: CrossEdges,
    *,
    names: Sequence[str],
    kept: Sequence[str] = (),
    memory: StaleRowCache | None = None,
) -> Part:
    """Build this site's part in a group of sites with these ``names``, by rank. Collective.

    Edges from absent sites are left out, except those of sites in ``kept``. Halo rows of sites in ``kept`` are stored
    last, and the rows in ``memory`` are used for them until the site returns.
    """
    ids, ones = node_ids(graph), [1] * comm.world_size
    asked = [cross.named(name) if rank != comm.rank else ids[:0] for rank, name in enumerate(names)]
    counts = torch.tensor([each.numel() for each in asked])
    due = comm.all_to_all(counts, ones, ones, label=_LABEL).tolist()
    came = comm.all_to_all(torch.cat(asked), counts.tolist(), due, label=_LABEL)
    rows, there = _find(ids, came)
    answers = comm.all_to_all(there, due, counts.tolist(), label=_LABEL)
    _check_answers(asked, answers.split(counts.tolist()), names)
    away = {name: cross.named(name) for name in kept}
    route = PartialRoute(
        rows,
        tuple(due),
        tuple(counts.tolist()),
        senders=list(zip(names, asked, strict=True)),
        away=list(away.items()),
        memory=memory or StaleRowCache(),
    )
    halo = torch.cat([*asked, *away.values()])
    whole = int(comm.all_reduce(torch.tensor([graph.num_nodes]), label=_LABEL))
    return Part(comm.rank, whole, _join_graph(graph, cross, ids, halo, [*names, *kept]), halo, route)


def _join_graph(graph: Graph, cross: CrossEdges, ids: Tensor, halo: Tensor, names: Sequence[str]) -> Graph:
    """Join own edges and cross edges into one graph over own rows, then halo rows."""
    src, dst, weight = [graph.indices.long()], [graph.block.row_edge.long()], [graph.edge_weight]
    begin = graph.num_nodes
    for name in names:
        if name not in cross.sites:
            continue
        mine = cross.site == cross.sites.index(name)
        asked = cross.src_id[mine].unique()
        src.append(begin + torch.searchsorted(asked, cross.src_id[mine]))
        dst.append(cross.dst_row[mine])
        weight.append(None if cross.weight is None else cross.weight[mine])
        begin += asked.numel()
    weighted = any(each is not None for each in weight)
    csr = native.build_csr(
        torch.cat(dst).int(), torch.cat(src).int(), num_rows=graph.num_nodes, origin=weighted
    )
    csr = native.sort_rows(csr)
    edge_weight = None
    if weighted:
        every = [torch.ones(s.numel()) if w is None else w for s, w in zip(src, weight, strict=True)]
        assert csr.origin is not None
        edge_weight = torch.cat(every)[csr.origin]
    return Graph(
        csr.indptr,
        csr.indices,
        **{
            name: getattr(graph, name)
            for name in ("x", "x_scale", "y", "train_mask", "val_mask", "test_mask")
        },
        edge_weight=edge_weight,
        node_id=ids,
        name=graph.name,
        class_names=graph.class_names,
        num_halo=halo.numel(),
    )


def _find(ids: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Find the rows of some ids, and whether each id exists."""
    order = ids.argsort()
    place = torch.searchsorted(ids[order], wanted).clamp(max=max(0, ids.numel() - 1))
    if not ids.numel():
        return torch.zeros_like(wanted), torch.zeros(wanted.numel(), dtype=torch.bool)
    rows = order[place]
    return rows, ids[rows] == wanted


def _check_answers(asked: Sequence[Tensor], answers: Sequence[Tensor], names: Sequence[str]) -> None:
    for name, ids, there in zip(names, asked, answers, strict=True):
        lacking = ids[~there]
        if lacking.numel():
            shown = ", ".join(map(str, lacking[:_SHOWN].tolist()))
            raise ValueError(
                f"cross edges name {lacking.numel()} nodes of site {name} that it does not have, such as {shown}; "
                "correct the table of cross edges, or ask that site which ids it uses"
            )


def _open(path: Path) -> pa.Table:
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pq.read_table(path)
        return pa_csv.read_csv(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; expected a table of cross edges") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not readable as a table of cross edges: {error}") from None


def _ids_of(path: Path, table: pa.Table, column: str) -> Tensor:
    kind = table.column(column).type
    if not pa.types.is_integer(kind) and not is_string(kind):
        raise ValueError(f"{path}: column {column!r} holds {kind}; expected ids, integers or strings")
    return hash_ids(table.column(column))


def _rows_of(path: Path, table: pa.Table, ids: Tensor) -> Tensor:
    rows, there = _find(ids, _ids_of(path, table, "dst"))
    if not bool(there.all()):
        row = int((~there).int().argmax())
        name = table.column("dst")[row].as_py()
        raise ValueError(
            f"{path}: row {row} leads to node {name!r}, which is not in the store; expected an own node"
        )
    return rows


def _check_owners(path: Path, table: pa.Table, cross: CrossEdges, ids: Tensor) -> None:
    """Refuse a node that two sites seem to own, as far as this site can see."""
    _, here = _find(ids, cross.src_id)
    if bool(here.any()):
        row = int(here.int().argmax())
        name, site = table.column("src")[row].as_py(), cross.sites[int(cross.site[row])]
        raise ValueError(
            f"{path}: row {row} says that site {site} owns node {name!r}, but this store owns it too; a node has one "
            "owner: agree who, and take it out of the other store"
        )
    pairs = torch.stack([cross.src_id, cross.site], 1).unique(dim=0)
    same = pairs[1:, 0] == pairs[:-1, 0]
    if bool(same.any()):
        place = int(same.int().argmax())
        first, second = (cross.sites[int(pairs[at, 1])] for at in (place, place + 1))
        row = int((cross.src_id == pairs[place, 0]).int().argmax())
        name = table.column("src")[row].as_py()
        raise ValueError(
            f"{path}: node {name!r} is named as one of {first} and as one of {second}; it has one owner"
        )
