"""Preparation of a graph for a model: features are scaled, rows are put in an order that suits the cache."""

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from siafu import native
from siafu.array_checks import check_permutation
from siafu.data.config import DataConfig
from siafu.graph import Graph, checksum_of, chunks
from siafu.native import SparseRows
from siafu.nn.config import ModelConfig
from siafu.nn.streamed import Rows, Streamed, in_memory
from siafu.sparse_input import MOST_SPARSE
from siafu.training.spill import spill_to

_REORDER_FROM = 20_000  # nodes; below that the rows lie in the cache in any order


def resolve(
    config: DataConfig,
    graph: Graph,
    *,
    memory_bytes: int | None = None,
    ranks: int = 1,
    reads_sparse: bool = True,
) -> DataConfig:
    """Resolve ``auto`` for this graph, on a machine with so much memory (None: enough) for all ranks."""
    normalize, reorder, inputs = config.normalize, config.reorder, config.inputs
    layout = _layout(config, graph, reads_sparse=reads_sparse)
    if inputs == "auto" and layout == "sparse":
        inputs = "memory"
    if inputs == "auto":
        copies = (
            2 if ranks == 1 else 4
        )  # the aggregate, what dropout makes of it; rows of the halo, about as many
        wide = 0 if graph.x is None else copies * 4 * graph.x.numel()
        inputs = "stream" if memory_bytes is not None and wide > memory_bytes / 2 else "memory"
    if normalize == "auto":
        normalize = "rows" if graph.x is not None and _is_counts(graph.x) else "none"
    if reorder == "auto":
        reorder = "on" if graph.num_nodes >= _REORDER_FROM and native.compiled() else "off"
    return config.model_copy(
        update={"normalize": normalize, "layout": layout, "reorder": reorder, "inputs": inputs}
    )


def prepare(graph: Graph, config: DataConfig) -> Graph:
    """The graph as the model reads it, by resolved settings; streamed inputs stay where they are."""
    if config.reorder == "on" and config.inputs != "stream":
        graph = graph.reordered(native.locality_order(graph.block.csr))
    return graph


def features(graph: Graph, config: DataConfig) -> Tensor | SparseRows:
    """The input rows, (N, F) float32 or bfloat16; (N, 0) where nothing is known of the nodes."""
    if graph.x is None:
        return torch.empty(graph.num_nodes, 0)
    x = graph.features
    assert x is not None
    if config.layout == "sparse":
        rows = SparseRows.from_dense(x) if isinstance(x, Tensor) else x
        if config.normalize != "rows":
            return rows
        total = rows.row_sums()
        return rows.divided(torch.where(total == 0, 1.0, total))
    x = in_memory(x)
    if config.normalize != "rows":
        return x
    x = x.float()
    total = x.sum(1, keepdim=True)
    return x / torch.where(total == 0, 1.0, total)


def streamed(graph: Graph, config: DataConfig, *, folder: Path) -> Streamed:
    """The input rows, read range by range; what does not fit into memory is kept in ``folder``."""
    if not isinstance(graph.x, Tensor):
        raise ValueError(
            f"{graph.name}: data.inputs is stream, but the features are stored sparse; set data.inputs to memory, or "
            "import them with --feature-layout dense"
        )
    scale = graph.x_scale
    if config.normalize == "rows":
        total = torch.cat([chunk.sum(1, dtype=torch.float32) for chunk in chunks(graph.x)])
        scale = torch.where(total == 0, 1.0 if scale is None else scale, 1.0 / total)
    return Streamed(graph.x, spill_to(folder), scale)


def input_rows(graph: Graph, data: DataConfig, model: ModelConfig, *, scratch: Path) -> Rows:
    """The rows of a prepared graph as a model reads them; a plain GCN alone reads narrow numbers.

    ``scratch`` is a folder for arrays that do not fit into memory.
    """
    if data.inputs == "stream" and graph.x is not None:
        return streamed(graph, data, folder=scratch)
    x = features(graph, data)
    if isinstance(x, SparseRows):
        return x
    return x if model.kind == "gcn" and not model.residual else x.float()


def in_user_order(rows: Tensor, graph: Graph) -> Tensor:
    """Rows of a reordered graph, put back as the user gave them."""
    if graph.node_id is None:
        return rows
    check_permutation(graph.node_id, rows.shape[0], f"{graph.name}: node_id")
    out = torch.empty_like(rows)
    out[graph.node_id] = rows
    return out


def fingerprint(graph: Graph) -> str:
    """A checksum of everything a run reads of the graph."""
    names = ["indptr", "indices", "edge_weight", "x", "y", "train_mask", "val_mask", "test_mask"]
    if graph.x_scale is not None:
        names.append("x_scale")
    if graph.edge_split is not None:
        names.append("edge_split")
    return checksum_of({name: getattr(graph, name) for name in names})


def _layout(config: DataConfig, graph: Graph, *, reads_sparse: bool) -> Literal["sparse", "dense"]:
    """The layout of features in memory."""
    x = graph.x
    if config.layout != "auto":
        fits = isinstance(x, SparseRows) or (isinstance(x, Tensor) and x.dtype == torch.float32)
        if config.layout == "sparse" and not (reads_sparse and fits):
            found = "this method, or your module, reads dense features"
            if reads_sparse:
                found = "there are none" if x is None else f"they are {x.dtype}"
            raise ValueError(f"{graph.name}: data.layout is sparse, but {found}; set it to auto")
        return config.layout
    if not reads_sparse or config.inputs == "stream" or x is None:
        return "dense"
    if isinstance(x, SparseRows):
        return "sparse"
    return "sparse" if x.dtype == torch.float32 and _num_nonzero(x) <= MOST_SPARSE * x.numel() else "dense"


def _num_nonzero(x: Tensor) -> int:
    return sum(int(chunk.count_nonzero()) for chunk in chunks(x))


def _is_counts(x: Tensor | SparseRows) -> bool:
    """Say whether features look like counts of words: none negative, most of them zero."""
    if isinstance(x, SparseRows):
        return x.density < 0.5 and not bool((x.values < 0).any())
    zeros = 0
    for chunk in chunks(x):
        if bool((chunk < 0).any()):
            return False
        zeros += int((chunk == 0).sum())
    return zeros > x.numel() / 2
