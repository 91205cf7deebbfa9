"""Import of .npy, .npz and OGB folders."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from siafu.data.importing import edges as importing_edges
from siafu.data.importing import features as importing_features
from siafu.data.importing import import_graph
from siafu.graph import Graph
from siafu.native import SparseRows

EDGES = np.array([[0, 1, 2, 0], [1, 2, 0, 2]])
X = np.array([[1.0, 0, 0], [0, 2, 0], [0, 0, 3], [0, 0, 0]])
Y = np.array([0, 1, -1, 2])
SPLIT = np.array([0, 1, 2, 3])


def save(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def tensors_equal(found: torch.Tensor | None, expected: object) -> bool:
    return found is not None and found.tolist() == np.asarray(expected).tolist()


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_no_column_are_refused(tmp_path: Path, sparse: bool) -> None:
    edges, features = save(tmp_path / "e.npy", EDGES), tmp_path / "x.npz"
    if sparse:
        scipy.sparse.save_npz(features, scipy.sparse.csr_matrix((4, 0)))
    else:
        features = save(tmp_path / "x.npy", np.empty((4, 0)))
    with pytest.raises(ValueError, match=r"x\.np(y|z: x) is \(4, 0\); expected at least one feature"):
        import_graph(tmp_path / "store", edges=edges, features=features)


@pytest.mark.parametrize("layout", ["(2, E)", "(E, 2)", "fortran", "big-endian", "uint32"])
def test_arrays_go_by_row_number_and_the_features_count_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(importing_edges, "_BATCH_ROWS", 3)
    monkeypatch.setattr(importing_features, "_BLOCK_VALUES", 6)
    arrays = {
        "(2, E)": EDGES,
        "(E, 2)": EDGES.T.copy(),
        "fortran": np.asfortranarray(EDGES),
        "big-endian": EDGES.astype(">i4"),
        "uint32": EDGES.astype(np.uint32),
    }
    graph = import_graph(
        tmp_path / "store",
        edges=save(tmp_path / "e.npy", arrays[layout]),
        features=save(tmp_path / "x.npy", np.asfortranarray(X) if layout == "fortran" else X),
        labels=save(tmp_path / "y.npy", Y),
        split=save(tmp_path / "s.npy", SPLIT),
    ).graph()
    expected = Graph.from_edges(EDGES, x=X)
    assert graph.num_nodes == 4
    assert graph.indptr.equal(expected.indptr)
    assert graph.indices.equal(expected.indices)
    assert tensors_equal(graph.x, X)
    assert tensors_equal(graph.y, Y)
    assert tensors_equal(graph.train_mask, SPLIT == 0)
    assert tensors_equal(graph.val_mask, SPLIT == 1)
    assert tensors_equal(graph.test_mask, SPLIT == 2)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8, np.uint16, np.bool_, ">f4"])
def test_features_of_any_number_become_float32(tmp_path: Path, dtype: str) -> None:
    x = np.array([[1, 0], [0, 1]]).astype(dtype)
    edges, features = save(tmp_path / "e.npy", np.array([[0], [1]])), save(tmp_path / "x.npy", x)
    graph = import_graph(tmp_path / "store", edges=edges, features=features).graph()
    assert graph.x is not None
    assert graph.x.dtype == torch.float32
    assert graph.x.tolist() == [[1, 0], [0, 1]]


def test_several_splits_in_an_array_are_kept(tmp_path: Path) -> None:
    splits = np.array([[0, 1], [1, 0], [2, 2]])
    store = import_graph(
        tmp_path / "store",
        edges=save(tmp_path / "e.npy", np.array([[0, 1], [1, 2]])),
        split=save(tmp_path / "s.npy", splits),
    )
    assert tensors_equal(store.graph(fold=1).train_mask, splits[:, 1] == 0)


def test_tables_beside_arrays_go_by_row_number(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n1,2\n")
    (tmp_path / "y.csv").write_text("id,label\n2,1\n0,0\n")
    (tmp_path / "s.csv").write_text("id,split\n2,test\n0,0\n".replace("0,0", "0,train"))
    graph = import_graph(
        tmp_path / "store",
        edges=tmp_path / "e.csv",
        features=save(tmp_path / "x.npy", X),
        labels=tmp_path / "y.csv",
        split=tmp_path / "s.csv",
    ).graph()
    assert graph.node_names is None
    assert tensors_equal(graph.y, [0, -1, 1, -1])
    assert tensors_equal(graph.test_mask, [False, False, True, False])


def test_a_sparse_matrix_of_scipy_is_written_out_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing_features, "_BLOCK_VALUES", 6)
    scipy.sparse.save_npz(tmp_path / "x.npz", scipy.sparse.csr_matrix(X))
    edges = save(tmp_path / "e.npy", EDGES)
    assert tensors_equal(import_graph(tmp_path / "a", edges=edges, features=tmp_path / "x.npz").graph().x, X)
    scipy.sparse.save_npz(tmp_path / "csc.npz", scipy.sparse.csc_matrix(X))
    with pytest.raises(ValueError, match="the layout 'csc'; expected a CSR matrix"):
        import_graph(tmp_path / "b", edges=edges, features=tmp_path / "csc.npz")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_an_npz_brings_everything_along(tmp_path: Path, compressed: bool, sparse: bool) -> None:
    masks = {
        f"{name}_mask": np.stack([i == SPLIT, 3 - i == SPLIT], 1) for i, name in enumerate(["train", "val"])
    }
    csr = scipy.sparse.csr_matrix(X)
    parts = {
        "x_indptr": csr.indptr,
        "x_indices": csr.indices,
        "x_data": csr.data,
        "x_shape": np.array(csr.shape),
    }
    (np.savez_compressed if compressed else np.savez)(
        tmp_path / "g.npz",
        edge_index=EDGES.astype(np.int32),
        num_nodes=np.array(4),
        undirected=np.array(1, dtype=np.uint8),
        y=Y,
        note=np.array("a text that nobody needs"),
        **masks,
        **(parts if sparse else {"x": X}),
    )
    store = import_graph(tmp_path / "store", edges=tmp_path / "g.npz", name="given")
    graph = store.graph(fold=1)
    assert store.manifest.undirected
    assert graph.name == "given"
    assert tensors_equal(graph.x, X)
    assert tensors_equal(graph.y, Y)
    assert tensors_equal(graph.train_mask, masks["train_mask"][:, 1])
    assert graph.test_mask is None
    assert graph.indices.equal(Graph.from_edges(EDGES, num_nodes=4).indices)


def test_separate_files_override_arrays_of_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=EDGES, num_nodes=4, x=X, y=Y)
    graph = import_graph(
        tmp_path / "store", edges=tmp_path / "g.npz", labels=save(tmp_path / "y.npy", Y[::-1].copy())
    ).graph()
    assert tensors_equal(graph.y, Y[::-1])
    assert tensors_equal(graph.x, X)


def test_cora_comes_out_of_its_npz(data_home: Path, tmp_path: Path) -> None:
    graph = import_graph(tmp_path / "cora", edges=data_home / "cora.npz").graph()
    with np.load(data_home / "cora.npz", allow_pickle=False) as arrays:
        expected = Graph.from_edges(arrays["edge_index"], num_nodes=2708)
        x = scipy.sparse.csr_matrix(
            (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), shape=arrays["x_shape"]
        )
        assert tensors_equal(graph.y, arrays["y"])
        assert tensors_equal(graph.test_mask, arrays["test_mask"])
    assert graph.indices.equal(expected.indices)
    assert graph.x is not None
    assert isinstance(graph.x, SparseRows)
    assert np.array_equal(graph.x.to_dense().numpy(), x.toarray())


def text_gz(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(",".join(str(value) for value in np.atleast_1d(row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(lines.encode()))


def ogb_text(folder: Path, *, labels: np.ndarray = Y) -> Path:
    text_gz(folder / "raw" / "edge.csv.gz", EDGES.T)
    text_gz(folder / "raw" / "num-node-list.csv.gz", np.array([4]))
    text_gz(folder / "raw" / "num-edge-list.csv.gz", np.array([4]))
    text_gz(folder / "raw" / "node-feat.csv.gz", X)
    text_gz(folder / "raw" / "node-label.csv.gz", labels)
    for part, code in {"train": 0, "valid": 1, "test": 2}.items():
        text_gz(folder / "split" / "time" / f"{part}.csv.gz", np.flatnonzero(code == SPLIT))
    return folder


def ogb_arrays(folder: Path) -> Path:
    (folder / "raw").mkdir(parents=True)
    np.savez(
        folder / "raw" / "data.npz", edge_index=EDGES, num_nodes_list=[4], num_edges_list=[4], node_feat=X
    )
    labels = np.where(Y < 0, np.nan, Y)[:, None]
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    (folder / "split" / "time").mkdir(parents=True)
    for part, code in {"train": 0, "valid": 1, "test": 2}.items():
        np.save(folder / "split" / "time" / f"{part}.npy", np.flatnonzero(code == SPLIT))
    return folder


@pytest.mark.parametrize("make", [ogb_text, ogb_arrays])
def test_an_ogb_folder_brings_everything_along(tmp_path: Path, make: object) -> None:
    assert callable(make)
    graph = import_graph(tmp_path / "store", edges=make(tmp_path / "ogb")).graph()
    expected = Graph.from_edges(EDGES, num_nodes=4)
    assert graph.indices.equal(expected.indices)
    assert graph.indptr.equal(expected.indptr)
    assert tensors_equal(graph.x, X)
    assert tensors_equal(graph.y, Y)
    assert graph.y is not None
    assert graph.y.dtype == torch.int64
    assert tensors_equal(graph.train_mask, SPLIT == 0)
    assert tensors_equal(graph.val_mask, SPLIT == 1)
    assert tensors_equal(graph.test_mask, SPLIT == 2)


def test_an_ogb_folder_may_have_many_labels(tmp_path: Path) -> None:
    many = np.array([[0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]])
    graph = import_graph(
        tmp_path / "store", edges=ogb_text(tmp_path / "ogb", labels=many), undirected=True
    ).graph()
    assert tensors_equal(graph.y, many)
    assert graph.num_edges == 6


def test_a_split_kept_as_a_pickle_is_refused_and_what_to_do_is_said(tmp_path: Path) -> None:
    folder = ogb_text(tmp_path / "ogb")
    (folder / "split" / "time" / "train.csv.gz").rename(folder / "split" / "time" / "train.pt")
    with pytest.raises(ValueError, match=r"train\.pt is a pickle, which is never read.*train\.csv\.gz"):
        import_graph(tmp_path / "store", edges=folder)


def test_of_several_schemes_one_must_be_given(tmp_path: Path) -> None:
    folder = ogb_text(tmp_path / "ogb")
    (folder / "split" / "sales").mkdir()
    for part in ("train", "valid", "test"):
        text_gz(
            folder / "split" / "sales" / f"{part}.csv.gz", np.array([["train", "valid", "test"].index(part)])
        )
    with pytest.raises(ValueError, match=r"several schemes \(sales, time\)"):
        import_graph(tmp_path / "a", edges=folder)
    graph = import_graph(tmp_path / "b", edges=folder, split=folder / "split" / "time").graph()
    assert tensors_equal(graph.test_mask, SPLIT == 2)


@pytest.mark.parametrize(
    ("file", "rows", "message"),
    [
        (
            "raw/edge.csv.gz",
            np.array([[0, 4]]),
            r"edge\.csv\.gz: line 1, column 'column 2': there is no node 4",
        ),
        ("raw/num-node-list.csv.gz", np.array([2, 2]), r"counts 2 graphs; expected one"),
        ("raw/node-feat.csv.gz", X[:3], r"node-feat\.csv\.gz has 3 rows, but .*raw counts 4"),
        ("raw/node-label.csv.gz", Y[:3], r"3 rows"),
        ("split/time/test.csv.gz", np.array([7]), r"test\.csv\.gz: row 0 names node 7; there are 4"),
        (
            "split/time/test.csv.gz",
            np.array([0]),
            r"test\.csv\.gz: row 0 names node 0, which another part has",
        ),
        ("split/time/test.csv.gz", np.array([0.5]), r"other things than row numbers"),
    ],
)
def test_an_ogb_folder_that_contradicts_itself_is_refused(
    tmp_path: Path, file: str, rows: np.ndarray, message: str
) -> None:
    folder = ogb_text(tmp_path / "ogb")
    text_gz(folder / file, rows)
    with pytest.raises(ValueError, match=message):
        import_graph(tmp_path / "store", edges=folder)
    assert [path.name for path in tmp_path.iterdir()] == ["ogb"]
