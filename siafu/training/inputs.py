"""Preparation of a graph for a model: features are scaled, rows are put in an order that suits the cache."""

from collections.abc import Callable
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
from siafu.training.scaling import Scaling
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
    layout, input_bytes = _layout(config, graph, reads_sparse=reads_sparse)
    # The aggregate, and the result of its dropout; on several ranks halo rows, about as many.
    fits = memory_bytes is None or input_bytes * (2 if ranks == 1 else 4) <= memory_bytes / 2
    if config.layout == "auto" and isinstance(graph.x, Tensor) and (config.inputs == "stream" or not fits):
        layout = "dense"  # as the rows lie on disk
    if inputs == "auto":
        inputs = "memory" if fits else "stream"
    if normalize == "auto":
        normalize = "rows" if graph.x is not None and is_counts(graph.x) else "none"
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


def features(graph: Graph, config: DataConfig, *, scaling: Scaling | None = None) -> Tensor | SparseRows:
    """The input rows in memory, (N, F) float32 or bfloat16; (N, 0) where nothing is known of the nodes.

    ``scaling`` is that of the training nodes, where columns are standardised.
    """
    if graph.x is None:
        return torch.empty(graph.num_nodes, 0)
    x = graph.features
    assert x is not None
    if config.layout == "sparse":
        return _scaled_sparse(x, config, torch.empty)
    x = in_memory(x)
    if config.normalize == "standard":
        assert scaling is not None
        return scaling.apply(x)
    if config.normalize != "rows":
        return x
    x = x.float()
    total = x.sum(1, keepdim=True)
    return x / torch.where(total == 0, 1.0, total)


def _scaled_sparse(
    x: Tensor | SparseRows, config: DataConfig, allocate: Callable[[int], Tensor]
) -> SparseRows:
    """Sparse rows, scaled as the config says; ``allocate`` makes the array of scaled values."""
    rows = SparseRows.from_dense(x) if isinstance(x, Tensor) else x
    if config.normalize != "rows":
        return rows
    total = rows.row_sums()
    return rows.divided(torch.where(total == 0, 1.0, total), out=allocate(rows.values.numel()))


def streamed(graph: Graph, config: DataConfig, *, folder: Path) -> Streamed | SparseRows:
    """The input rows on disk, which are read range by range; ``folder`` holds arrays that do not fit into memory."""
    assert graph.x is not None
    spill = spill_to(folder)
    if config.layout == "sparse":
        return _scaled_sparse(graph.x, config, lambda count: spill(count, 1)[:, 0])
    if config.normalize == "standard":
        raise ValueError(
            f"{graph.name}: data.normalize is standard, which needs the features in memory, but data.inputs is stream; "
            "set data.normalize to none, or data.inputs to memory"
        )
    if isinstance(graph.x, SparseRows):
        raise ValueError(
            f"{graph.name}: data.inputs is stream and data.layout dense, but the features are stored sparse; set "
            "data.layout to auto, or data.inputs to memory"
        )
    scale = graph.x_scale
    if config.normalize == "rows":
        total = torch.cat([chunk.sum(1, dtype=torch.float32) for chunk in chunks(graph.x)])
        scale = torch.where(total == 0, 1.0 if scale is None else scale, 1.0 / total)
    return Streamed(graph.x, spill, scale)


def input_rows(
    graph: Graph, data: DataConfig, model: ModelConfig, *, scratch: Path, scaling: Scaling | None = None
) -> Rows:
    """The rows of a prepared graph as a model reads them; a plain GCN alone reads narrow numbers.

    ``scratch`` is a folder for arrays that do not fit into memory; ``scaling`` standardises columns.
    """
    if data.inputs == "stream" and graph.x is not None:
        return streamed(graph, data, folder=scratch)
    x = features(graph, data, scaling=scaling)
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


def _layout(
    config: DataConfig, graph: Graph, *, reads_sparse: bool
) -> tuple[Literal["sparse", "dense"], int]:
    """The layout of features, and the bytes that they take in it."""
    x, layout = graph.x, config.layout
    if x is None:
        if layout == "sparse":
            raise ValueError(
                f"{graph.name}: data.layout is sparse, but there are no features; set it to auto"
            )
        return "dense", 0
    if config.normalize == "standard":
        if layout == "sparse":
            raise ValueError(
                f"{graph.name}: data.layout is sparse, but standardised columns have few zeros; set data.layout to "
                "auto, or data.normalize to rows or none"
            )
        return "dense", 4 * x.numel()
    if layout == "dense" or (layout == "auto" and not (reads_sparse and x.dtype == torch.float32)):
        return "dense", 4 * x.numel()
    if not (reads_sparse and x.dtype == torch.float32):
        found = f"they are {x.dtype}" if reads_sparse else "this method, or your module, reads dense features"
        raise ValueError(f"{graph.name}: data.layout is sparse, but {found}; set it to auto")
    count = round(density(x) * x.numel())
    if isinstance(x, SparseRows) or layout == "sparse" or count <= MOST_SPARSE * x.numel():
        return "sparse", 8 * count
    return "dense", 4 * x.numel()


def density(x: Tensor | SparseRows) -> float:
    """The share of numbers that are not zero, or of those that are stored."""
    if isinstance(x, SparseRows):
        return x.density
    return sum(int(chunk.count_nonzero()) for chunk in chunks(x)) / max(1, x.numel())


def is_counts(x: Tensor | SparseRows) -> bool:
    """Say whether features look like counts of words: none negative, most of them zero."""
    if isinstance(x, SparseRows):
        return x.density < 0.5 and not bool((x.values < 0).any())
    zeros = 0
    for chunk in chunks(x):
        if bool((chunk < 0).any()):
            return False
        zeros += int((chunk == 0).sum())
    return zeros > x.numel() / 2
