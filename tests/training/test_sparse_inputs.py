"""Features that are mostly zero: the same model as from dense rows, by every method that reads sparse rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import siafu
from siafu import native
from siafu.data import community
from siafu.graph import Graph
from siafu.native import SparseRows
from siafu.store import open_store, write_store

WIDTH = 64
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn-no-input-dropout": {"kind": "gcn", "input_dropout": 0.0},
    "gcn-residual": {"kind": "gcn", "residual": True, "layers": 3},
    "sage": {"kind": "sage", "norm": "layer"},
    "gat": {"kind": "gat", "heads": 2},
    "gatv2": {"kind": "gatv2", "heads": 2},
    "mlp": {"kind": "mlp"},
    "jump": {"kind": "sage", "jump": "cat"},
    "appnp": {"kind": "appnp"},
    "sgc": {"kind": "sgc"},
    "gcn2": {"kind": "gcn2", "layers": 4},
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """300 nodes of 3 classes, 64 columns of which about 4 are not zero in a row; some rows are empty."""
    made, draw = community(300, degree=8, classes=3, features=12), torch.Generator().manual_seed(0)
    assert made.y is not None
    x = (torch.rand(300, WIDTH, generator=draw) < 0.03).float()
    x[torch.arange(300), made.y * 7] = 2.0  # a word for each class
    x[::50] = 0
    return replace(made, x=x)


def sparse(graph: Graph) -> Graph:
    assert isinstance(graph.x, torch.Tensor)
    return replace(graph, x=SparseRows.from_dense(graph.x))


def trained(graph: Graph | Path, out: Path, model: dict[str, Any], **settings: Any) -> siafu.Run:
    width = {} if model.get("kind") == "sgc" else {"hidden": 8}
    config = {"model": {**width, **model}, **settings.pop("config", {})}
    how = {"epochs": 5, "patience": 0, "threads": 1, "engine": "local", "lr": 0.005}
    return siafu.train(graph, out=out, config=config, **(how | settings))


def assert_same_model(one: siafu.Run, other: siafu.Run, graph: Graph) -> None:
    assert one.model is not None
    assert other.model is not None
    found = other.model.state_dict()
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(
            found[name], value, rtol=2e-3, atol=2e-4, msg=lambda t, n=name: f"{n}: {t}"
        )
    wanted = siafu.predict(one, graph)["output"]
    torch.testing.assert_close(siafu.predict(other, graph)["output"], wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_full_training_is_that_of_dense_rows(graph: Graph, tmp_path: Path, model: str, ranks: int) -> None:
    dense = trained(graph, tmp_path / "dense", MODELS[model], layout="dense", ranks=ranks)
    assert dense.settings.data.layout == "dense"
    auto = trained(sparse(graph), tmp_path / "sparse", MODELS[model], ranks=ranks)
    assert auto.settings.data.layout == "sparse"
    assert_same_model(dense, auto, graph)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "sgc"])
@pytest.mark.parametrize("cache_aggregate", [True, False])
def test_sampled_training_is_that_of_dense_rows(
    graph: Graph, tmp_path: Path, model: str, ranks: int, cache_aggregate: bool
) -> None:
    config = {"sampled": {"fanout": (4, 4), "batch_size": 40, "cache_aggregate": cache_aggregate}}
    how = {"method": "sampled", "ranks": ranks, "config": config}
    dense = trained(graph, tmp_path / "dense", MODELS[model], layout="dense", **how)
    auto = trained(sparse(graph), tmp_path / "sparse", MODELS[model], **how)
    assert auto.settings.data.layout == "sparse"
    assert_same_model(dense, auto, graph)


@pytest.mark.parametrize("method", ["pipeline", "lazy"])
def test_methods_that_read_dense_rows_take_sparse_features(graph: Graph, tmp_path: Path, method: str) -> None:
    dense = trained(graph, tmp_path / "dense", MODELS["gcn"], layout="dense", method=method)
    auto = trained(sparse(graph), tmp_path / "sparse", MODELS["gcn"], method=method)
    assert auto.settings.data.layout == "dense"
    assert_same_model(dense, auto, graph)


def test_links_are_learned_from_sparse_rows(graph: Graph, tmp_path: Path) -> None:
    dense = trained(graph, tmp_path / "dense", MODELS["gcn"], layout="dense", task="link")
    auto = trained(sparse(graph), tmp_path / "sparse", MODELS["gcn"], task="link")
    assert auto.metrics["val_score"] == pytest.approx(dense.metrics["val_score"], abs=1e-3)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("method", ["full", "sampled"])
def test_sparse_rows_on_disk_train_the_same_weights(
    graph: Graph, tmp_path: Path, method: str, ranks: int
) -> None:
    write_store(sparse(graph), tmp_path / "store")
    how = {"method": method, "ranks": ranks, "reorder": "off"}
    memory = trained(tmp_path / "store", tmp_path / "memory", MODELS["gcn"], inputs="memory", **how)
    stream = trained(tmp_path / "store", tmp_path / "stream", MODELS["gcn"], inputs="stream", **how)
    assert (stream.settings.data.layout, stream.settings.data.inputs) == ("sparse", "stream")
    weights = [(run.directory / "model.safetensors").read_bytes() for run in (memory, stream)]
    assert weights[0] == weights[1]
    assert_same_model(memory, stream, graph)
    assert not [path for path in stream.directory.iterdir() if path.name.startswith("tmp")]


def test_sparse_rows_that_fill_the_memory_are_read_from_disk(graph: Graph) -> None:
    from siafu.data.config import DataConfig
    from siafu.training import inputs

    rows = sparse(graph)
    assert isinstance(rows.x, SparseRows)
    needed = 4 * 8 * rows.x.values.numel()
    large, small = (inputs.resolve(DataConfig(), rows, memory_bytes=size) for size in (needed, needed - 1))
    assert (large.layout, large.inputs) == ("sparse", "memory")
    assert (small.layout, small.inputs) == ("sparse", "stream")
    dense = inputs.resolve(DataConfig(), graph, memory_bytes=needed - 1)
    assert (dense.layout, dense.inputs) == ("dense", "stream"), "they lie on disk as dense rows"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_store_and_the_formats_of_others_keep_rows_sparse(graph: Graph, tmp_path: Path) -> None:
    rows = sparse(graph)
    write_store(rows, tmp_path / "store")
    again = open_store(tmp_path / "store").graph()
    assert isinstance(again.x, SparseRows)
    assert torch.equal(again.x.to_dense(), graph.x)
    matrix = scipy.sparse.csr_matrix(np.asarray(graph.x))
    edges = torch.stack([graph.block.indices.long(), graph.block.row_edge])
    for x in (matrix, matrix.tocoo(), graph.x.to_sparse_csr(), graph.x.to_sparse_coo()):
        made = Graph.from_edges(edges, x=x, num_nodes=300)
        assert isinstance(made.x, SparseRows)
        assert torch.equal(made.x.to_dense(), graph.x)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("indptr", [0, 3, 2, 4], r"indptr\[2\] is 2, but the offset before it is 3"),
        ("indices", [0, 1, 9, 2], r"column 9; expected 0 to 4"),
        ("data", [1.0, 2.0, float("nan"), 3.0], r"row 1, column 1 is nan"),
    ],
)
def test_sparse_arrays_that_disagree_are_refused(field: str, value: list[float], message: str) -> None:
    matrix = scipy.sparse.csr_matrix((3, 5), dtype=np.float32)
    arrays: dict[str, Any] = {"indptr": [0, 2, 3, 4], "indices": [0, 2, 1, 3], "data": [1.0, 2, 3, 4]} | {
        field: value
    }
    matrix.indptr, matrix.indices, matrix.data = (
        np.array(arrays[name], dtype) for name, dtype in (("indptr", "i4"), ("indices", "i4"), ("data", "f4"))
    )
    with pytest.raises(ValueError, match=message):
        Graph.from_edges([[0, 1], [1, 2]], x=matrix)


def test_a_layout_that_cannot_be_is_refused(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"data\.layout is sparse, but this method, or your module, reads dense"
    ):
        trained(graph, tmp_path / "run", {"kind": "gin"}, layout="sparse")
    with pytest.raises(ValueError, match=r"data\.layout is sparse, but they are torch\.bfloat16"):
        trained(replace(graph, x=graph.x.bfloat16()), tmp_path / "run", {"kind": "gcn"}, layout="sparse")
    with pytest.raises(ValueError, match=r"data\.layout dense, but the features are stored sparse"):
        trained(sparse(graph), tmp_path / "run", {"kind": "gcn"}, layout="dense", inputs="stream")


@pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")
def test_a_graph_is_reordered_with_its_sparse_rows(graph: Graph) -> None:
    rows = sparse(graph).reordered(torch.arange(300).flip(0))
    assert isinstance(rows.x, SparseRows)
    assert torch.equal(rows.x.to_dense(), graph.x.flip(0))
