"""Graphs in .npz files: the layout, and files that are invalid, damaged or hostile."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.data import available, load, only_static
from siafu.data.npz import read_arrays, read_headers, read_npz, to_compressed, write_npz
from siafu.native import SparseRows

X = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.5, 0.0, 0.0]], dtype=np.float32)


def four_nodes(**changes: Any) -> dict[str, np.ndarray]:
    """A path 0 - 1 - 2 - 3 in both directions, with everything; a change of None drops the array."""
    arrays = {
        "edge_index": np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]], dtype=np.int32),
        "undirected": np.array(1, dtype=np.uint8),
        "num_nodes": np.array(4),
        "x": X,
        "y": np.array([0, 1, -1, 1]),
        "train_mask": np.array([True, False, False, False]),
        "val_mask": np.array([False, True, False, False]),
        "test_mask": np.array([False, False, False, True]),
        "note": np.array("four nodes"),
    }
    return {name: np.asarray(array) for name, array in (arrays | changes).items() if array is not None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "four.npz"


def test_every_array_of_the_layout_is_read(path: Path) -> None:
    write_npz(
        path,
        four_nodes(edge_weight=np.arange(6.0), node_names=["a", "b", "c", "d"], class_names=["no", "yes"]),
    )
    graph = read_npz(path)
    assert graph.indptr.tolist() == [0, 1, 3, 5, 6]
    assert graph.indices.tolist() == [1, 0, 2, 1, 3, 2]
    assert graph.edge_weight.tolist() == [1.0, 0.0, 3.0, 2.0, 5.0, 4.0]
    assert torch.equal(graph.x, torch.from_numpy(X))
    assert graph.y.tolist() == [0, 1, -1, 1]
    assert graph.test_mask.tolist() == [False, False, False, True]
    assert graph.name == "four"
    assert graph.node_names.to_pylist() == ["a", "b", "c", "d"]
    assert graph.class_names == ("no", "yes")


def test_the_edges_alone_are_enough(path: Path) -> None:
    write_npz(path, {"edge_index": np.array([[0, 4], [1, 2]])})
    graph = read_npz(path)
    assert (graph.num_nodes, graph.num_edges) == (5, 2)
    assert graph.x is None
    assert graph.y is None
    assert graph.train_mask is None


def test_a_directed_graph_stays_as_it_is_stored(path: Path) -> None:
    write_npz(path, four_nodes(edge_index=[[0, 0, 3], [1, 1, 2]], undirected=0))
    graph = read_npz(path)
    assert graph.indptr.tolist() == [0, 0, 2, 3, 3]
    assert graph.indices.tolist() == [0, 0, 3]


def test_many_labels_and_targets_are_read_as_such(path: Path) -> None:
    write_npz(path, four_nodes(y=np.array([[1, 0], [1, 1], [0, 0], [0, 1]], dtype=np.uint8)))
    assert read_npz(path).y.dtype == torch.uint8
    write_npz(path, four_nodes(y=np.array([0.5, np.nan, 1.5, 2.0])))
    assert read_npz(path).y.dtype == torch.float32


@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 1.0, -2.5]), min_size=3, max_size=3), min_size=4, max_size=4
    ),
    small=st.booleans(),
)
def test_compressed_rows_become_the_dense_rows_they_came_from(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[float]], small: bool
) -> None:
    x = np.array(rows, dtype=np.float32)
    arrays = to_compressed(x)
    if small:
        arrays |= {
            "x_indices": arrays["x_indices"].astype(np.uint16),
            "x_indptr": arrays["x_indptr"].astype(np.int32),
        }
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    write_npz(path, four_nodes(x=None, **arrays))
    found = read_npz(path).x
    assert isinstance(found, SparseRows) == (np.count_nonzero(x) <= x.size / 8)
    assert torch.equal(found.to_dense() if isinstance(found, SparseRows) else found, torch.from_numpy(x))


def test_a_fold_picks_a_column_and_a_plain_mask_serves_all(path: Path) -> None:
    train = np.array([[True, False], [False, True], [False, False], [False, False]])
    write_npz(path, four_nodes(train_mask=train, val_mask=None))
    assert read_npz(path, fold=0).train_mask.tolist() == [True, False, False, False]
    assert read_npz(path, fold=1).train_mask.tolist() == [False, True, False, False]
    assert read_npz(path, fold=1).test_mask.tolist() == [False, False, False, True]
    with pytest.raises(ValueError, match=r"fold 2 was asked for, but it has 2 \(0 to 1\)"):
        read_npz(path, fold=2)


def test_other_byte_orders_and_layouts_in_memory_are_read_alike(path: Path) -> None:
    plain = four_nodes()
    odd = {"x": np.asfortranarray(X).astype(">f4"), "y": plain["y"].astype(">i8")}
    write_npz(path, plain | odd | {"edge_index": np.asfortranarray(plain["edge_index"].astype(np.uint64))})
    graph = read_npz(path)
    assert graph.indices.tolist() == [1, 0, 2, 1, 3, 2]
    assert torch.equal(graph.x, torch.from_numpy(X))
    assert graph.y.tolist() == [0, 1, -1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": None}, "no array called edge_index"),
        ({"edge_index": [[0, 1]]}, r"edge_index is \(1, 2\) int64; expected two rows"),
        ({"edge_index": [[0.5], [1.0]]}, "edge_index is .* float64; expected two rows of integers"),
        ({"edge_index": [[0], [9]]}, "names node 9, but there are 4 nodes"),
        ({"edge_index": [[0], [-1]]}, "edge_index holds -1"),
        ({"edge_index": np.array([[0], [2**63 + 1]], dtype=np.uint64)}, "names node 9223372036854775809"),
        ({"edge_index": [[0], [1]]}, "undirected is 1, but some edge has no reverse"),
        ({"num_nodes": [4]}, r"num_nodes is \(1,\) int64; expected one integer"),
        ({"num_nodes": 0}, "no node"),
        ({"num_nodes": -3}, "no node"),
        ({"num_nodes": 2**40}, "1099511627776 nodes; at most"),
        ({"x": X[:3]}, r"x is \(3, 3\) float32; expected a row of numbers for each of 4"),
        ({"x": ["a", "b", "c", "d"]}, "x is .*<U1"),
        ({"x": np.where(X == 3, np.nan, X)}, "x: row 2, column 1 is nan"),
        ({"y": [0, 1]}, r"y is \(2,\) int64; expected a label"),
        ({"y": [0, 1, -2, 0]}, r"y\[2\] is -2; expected a class from 0"),
        ({"y": [[0, 1], [0, 2], [0, 0], [1, 1]]}, r"y\[1, 1\] is 2; expected 0 or 1"),
        ({"train_mask": [1, 0, 0, 0]}, r"train_mask is \(4,\) int64; expected bool"),
        ({"train_mask": [True]}, r"train_mask is \(1,\) bool"),
        ({"train_mask": [False, True, False, False]}, "node 1 is in val_mask and in another"),
        ({"train_mask": np.zeros((4, 2), bool), "val_mask": np.zeros((4, 3), bool)}, "2, 3.* columns"),
        ({"edge_weight": [1.0]}, r"edge_weight is \(1,\) float64; expected \(6,\) numbers"),
        ({"edge_weight": [1.0, 1.0, np.inf, 1.0, 1.0, 1.0]}, r"edge_weight\[2\] is inf"),
        ({"node_names": ["a"]}, "node_names is"),
        ({"class_names": [1, 2]}, "class_names is"),
        ({"x": None, "x_data": [1.0]}, "has x_data; expected all of"),
    ],
)
def test_errors_of_an_array_name_the_file(path: Path, changes: dict[str, Any], message: str) -> None:
    write_npz(path, four_nodes(**changes))
    with pytest.raises(ValueError, match=message) as caught:
        read_npz(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_shape": [3, 3]}, r"x_shape is \[3, 3\]; expected 4 rows"),
        ({"x_shape": [4, 2]}, "x has a column 2; expected 0 to 1"),
        ({"x_indptr": [0, 2, 2, 3]}, "expected 5 integers"),
        ({"x_indptr": [0, 3, 2, 3, 4]}, "expected offsets that never fall"),
        ({"x_indptr": [0, 2, 2, 3, 9]}, "ends at 9, but there are 4 indices"),
        ({"x_indices": [0, 2, 1]}, "as many as x_data"),
        ({"x_data": ["a", "b", "c", "d"]}, "x_data is"),
        ({"x_shape": [4, 10**15]}, "unpacks to 4000000000000000 bytes"),
    ],
)
def test_compressed_rows_that_do_not_fit_are_refused(
    path: Path, changes: dict[str, Any], message: str
) -> None:
    write_npz(path, four_nodes(x=None, **(to_compressed(X) | changes)))
    with pytest.raises(ValueError, match=message):
        read_npz(path)


def test_nothing_is_unpickled(path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("it was unpickled",)

    hostile = io.BytesIO()
    np.lib.format.write_array_header_1_0(hostile, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("edge_index.npy", hostile.getvalue() + pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"not a whole .npz file of plain arrays"):
        read_npz(path)


def test_a_bomb_is_refused_before_it_is_unpacked(path: Path) -> None:
    write_npz(path, four_nodes(x=np.zeros((4, 1_000_000), dtype=np.float32)))
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"unpacks to 160.* bytes, more than the 1000000 there are"):
        read_npz(path, limit_bytes=1_000_000)


def test_a_header_that_promises_more_than_the_file_has_is_refused(path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i8", "fortran_order": False, "shape": (2, 10**12)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("edge_index.npy", header.getvalue())
    with pytest.raises(ValueError, match="has 0 bytes for"):
        read_npz(path)


def test_a_foreign_file_is_refused(path: Path) -> None:
    for content in (b"", b"hello", pickle.dumps([1, 2]), b"PK\x03\x04" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"not a whole .npz file"):
            read_npz(path)


@settings(deadline=None, max_examples=150)
@given(place=st.floats(0, 1), flip=st.integers(1, 255), cut=st.booleans())
def test_a_cut_or_flipped_file_is_refused_or_reads_as_the_same_graph(
    tmp_path_factory: pytest.TempPathFactory, place: float, flip: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("npz") / "four.npz"
    write_npz(path, four_nodes())
    content = bytearray(path.read_bytes())
    at = int(place * (len(content) - 1))
    if cut:
        del content[at:]
    else:
        content[at] ^= flip
    path.write_bytes(content)
    try:
        graph = read_npz(path)
    except ValueError:
        return
    assert graph.indices.tolist() == [1, 0, 2, 1, 3, 2]
    assert graph.x is None or torch.equal(graph.x, torch.from_numpy(X))
    assert graph.y is None or graph.y.tolist() == [0, 1, -1, 1]


def test_headers_are_read_without_the_arrays(path: Path) -> None:
    write_npz(path, four_nodes())
    headers = read_headers(path)
    assert headers["x"].shape == (4, 3)
    assert headers["x"].num_bytes == 48
    assert read_arrays(path, ("y", "not there")).keys() == {"y"}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    write_npz(path, four_nodes())
    before = path.read_bytes()
    with pytest.raises(ValueError, match="pickle"):
        write_npz(path, {"edge_index": np.array([object()])})
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["four.npz"]


def test_real_graphs_are_read_as_they_are_listed(data_home: Path) -> None:
    listed = {description.name: description for description in available(data_home)}
    for name in ("cora", "actor", "aifb_rdf", "blogcatalog_multilabel", "lp_usair"):
        graph = load(name, home=data_home)
        assert (graph.num_nodes, graph.num_edges) == (listed[name].nodes, listed[name].edges)
        assert (0 if graph.x is None else graph.x.shape[1]) == listed[name].features
    cora = load("cora", home=data_home)
    assert [int(mask.sum()) for mask in (cora.train_mask, cora.val_mask, cora.test_mask)] == [140, 500, 1000]
    with pytest.raises(ValueError, match="fold 1 was asked for"):
        load("cora", home=data_home, fold=1)
    folds = [load("actor", home=data_home, fold=fold).train_mask for fold in (0, 9)]
    assert not torch.equal(folds[0], folds[1])


def test_real_graphs_that_change_over_time_say_so(data_home: Path) -> None:
    graph = load("ucsocial", home=data_home)
    with pytest.raises(ValueError, match="ucsocial: a graph that changes over time; only method"):
        only_static(graph)


def test_a_bare_number_of_nodes_that_nothing_justifies_is_refused(path: Path) -> None:
    np.savez(path, edge_index=np.array([[0], [1]]), num_nodes=np.array(2**31 - 2))
    with pytest.raises(
        ValueError, match=r"num_nodes is 2,147,483,646 beside 1 edges.*siafu import --max-nodes"
    ):
        read_npz(path)


def test_a_header_that_claims_gigabytes_is_not_read(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "edge_index.npy", b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little") + b" " * 64
        )
    with pytest.raises(ValueError, match="has the header of a table"):
        read_headers(path)
