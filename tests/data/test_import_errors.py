"""Errors of an import name file, line and field, and nothing half-written remains."""

import errno
import gzip
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.data.importing import external_sort, import_graph
from siafu.store import ArrayWriter

Write = Callable[[Path], object]


def text(content: str) -> Write:
    return lambda path: path.write_bytes(content.encode())


def parquet(**columns: list[object]) -> Write:
    return lambda path: pq.write_table(pa.table(columns), path)


def npy(values: object) -> Write:
    return lambda path: np.save(path, np.asarray(values))


GOOD: dict[str, Write] = {
    "edges.csv": text("src,dst\na,b\nb,c\n"),
    "features.csv": text("id,f,g\na,1,2\nb,3,4\nc,5,6\n"),
    "labels.csv": text("id,label\na,0\nb,1\n"),
    "split.csv": text("id,split\na,train\nb,test\n"),
}
ROWS: dict[str, Write] = {
    "edges.csv": text("src,dst\n0,1\n1,2\n"),
    "features.npy": npy(np.ones((3, 2))),
    "labels.npy": npy([0, 1, 1]),
    "split.npy": npy([0, 1, 2]),
}
NONE: Write = lambda path: None  # noqa: E731


def run(folder: Path, files: dict[str, Write]) -> None:
    """Write the files, import them, and hold the import to leaving nothing behind if it fails."""
    given = {}
    for name, write in files.items():
        if write is not NONE:
            write(folder / name)
            given[name.split(".")[0]] = folder / name
    before = sorted(folder.iterdir())
    try:
        import_graph(folder / "store", **given)  # type: ignore[arg-type]
    except BaseException:
        assert sorted(folder.iterdir()) == before
        raise


def test_the_good_files_are_good(tmp_path: Path) -> None:
    for name, files in {"named": GOOD, "rows": ROWS}.items():
        (tmp_path / name).mkdir()
        run(tmp_path / name, files)


@pytest.mark.parametrize(
    ("file", "write", "message"),
    [
        (
            "edges.csv",
            text("src,dst\na,b\nb,zoe\n"),
            r"edges\.csv: line 3, column 'dst': there is no node 'zoe' in .*features\.csv",
        ),
        ("edges.csv", text("src,dst\na,b\nb,\n"), r"edges\.csv: line 3, column 'dst' is empty"),
        ("edges.csv", text("src,dst\na,b\nb\n"), r"edges\.csv: line 3: Expected 2 columns, got 1"),
        ("edges.csv", text("src,target\na,b\n"), r"edges\.csv has a column 'src' but no 'dst'"),
        ("edges.csv", text("src\na\n"), r"edges\.csv has the one column 'src'; expected src and dst"),
        ("edges.csv", text("src,src\na,b\n"), r"names the column 'src' twice"),
        ("edges.csv", text("src,dst\n"), r"edges\.csv holds no edge"),
        ("edges.csv", text(""), r"edges: .*edges\.csv is empty \(0 bytes\)"),
        ("edges.csv", text("\n\n"), r"edges\.csv is empty"),
        ("edges.csv", text("src,dst,weight\na,b,nan\n"), r"edges\.csv: line 2, column 'weight' is nan"),
        (
            "edges.csv",
            text("src,dst,weight\na,b,heavy\n"),
            r"line 2, column 'weight': 'heavy' is not a number",
        ),
        (
            "edges.csv",
            text("a,b\nb,c\na,c\n"),
            r"line 3: 'a' is an id here and the name of a column in line 1",
        ),
        ("edges.csv", text("a,b\nb,c\n"), r"line 2: 'b' is an id here and the name of a column in line 1"),
        (
            "features.csv",
            text("a,1,2\nb,3,4\nc,5,6\n"),
            r"features\.csv: line 1 is either a header with numbers for names",
        ),
        ("labels.csv", text("a,1\nb,3\n"), r"labels\.csv: line 1 is either a header with numbers for names"),
        ("edges.csv", lambda p: p.write_bytes(b"src,dst\n\xff\xfe,b\n"), r"edges\.csv"),
        (
            "features.csv",
            text("id,f\na,1\nb,2\nc,nan\n"),
            r"features\.csv: line 4, column 'f' is nan; expected a finite",
        ),
        ("features.csv", text("id,f\na,1\nb,inf\nc,3\n"), r"features\.csv: line 3, column 'f' is inf"),
        ("features.csv", text("id,f\na,1\nb,1e300\nc,3\n"), r"features\.csv: line 3, column 'f' is inf"),
        ("features.csv", text("id,f\na,1\nb,\nc,3\n"), r"features\.csv: line 3, column 'f' is nan"),
        (
            "features.csv",
            text("id,f\na,1\nb,red\nc,3\n"),
            r"features\.csv: line 3, column 'f': 'red' is not a number",
        ),
        (
            "features.csv",
            text("id,f\na,1\nb,2\na,3\nc,4\n"),
            r"features\.csv: line 4, column 'id': 'a' again",
        ),
        ("features.csv", text("id\na\nb\nc\n"), r"features\.csv has the one column 'id'"),
        ("features.csv", text("id,f\n"), r"features\.csv holds no row"),
        (
            "labels.csv",
            text("id,label\na,0\na,1\n"),
            r"labels\.csv: line 3, column 'id': the node of .*line 2 again",
        ),
        (
            "labels.csv",
            text("id,label\na,0\nzoe,1\n"),
            r"labels\.csv: line 3, column 'id': there is no node 'zoe'",
        ),
        (
            "labels.csv",
            text("id,label\na,0\nb,-2\n"),
            r"labels\.csv: line 3: label -2; expected a class from 0, or -1",
        ),
        (
            "labels.csv",
            text("id,label\na,0\nb,4000000000\n"),
            r"labels\.csv: line 3: label 4000000000; expected a class below",
        ),
        ("labels.csv", text("id,p,q\na,0,1\nb,1,2\n"), r"labels\.csv: line 3: label 2; expected 0 or 1"),
        (
            "labels.csv",
            text("id,label\na,0.5\nb,inf\n"),
            r"labels\.csv: line 3: label inf; expected a finite number",
        ),
        ("labels.csv", text("id,label\n"), r"labels\.csv holds no row"),
        (
            "split.csv",
            text("id,split\na,train\nb,later\n"),
            r"split\.csv: line 3, column 'split' is 'later'; expected train",
        ),
        ("split.csv", text("id,split\na,0\nb,7\n"), r"split\.csv: line 3, column 'split' is 7"),
        ("split.csv", text("id,split\na,0\na,1\n"), r"split\.csv: line 3, column 'id': the node of"),
        ("split.csv", text("id,split\nzoe,0\n"), r"split\.csv: line 2, column 'id': there is no node 'zoe'"),
        (
            "split.csv",
            text("id,one,two\na,0,1\n"),
            r"split\.csv has columns id, one, two; expected one that is called split",
        ),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, file: str, write: Write, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path, {**GOOD, file: write})


@pytest.mark.parametrize(
    ("file", "write", "message"),
    [
        (
            "edges.csv",
            text("src,dst\n0,1\n1,3\n"),
            r"edges\.csv: line 3, column 'dst': there is no node 3; .*features\.npy has 3 nodes, 0 to 2",
        ),
        (
            "edges.csv",
            text("src,dst\n0,1\n-1,2\n"),
            r"edges\.csv: line 3, column 'src' is -1; node ids start at 0",
        ),
        (
            "edges.csv",
            text("src,dst\n0,1\n1,x\n"),
            r"edges\.csv: column 'src' holds string, but ids beside .*features\.npy are row numbers",
        ),
        ("edges.csv", text("src,dst\n0,1\n1,\n"), r"edges\.csv: line 3, column 'dst' is empty"),
        ("features.npy", npy([[1, 2], [np.nan, 4], [5, 6]]), r"features\.npy: row 1, column '0' is nan"),
        ("features.npy", npy([[1, 2], [3, 4], [5, 1e39]]), r"features\.npy: row 2, column '1' is 1e\+39"),
        ("features.npy", npy(["a", "b", "c"]), r"features\.npy is an array of <U1; expected numbers"),
        ("features.npy", npy(np.zeros((3, 2, 2))), r"features\.npy is \(3, 2, 2\); expected \(N, F\)"),
        ("features.npy", npy(np.zeros((0, 2))), r"features\.npy is \(0, 2\)"),
        ("features.npy", text("not numpy"), r"features\.npy is not a \.npy file"),
        ("features.npy", lambda p: p.write_bytes(pickle.dumps([1, 2])), r"features\.npy is not a \.npy file"),
        (
            "features.npy",
            lambda p: np.save(p, np.array([{}], dtype=object)),
            r"Python objects, which are never read",
        ),
        ("labels.npy", npy([0, 1]), r"labels\.npy has 2 rows, but .*features\.npy has 3"),
        ("labels.npy", npy([0, -5, 1]), r"labels\.npy: row 1: label -5"),
        ("labels.npy", npy([[0, 1], [1, 0], [1, 7]]), r"labels\.npy: row 2: label 7; expected 0 or 1"),
        ("labels.npy", npy(np.zeros((3, 2, 2), int)), r"labels\.npy is \(3, 2, 2\)"),
        ("split.npy", npy([0, 1, 4]), r"split\.npy: row 2 is 4; expected 0 train"),
        ("split.npy", npy([0.0, 1.0, 2.0]), r"split\.npy is \(3,\) float64; expected"),
        ("split.npy", npy([0, 1]), r"split\.npy has 2 rows, but .*features\.npy has 3"),
    ],
)
def test_a_bad_array_is_refused(tmp_path: Path, file: str, write: Write, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path, {**ROWS, file: write})


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("edges.parquet", text("src,dst\n0,1\n"), r"edges\.parquet is not a Parquet file"),
        ("edges.parquet", parquet(src=[0.5], dst=[1.5]), r"row 0, column 'src': '0.5' is not an integer"),
        (
            "edges.parquet",
            parquet(src=[0, None], dst=[1, 2]),
            r"edges\.parquet: row 1, column 'src' is empty",
        ),
        ("edges.parquet", parquet(src=[0, -3], dst=[1, 2]), r"edges\.parquet: row 1, column 'src' is -3"),
        (
            "edges.parquet",
            parquet(src=["a"], dst=[2]),
            r"column 'dst' holds int64, but ids in other columns are strings",
        ),
        ("edges.parquet", parquet(src=[1], dst=[2], weight=["x"]), r"column 'weight' holds string"),
        ("edges.parquet", parquet(src=[], dst=[]), r"column 'src' holds null"),
        (
            "edges.csv.gz",
            text("src,dst\n0,1\n"),
            r"edges\.csv\.gz is cut off, damaged or not what its suffix says",
        ),
        (
            "edges.csv.gz",
            lambda p: p.write_bytes(gzip.compress(b"src,dst\n" + b"0,1\n" * 9999)[:-9]),
            r"edges\.csv\.gz",
        ),
        ("edges.npy", npy([[0.5, 1], [1, 2]]), r"edges\.npy is \(2, 2\) float64; expected integers"),
        (
            "edges.npy",
            npy([[0, 1, 2]] * 3),
            r"edges\.npy is \(3, 3\) int64; expected integers, \(E, 2\) or \(2, E\)",
        ),
        ("edges.npy", npy(np.zeros((2, 0), int)), r"edges\.npy holds no edge"),
        ("edges.npy", npy([[0, 1], [1, -2]]), r"edges\.npy: edge 1, column 'dst' is -2"),
        ("edges.npz", text("x"), r"edges\.npz is not an \.npz file"),
        (
            "edges.npz",
            lambda p: np.savez(p, src=[0], dst=[1]),
            r"edges\.npz holds src, dst; expected the array edge_index",
        ),
        (
            "edges.npz",
            lambda p: np.savez(p, edge_index=[[0], [5]], num_nodes=3),
            r"there is no node 5; .*num_nodes has 3",
        ),
        ("edges.npz", lambda p: np.savez(p, edge_index=[[0], [1]], num_nodes=0), r"num_nodes counts 0 nodes"),
        (
            "edges.npz",
            lambda p: np.savez(p, edge_index=[[0], [1]], num_nodes=2, x=[[1.0]]),
            r"x has 1 rows, but .*num_nodes has 2",
        ),
        (
            "edges.npz",
            lambda p: np.savez(p, edge_index=[[0], [1]], train_mask=[1, 0], test_mask=[1, 1]),
            r"node 0 is in test_mask and in another",
        ),
        (
            "edges.npz",
            lambda p: np.savez(
                p, edge_index=[[0], [1]], x_indptr=[0, 1, 2], x_indices=[0, 9], x_data=[1, 1], x_shape=[2, 3]
            ),
            r"outside 0 to 2",
        ),
        (
            "edges.npz",
            lambda p: np.savez(
                p, edge_index=[[0], [1]], x_indptr=[0, 5, 2], x_indices=[0, 1], x_data=[1, 1], x_shape=[2, 3]
            ),
            r"make no CSR",
        ),
        ("edges.xlsx", text("x"), r"edges: .*edges\.xlsx has an unknown suffix; expected one of \.parquet"),
        (
            "edges",
            lambda p: p.mkdir(),
            r"edges: the folder .*edges holds no \.parquet file and no raw/ folder",
        ),
    ],
)
def test_a_bad_file_of_edges_is_refused(tmp_path: Path, name: str, write: Write, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(tmp_path, {name: write})


def test_a_label_that_no_edge_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"labels\.csv: line 3, column 'id': no edge in .*edges\.csv names this node"
    ):
        run(
            tmp_path, {"edges.csv": text("src,dst\na,b\n"), "labels.csv": text("id,label\na,0\nzoe,1\nb,1\n")}
        )


def test_labels_of_words_and_numbers_mixed_far_apart_are_refused(tmp_path: Path) -> None:
    lines = "".join(f"{i},1\n" for i in range(600_000))  # beyond the rows that decide the type
    with pytest.raises(
        ValueError, match=r"labels\.csv: line 600002, column 'label': 'cat' is not an integer"
    ):
        run(
            tmp_path,
            {
                "edges.csv": text("src,dst\n0,1\n"),
                "labels.csv": text(f"id,label\n{lines}600000,cat\n"),
                "features.npy": npy(np.zeros((600_001, 1))),
            },
        )


def test_a_feature_dtype_that_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="feature_dtype is 'int4'; expected one of"):
        import_graph(tmp_path / "store", edges="e.csv", feature_dtype="int4")  # type: ignore[arg-type]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"edges: .*none\.csv does not exist"):
        import_graph(tmp_path / "store", edges=tmp_path / "none.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_byte_in_packed_files_is_an_error_or_does_not_matter(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    edges = {"src": list(range(200)), "dst": list(range(1, 201))}
    np.savez_compressed(tmp_path / "g.npz", edge_index=[edges["src"], edges["dst"]])
    (tmp_path / "g.csv.gz").write_bytes(gzip.compress("".join(f"{i},{i + 1}\n" for i in range(200)).encode()))
    for name in ("g.npz", "g.csv.gz"):
        content = (tmp_path / name).read_bytes()
        for place in chance.integers(0, len(content), 60):
            changed = bytearray(content)
            changed[place] ^= 1 << int(chance.integers(8))
            (tmp_path / name).write_bytes(changed)
            store = tmp_path / f"{name}-{place}-{chance.integers(1 << 30)}"
            try:
                graph = import_graph(store, edges=tmp_path / name).graph()
            except (ValueError, OSError):
                assert not store.exists()
            else:
                assert graph.num_edges == 200
                assert graph.indices.tolist() == list(range(200))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("0,1\n")
    (tmp_path / "edges.csv").chmod(0)
    with pytest.raises(PermissionError, match=r"edges\.csv"):
        import_graph(tmp_path / "store", edges=tmp_path / "edges.csv")


def test_a_store_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(FileExistsError, match="exists already; remove it first"):
        import_graph(tmp_path / "store", edges=tmp_path / "edges.csv")


@pytest.mark.parametrize("where", ["store", "spool"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(
        *((ArrayWriter, "append") if where == "store" else (external_sort.KeyBuckets, "_write")), fail
    )
    with pytest.raises(OSError, match="No space left on device while writing the store"):
        run(tmp_path, GOOD)
