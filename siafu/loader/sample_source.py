"""The graphs that a loader samples from. Each source makes minibatches of torch_geometric's Data."""

import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from siafu import native
from siafu.array_checks import check_ids
from siafu.comm import Comm
from siafu.data.loading import is_store
from siafu.extras import require_extra
from siafu.graph import Graph
from siafu.load_graph import load_static
from siafu.loader.seeds import Seeds, number_across_ranks, read_seeds
from siafu.methods.sampled.neighbourhood import Neighbourhood, NodeQuery
from siafu.native import Csr, SparseRows
from siafu.partition.cut import NODE_FIELDS, Part
from siafu.sampling import FrontierEdges, Subgraph
from siafu.store.page_cache import ResidentPages
from siafu.user_input import check_edges, read_edges

_EXPECTED = "a torch_geometric.data.Data, a siafu.Graph, the name or path of one, or with comm a Part"


class SampleSource(Protocol):
    """A graph to sample edges from, with node and edge data."""

    def seeds(self, given: Any) -> Seeds:
        """Read the seeds that the user gave."""

    def position(self, row: Tensor) -> Tensor:
        """Convert rows to the positions that :meth:`draw` takes."""

    def draw(self, position: Tensor, key: int, *, fanout: int, replace: bool) -> FrontierEdges:
        """Sample in-edges; see :class:`siafu.sampling.EdgeSampler`."""

    def batch(self, subgraph: Subgraph) -> Any:
        """Make a torch_geometric Data with the node and edge data of a subgraph."""


def open_source(data: Any, comm: Comm | None) -> SampleSource:
    """Wrap the user's data as a source to sample from. Collective with ``comm``."""
    pyg = import_pyg()
    match data:
        case Part():
            if comm is None:
                raise ValueError(
                    "data is a Part, what one of several ranks has; give comm too, see siafu.join"
                )
            return _PartSource(comm, data)
        case _ if comm is not None:
            raise ValueError(
                f"data is a {type(data).__name__}, but comm is given; expected a Part: siafu.part_of(data, comm)"
            )
        case Graph():
            return _GraphSource(data.encoded())
        case str() | Path():
            if is_store(Path(data)):
                graph = load_static(
                    data, verify=False
                )  # else a terabyte would be read before the first minibatch
                return _GraphSource(graph, ResidentPages(graph))
            return _GraphSource(load_static(data))
        case pyg.Data():
            return _PygSource(data)
    hint = ": several types of nodes; call to_homogeneous" if isinstance(data, pyg.HeteroData) else ""
    raise ValueError(f"data is a {type(data).__name__}{hint}; expected {_EXPECTED}")


def import_pyg() -> Any:
    """Import torch_geometric.data, of which minibatches are made."""
    with require_extra("siafu.NeighborLoader", "torch_geometric"):
        import torch_geometric.data
    return torch_geometric.data


class _GraphSource:
    """A Graph, maybe mapped from a store; no array of the size of its nodes is allocated."""

    def __init__(self, graph: Graph, pages: ResidentPages | None = None) -> None:
        self._graph, self._pages, self._csr = graph, pages, Csr(graph.indptr, graph.indices)

    def seeds(self, given: Any) -> Seeds:
        return read_seeds(given, self._graph.num_nodes)

    def position(self, row: Tensor) -> Tensor:
        return row

    def draw(self, position: Tensor, key: int, *, fanout: int, replace: bool) -> FrontierEdges:
        graph = self._graph
        return _sample(
            self._csr, position, key, graph.name, fanout=fanout, replace=replace, node_id=graph.node_id
        )

    def batch(self, subgraph: Subgraph) -> Any:
        graph = self._graph
        fields = {
            name: dense_rows(rows, subgraph.position, graph.name)
            for name in NODE_FIELDS
            if (rows := getattr(graph, name)) is not None
        }
        if graph.edge_weight is not None:
            assert subgraph.edge is not None
            fields["edge_weight"] = native.gather(graph.edge_weight, subgraph.edge)
        if self._pages is not None:
            self._pages.release_excess()
        return import_pyg().Data(**_dequantize(fields), n_id=subgraph.position, e_id=subgraph.edge)


class _PygSource:
    """A PyG Data: its node and edge attributes are selected, everything else is passed on unchanged."""

    def __init__(self, data: Any) -> None:
        if getattr(data, "edge_index", None) is None or "adj_t" in data:
            found = "adj_t" if "adj_t" in data else "no edge_index"
            raise ValueError(
                f"{type(data).__name__} has {found}; expected edge_index alone (drop ToSparseTensor)"
            )
        num_nodes = int(data.num_nodes)
        self._data = data
        edges = read_edges(data.edge_index, "data")
        check_edges(edges, num_nodes, "data")
        source, target = edges.to(torch.int32)
        # sorted, so that what is drawn depends on no order of edges
        self._csr = native.sort_rows(native.build_csr(target, source, num_rows=num_nodes, origin=True))
        self._at_nodes = [name for name in data.keys() if data.is_node_attr(name)]  # noqa: SIM118
        self._at_edges = [
            name
            for name in data.keys()  # noqa: SIM118
            if name != "edge_index" and data.is_edge_attr(name)
        ]

    def seeds(self, given: Any) -> Seeds:
        return read_seeds(given, self._csr.indptr.numel() - 1)

    def position(self, row: Tensor) -> Tensor:
        return row

    def draw(self, position: Tensor, key: int, *, fanout: int, replace: bool) -> FrontierEdges:
        return _sample(self._csr, position, key, "data", fanout=fanout, replace=replace)

    def batch(self, subgraph: Subgraph) -> Any:
        assert subgraph.edge is not None
        assert self._csr.origin is not None
        data, node = self._data, subgraph.position
        edge = native.gather(self._csr.origin, subgraph.edge)
        out = copy.copy(data)
        for name in self._at_nodes:
            out[name] = _select(data[name], node, data.__cat_dim__(name, data[name]))
        for name in self._at_edges:
            out[name] = _select(data[name], edge, data.__cat_dim__(name, data[name]))
        out.n_id, out.e_id = node, edge
        return out


class _PartSource:
    """The parts of several ranks, of which this rank has one; ids are the user's. Every method is collective."""

    def __init__(self, comm: Comm, part: Part) -> None:
        if part.number != comm.rank or len(part.route.send) != comm.world_size:
            raise ValueError(
                f"data is part {part.number} of {len(part.route.send)}, but this is rank {comm.rank} of "
                f"{comm.world_size}; expected the rank's own part: siafu.part_of(data, comm)"
            )
        own = part.own
        self._comm, self._node_id = comm, torch.arange(own.num_nodes) if own.node_id is None else own.node_id
        self._own, self._near = own, Neighbourhood(comm, part)

    def seeds(self, given: Any) -> Seeds:
        return number_across_ranks(read_seeds(given, self._own.num_nodes), self._comm, self._node_id)

    def position(self, row: Tensor) -> Tensor:
        return row + self._near.own.start

    def draw(self, position: Tensor, key: int, *, fanout: int, replace: bool) -> FrontierEdges:
        sizes, keys = torch.tensor([position.numel()]), torch.tensor([key])
        drawn = self._near.draw(position.int(), sizes=sizes, key=keys, fanout=fanout, replace=replace)
        return FrontierEdges(drawn.indptr.diff(), drawn.source.long(), None, drawn.weight)

    def batch(self, subgraph: Subgraph) -> Any:
        tables = {name: getattr(self._own, name) for name in NODE_FIELDS} | {"n_id": self._node_id}
        asked = NodeQuery(self._comm, self._near.offset, subgraph.position.int())
        row = asked.rows().long()
        fields = {
            name: asked.answer_rows(dense_rows(rows, row, self._own.name))
            for name, rows in tables.items()
            if rows is not None
        }
        return import_pyg().Data(**_dequantize(fields), edge_weight=subgraph.weight, e_id=None)


def dense_rows(rows: Tensor | SparseRows, index: Tensor, name: str) -> Tensor:
    """Rows of node data picked by number, as a PyG model reads them: (N, ...), (R,) -> (R, ...)."""
    if isinstance(rows, Tensor):
        return native.gather(rows, index)
    picked = rows.take(index)  # of a store that is larger than memory, only what is read is checked
    check_ids(picked.indices, rows.width, name, field="x_indices")
    return picked.to_dense()


def _dequantize(fields: dict[str, Tensor]) -> dict[str, Tensor]:
    """Dequantise features that are stored in int8."""
    scale = fields.pop("x_scale", None)
    return fields if scale is None else fields | {"x": fields["x"].float() * scale[:, None]}


def _sample(
    csr: Csr,
    rows: Tensor,
    key: int,
    name: str,
    *,
    fanout: int,
    replace: bool,
    node_id: Tensor | None = None,
) -> FrontierEdges:
    draws = native.sample_edges(
        csr,
        rows.int(),
        sizes=torch.tensor([rows.numel()]),
        key=torch.tensor([key]),
        fanout=fanout,
        replace=replace,
        node_id=node_id,
        edges=True,
    )
    source = draws.source.long()
    if source.numel():
        low, high = (int(end) for end in source.aminmax())
        if low < 0 or high >= csr.indptr.numel() - 1:
            raise ValueError(
                f"{name}: an edge names node {low if low < 0 else high} of {csr.indptr.numel() - 1} nodes: the "
                'store is damaged; look at it with "siafu info --verify"'
            )
    return FrontierEdges(draws.indptr.diff(), source, draws.edge, None)


def _select(values: Any, index: Tensor, dim: int) -> Any:
    """Index an attribute, a tensor or a NumPy array, along a dimension."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values.take(index.numpy(), axis=dim))
    if not isinstance(values, Tensor):
        return values[index]
    plain = values.layout == torch.strided and values.is_contiguous() and not values.requires_grad
    return native.gather(values, index) if plain and dim == 0 else values.index_select(dim, index)
