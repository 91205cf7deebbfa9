"""Ids in text: which of them are the same node, and how each column is parsed."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.data.importing import Limits, import_events, import_graph
from siafu.data.importing.text_ids import PaddedIdScanner
from siafu.store import Store

SMALL = Limits(line_bytes=32)  # blocks of text that are read at a time


def edges_in(folder: Path, text: str, **more: str) -> Store:
    """Import edges, and tables of nodes by their names, from text."""
    (folder / "e.csv").write_text(text)
    for name, table in more.items():
        (folder / f"{name}.csv").write_text(table)
    tables = {name: folder / f"{name}.csv" for name in more}
    return import_graph(folder / "store", edges=folder / "e.csv", limits=SMALL, **tables)  # type: ignore[arg-type]


def names(store: Store) -> list[object] | None:
    found = store.graph().node_names
    return None if found is None else found.to_pylist()


@pytest.mark.parametrize("rows", [0, 40])
@pytest.mark.parametrize("before", ["", "src,dst\n"])
def test_zeros_in_front_keep_ids_apart_wherever_they_stand(tmp_path: Path, rows: int, before: str) -> None:
    store = edges_in(tmp_path, before + "7,8\n" * rows + "007,7\n8,007\n")
    assert sorted(map(str, names(store) or [])) == ["007", "7", "8"]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_zeros_in_front_in_one_table_keep_the_text_of_all(tmp_path: Path) -> None:
    store = edges_in(
        tmp_path, "7,8\n8,7\n", labels="id,label\n7,0\n8,1\n", features="id,a\n7,1\n8,2\n007,3\n"
    )
    assert names(store) == ["7", "8", "007"]
    assert store.manifest.provenance.columns["edges"]["ids"] == "strings"


def test_an_id_of_letters_far_down_makes_all_ids_text(tmp_path: Path) -> None:
    store = edges_in(tmp_path, "src,dst\n" + "1,2\n" * 40 + "2,A7\n")
    assert names(store) == ["1", "2", "A7"]


@pytest.mark.parametrize(
    "text",
    [
        "src,dst,at\n" + "0,1,01/02/2020\n" * 9 + "1,2,02/02/2020\n",
        "src,dst,w\n0,1,00.5\n1,2,1\n",
        "src,dst\n0,1\n1,2\n10,20\n100,0\n",
        'src,dst\n"0","1"\n"1","2"\n',
    ],
)
def test_zeros_elsewhere_leave_ids_integers(tmp_path: Path, text: str) -> None:
    store = edges_in(tmp_path, text)
    found = names(store)
    assert found is None or all(isinstance(name, int) for name in found)


def test_zeros_in_front_of_row_numbers_change_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((9, 1)))
    (tmp_path / "e.csv").write_text("007,8\n7,8\n")
    store = import_graph(tmp_path / "store", edges=tmp_path / "e.csv", features=tmp_path / "x.npy")
    assert store.graph().indices.tolist() == [7, 7]
    assert store.manifest.provenance.columns["edges"]["ids"] == "row numbers"


@pytest.mark.parametrize("rows", [0, 40])
def test_floats_that_are_whole_are_integers(tmp_path: Path, rows: int) -> None:
    store = edges_in(
        tmp_path, "src,dst\n" + "2,300\n" * rows + "2.0,300\n300.,2\n", labels="id,y\n2,0\n300.0,1\n"
    )
    assert names(store) == [2, 300]
    assert store.graph().num_edges == rows + 2


def test_floats_need_no_header(tmp_path: Path) -> None:
    assert edges_in(tmp_path, "0.0,1.0\n1.0,2.0\n").graph().num_edges == 2


def test_large_ids_written_as_floats_keep_every_digit(tmp_path: Path) -> None:
    store = edges_in(tmp_path, "src,dst\n9007199254740993.0,9007199254740992.0\n")
    assert names(store) == [9007199254740993, 9007199254740992]


def test_floats_with_a_fraction_keep_their_text(tmp_path: Path) -> None:
    assert names(edges_in(tmp_path, "src,dst\n2.0,2.5\n2.5,3\n")) == ["2.0", "2.5", "3"]


def test_numbers_beyond_64_bits_keep_their_text(tmp_path: Path) -> None:
    large = "18446744073709551617"
    assert names(edges_in(tmp_path, f"src,dst\n1,{large}\n{large},2\n")) == ["1", large, "2"]


def test_an_empty_id_among_floats_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 3, column 'dst' is empty; expected the id of a node"):
        edges_in(tmp_path, "src,dst\n2.0,3.0\n2.0,\n")


def test_whole_floats_in_parquet_are_integers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"src": [2.0, 900.0], "dst": [900, 2]}), tmp_path / "e.parquet")
    pq.write_table(pa.table({"id": [2.0, 900.0], "label": ["a", "b"]}), tmp_path / "y.parquet")
    store = import_graph(tmp_path / "store", edges=tmp_path / "e.parquet", labels=tmp_path / "y.parquet")
    assert names(store) == [2, 900]


class Blocks:
    """A stream of some blocks of text."""

    def __init__(self, *blocks: bytes) -> None:
        self._blocks = iter([*blocks, b""])

    def read_buffer(self, size: int) -> pa.Buffer:
        return pa.py_buffer(next(self._blocks))


def test_padding_is_noticed_between_two_blocks() -> None:
    for at in range(1, 9):
        text = b"1,2\n007,8\n"
        stream = PaddedIdScanner(Blocks(text[:at], text[at:]), watch=True)
        while stream.read(64):
            pass
        assert stream.padded
        assert stream.num_bytes == len(text)


def test_events_keep_the_text_of_ids_too(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst,t\n" + "7,8,1\n" * 40 + "007,7,2\n")
    store = import_events(tmp_path / "store", events=tmp_path / "e.csv", limits=SMALL)
    assert store.graph().node_names.to_pylist() == ["7", "8", "007"]  # type: ignore[union-attr]


def test_which_columns_were_read_as_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("from,to,when,much,other\na,b,1,2,3\nb,a,2,3,4\n")
    store = import_events(tmp_path / "store", events=tmp_path / "e.csv")
    assert store.manifest.provenance.columns == {
        "events": {"src": "from", "dst": "to", "weight": "much", "time": "when", "ids": "strings"}
    }
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"id,a,b,c,d,e\n1,1,1,1,1,1\n2,1,1,1,1,1\n"))
    (tmp_path / "y.csv").write_text("id,label,more\n1,3,7\n2,0,8\n")
    (tmp_path / "s.csv").write_text("id,split\n1,train\n2,test\n")
    np.save(tmp_path / "e.npy", np.array([[1, 2], [2, 1]]))
    files = {"features": "x.csv.gz", "labels": "y.csv", "split": "s.csv"}
    paths = {name: tmp_path / file for name, file in files.items()}
    graph = import_graph(tmp_path / "graph", edges=tmp_path / "e.npy", **paths)  # type: ignore[arg-type]
    assert graph.manifest.provenance.columns == {
        "edges": {"src": "row 0 of e.npy", "dst": "row 1 of e.npy", "ids": "integers of your own"},
        "features": {"id": "id", "x": "5 columns, a to e"},
        "labels": {"id": "id", "y": "label", "kind": "4 classes"},
        "split": {"id": "id", "split": "split"},
    }
