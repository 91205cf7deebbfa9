"""Convert graphs of other libraries to siafu's, and back: PyTorch Geometric, DGL, networkx, scipy.

Those libraries are imported only when an object of theirs is wanted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from siafu.dynamic import DynamicGraph, Steps
from siafu.extras import require_extra
from siafu.graph import Graph
from siafu.native import SparseRows

_MASKS = ("train_mask", "val_mask", "test_mask")


def as_graph(data: Any, *, fold: int = 0) -> Graph | DynamicGraph:
    """Return a graph unchanged, and convert a PyG ``Data`` or ``TemporalData``; refuse anything else."""
    match data:
        case Graph() | DynamicGraph():
            return data
        case _ if not type(data).__module__.startswith("torch_geometric."):
            raise ValueError(
                f"the graph is a {type(data).__name__}; expected a siafu Graph or DynamicGraph, a PyG Data, or the "
                "name or path of a graph (Graph.from_edges, from_tables, from_dgl, from_networkx and from_scipy "
                "make one)"
            )
    return from_pyg_temporal(data) if type(data).__name__ == "TemporalData" else from_pyg(data, fold=fold)


def from_pyg(data: Any, *, fold: int = 0, name: str = "graph") -> Graph:
    """Convert a PyG ``Data``; of masks with several columns, ``fold`` picks one.

    A siafu graph has at most one weight per edge, so ``edge_attr`` is refused.
    """
    if getattr(data, "edge_index", None) is None:
        raise ValueError(
            f"{name}: {type(data).__name__} has no edge_index; expected a homogeneous PyG Data "
            "(for HeteroData call to_homogeneous, for adj_t drop ToSparseTensor)"
        )
    if getattr(data, "edge_attr", None) is not None:
        raise ValueError(
            f"{name}: has edge_attr {tuple(data.edge_attr.shape)}, and a graph holds a weight an edge and no other "
            "features of edges; data.edge_weight = data.edge_attr.view(-1) makes one column the weight; "
            "then drop it with del data.edge_attr"
        )
    return Graph.from_edges(
        data.edge_index,
        x=getattr(data, "x", None),
        y=getattr(data, "y", None),
        **_masks({mask: getattr(data, mask, None) for mask in _MASKS}, fold, name),
        edge_weight=getattr(data, "edge_weight", None),
        num_nodes=data.num_nodes,
        name=name,
    )


def to_pyg(graph: Graph) -> Any:
    """Convert to a PyG ``Data`` whose rows are in the user's order."""
    with require_extra("Graph.to_pyg", "torch_geometric"):
        from torch_geometric.data import Data

    graph = graph.encoded()
    row_of = graph.node_id if graph.node_id is not None else torch.arange(graph.num_nodes)
    rows = torch.empty_like(row_of)
    rows[row_of] = torch.arange(graph.num_nodes)
    x = graph.features.to_dense() if isinstance(graph.features, SparseRows) else graph.features
    fields = {"x": x, "y": graph.y, **{mask: getattr(graph, mask) for mask in _MASKS}}
    found = {key: value[rows] for key, value in fields.items() if value is not None}
    if graph.edge_weight is not None:
        found["edge_weight"] = graph.edge_weight
    edge_index = torch.stack([row_of[graph.indices.long()], row_of[graph.block.row_edge.long()]])
    return Data(edge_index=edge_index, num_nodes=graph.num_nodes, **found)


def from_dgl(graph: Any, *, x: str = "feat", y: str = "label", fold: int = 0, name: str = "graph") -> Graph:
    """Convert a homogeneous ``DGLGraph``: node data called ``x`` and ``y``, masks, edge data ``weight``."""
    if not getattr(graph, "is_homogeneous", True):
        raise ValueError(f"{name}: has several types of nodes or edges; expected one (dgl.to_homogeneous)")
    src, dst = graph.edges()
    return Graph.from_edges(
        torch.stack([src, dst]),
        x=graph.ndata.get(x),
        y=graph.ndata.get(y),
        **_masks({mask: graph.ndata.get(mask) for mask in _MASKS}, fold, name),
        edge_weight=graph.edata.get("weight"),
        num_nodes=graph.num_nodes(),
        name=name,
    )


def from_networkx(graph: Any, *, weight: str = "weight", name: str = "graph") -> Graph:
    """Convert a networkx graph, nodes in its own order; an undirected graph gets both directions of each edge.

    Node attributes ``x``, ``y`` and the masks are read where nodes have them. If one node has ``x``, all must. A node
    without ``y`` gets label -1, and a node without a mask is not in it. An edge without ``weight`` gets weight 1.
    """
    nodes = list(graph.nodes)
    row_of = {node: row for row, node in enumerate(nodes)}
    ends = [(row_of[src], row_of[dst]) for src, dst in graph.edges()]
    weights = [value for _, _, value in graph.edges(data=weight)]
    weighted = any(value is not None for value in weights)
    converted = Graph.from_edges(
        np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        x=_attribute(graph, "x", None, name),
        y=_attribute(graph, "y", -1, name),
        train_mask=_attribute(graph, "train_mask", False, name),
        val_mask=_attribute(graph, "val_mask", False, name),
        test_mask=_attribute(graph, "test_mask", False, name),
        edge_weight=np.array([1.0 if value is None else value for value in weights]) if weighted else None,
        num_nodes=len(nodes),
        undirected=not graph.is_directed(),
        name=name,
    )
    return replace(converted, node_names=_node_names(nodes))


def from_scipy(
    adjacency: Any,
    *,
    x: Any = None,
    y: Any = None,
    train_mask: Any = None,
    val_mask: Any = None,
    test_mask: Any = None,
    name: str = "graph",
) -> Graph:
    """Convert a scipy sparse adjacency, row source and column target; entries other than 1 are weights."""
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise ValueError(f"{name}: the adjacency is {adjacency.shape}; expected as many rows as columns")
    entries = adjacency.tocoo()
    there = entries.data != 0
    values = entries.data[there]
    return Graph.from_edges(
        np.stack([entries.row[there], entries.col[there]]),
        x=x,
        y=y,
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=test_mask,
        edge_weight=None if (values == 1).all() else values,
        num_nodes=adjacency.shape[0],
        name=name,
    )


class _Snapshot(NamedTuple):
    edges: np.ndarray
    weight: np.ndarray | None
    num_nodes: int | None
    undirected: bool | None


def from_snapshots(
    snapshots: Sequence[Any], *, undirected: bool | None = None, **fields: Any
) -> DynamicGraph:
    """Make a dynamic graph of a list of snapshots, one per step.

    Each snapshot is (2, E) sources above targets, a scipy sparse matrix (entries other than 1 are weights), or a
    networkx graph whose nodes are whole numbers. Undirected networkx graphs make an undirected dynamic graph. The other
    keywords are those of :meth:`DynamicGraph.from_events`.
    """
    parts = [_snapshot(snapshot) for snapshot in snapshots]
    if not parts:
        raise ValueError("no snapshot; expected at least one")
    kinds = {part.undirected for part in parts}
    if len(kinds) > 1:
        raise ValueError("some of the snapshots are directed and some are not; expected them alike")
    sizes = [part.num_nodes for part in parts if part.num_nodes is not None]
    if sizes and fields.get("num_nodes") is None:
        fields["num_nodes"] = max(sizes)
    if any(part.weight is not None for part in parts):
        weights = [np.ones(part.edges.shape[1]) if part.weight is None else part.weight for part in parts]
        fields["weight"] = np.concatenate(weights)
    src, dst = np.concatenate([part.edges for part in parts], axis=1)
    step = np.repeat(np.arange(len(parts)), [part.edges.shape[1] for part in parts])
    cut = Steps(torch.arange(len(parts), dtype=torch.float64), None, 0)
    both = bool(kinds.pop()) if undirected is None else undirected
    return DynamicGraph.from_events(src, dst, step, cut=cut, undirected=both, **fields)


def from_pyg_temporal(data: Any, **fields: Any) -> DynamicGraph:
    """Convert a PyG ``TemporalData`` (``src``, ``dst``, ``t``); a ``msg`` of one column becomes the weight.

    The keywords are those of :meth:`DynamicGraph.from_events`, such as how time is cut into steps.
    """
    for name in ("src", "dst", "t"):
        if getattr(data, name, None) is None:
            raise ValueError(f"{type(data).__name__} has no {name}; expected a PyG TemporalData")
    msg = getattr(data, "msg", None)
    if msg is not None and fields.get("weight") is None and (msg.ndim == 1 or msg.shape[1] == 1):
        fields["weight"] = msg.reshape(-1)
    return DynamicGraph.from_events(data.src, data.dst, data.t, **fields)


def _snapshot(given: Any) -> _Snapshot:
    if hasattr(given, "tocoo"):
        entries = given.tocoo()
        there = entries.data != 0
        values, edges = entries.data[there], np.stack([entries.row[there], entries.col[there]])
        return _Snapshot(edges, None if (values == 1).all() else values, max(given.shape), None)
    if hasattr(given, "is_directed"):
        return _networkx_snapshot(given)
    edges = np.asarray(given)
    if edges.ndim != 2 or edges.shape[0] != 2 or (edges.size and edges.dtype.kind not in "iu"):
        raise ValueError(
            f"a snapshot is {edges.shape} {edges.dtype}; expected two rows of integers, sources above targets, a scipy "
            "matrix or a networkx graph"
        )
    return _Snapshot(edges.astype(np.int64), None, None, None)


def _networkx_snapshot(graph: Any) -> _Snapshot:
    nodes = list(graph.nodes)
    if not all(isinstance(node, int) and node >= 0 for node in nodes):
        node = next(node for node in nodes if not (isinstance(node, int) and node >= 0))
        raise ValueError(f"a snapshot has the node {node!r}; expected whole numbers, alike in all snapshots")
    edges = np.array(list(graph.edges()), dtype=np.int64).reshape(-1, 2).T
    weights = [value for _, _, value in graph.edges(data="weight")]
    weight = None
    if any(value is not None for value in weights):
        weight = np.array([1.0 if value is None else value for value in weights])
    return _Snapshot(edges, weight, max(nodes, default=-1) + 1, not graph.is_directed())


def _masks(masks: Mapping[str, Any], fold: int, name: str) -> dict[str, Any]:
    """Pick one fold of masks of (N,) or (N, S); a mask of one column serves every fold."""
    folds = max((mask.shape[1] for mask in masks.values() if mask is not None and mask.ndim == 2), default=1)
    if not 0 <= fold < folds:
        raise ValueError(f"{name}: fold {fold} was asked for, but it has {folds} (0 to {folds - 1})")
    return {
        key: mask if mask is None or mask.ndim == 1 else mask[:, min(fold, mask.shape[1] - 1)]
        for key, mask in masks.items()
    }


def _attribute(graph: Any, key: str, default: Any, name: str) -> Any:
    """Collect a node attribute into an array, or None where no node has it."""
    values = [value for _, value in graph.nodes(data=key)]
    if all(value is None for value in values):
        return None
    if default is None and any(value is None for value in values):
        node = next(node for node, value in graph.nodes(data=key) if value is None)
        raise ValueError(
            f"{name}: node {node!r} has no attribute {key}, but others do; give it to all or none"
        )
    return np.array([default if value is None else value for value in values])


def _node_names(nodes: list[Any]) -> Any:
    """Return the ids to show for nodes, or None where they are the row numbers anyway."""
    if nodes == list(range(len(nodes))):
        return None
    import pyarrow as pa

    whole = all(isinstance(node, int) and not isinstance(node, bool) for node in nodes)
    return pa.array(nodes if whole else [str(node) for node in nodes])
