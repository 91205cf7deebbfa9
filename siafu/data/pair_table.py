"""Read pairs of nodes to score from a table or an array, by the ids of a graph."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from siafu.data.importing.edges import EdgeSource, array_edges, table_edges
from siafu.data.importing.file_location import FileLocation
from siafu.data.importing.node_ids import IdMap, RowLookup, RowNumbers
from siafu.data.importing.numpy_files import open_npy
from siafu.dynamic import DynamicGraph
from siafu.event_log import Progress, no_progress
from siafu.graph import Graph
from siafu.store.node_names import is_string


class NodePairs(NamedTuple):
    """Pairs as the user wrote them, and by row number.

    Attributes:
        src, dst: P ids.
        rows: (2, P) int64.
    """

    src: pa.ChunkedArray
    dst: pa.ChunkedArray
    rows: Tensor


def read_pairs(path: Path, graph: Graph | DynamicGraph, *, progress: Progress = no_progress) -> NodePairs:
    """Read Parquet, CSV or TSV with columns ``src`` and ``dst`` (else the first two), or an ``.npy`` of integers."""
    source: EdgeSource = array_edges(open_npy(path)) if path.suffix == ".npy" else table_edges(path)
    ids, src, dst, rows = _ids(graph), list[pa.Array](), list[pa.Array](), [np.empty((2, 0), dtype=np.int64)]
    for batch in source.batches(progress):
        src.append(batch.src)
        dst.append(batch.dst)
        rows.append(np.stack(ids.pairs(batch.src, batch.dst, batch.place, source.columns)).astype(np.int64))
    if not src:
        raise ValueError(f"{path}: no pairs; expected a row for each, with the ids of both nodes")
    return NodePairs(pa.chunked_array(src), pa.chunked_array(dst), torch.from_numpy(np.concatenate(rows, 1)))


def _ids(graph: Graph | DynamicGraph) -> RowLookup:
    if graph.node_names is None:
        return RowNumbers(graph.num_nodes, graph.name)
    known = IdMap(strings=is_string(graph.node_names.type))
    known.rows(graph.node_names, FileLocation(Path(graph.name), "row", 0), "id")
    known.defined_by = graph.name
    return known
