"""Limits of an import: a small file cannot fill memory or disk, and a user can raise each limit."""

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siafu.data.importing import Limits, import_events, import_graph, limits, tables
from siafu.data.importing.file_location import FileLocation
from siafu.data.importing.node_ids import InferredRowNumbers, SparseIdsError
from siafu.data.importing.numpy_files import unpack_npz
from siafu.data.importing.page_headers import unpacked_bytes


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes from which limits hold, small enough for a test."""
    monkeypatch.setattr(limits, "_ROOM_BYTES", 1 << 16)
    monkeypatch.setattr(limits, "_ROOM_NODES", 1 << 10)


@pytest.mark.parametrize("name", ["e.csv", "e.csv.gz"])
@pytest.mark.parametrize("before", ["", "src,dst\n0,1\n"])
def test_a_line_that_is_too_long_is_refused_with_the_option(tmp_path: Path, name: str, before: str) -> None:
    text = before.encode() + b"0," + b"1" * 10_000
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    with pytest.raises(ValueError, match=r"a line of more than 1,024 bytes; .*--max-line-bytes"):
        import_graph(tmp_path / "store", edges=tmp_path / name, limits=Limits(line_bytes=1024))


def test_a_first_field_that_is_too_long_for_the_reader_of_headers_is_refused_alike(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_bytes(b"1" * 300_000)
    with pytest.raises(ValueError, match=r"a line of more than 200,000 bytes; .*--max-line-bytes"):
        import_graph(tmp_path / "store", edges=tmp_path / "e.csv", limits=Limits(line_bytes=200_000))


def test_a_line_that_fits_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(f"src,dst\n0,{'1'.zfill(900)}\n")
    store = import_graph(tmp_path / "store", edges=tmp_path / "e.csv", limits=Limits(line_bytes=1024))
    assert store.graph().num_edges == 1


def test_arrays_that_nobody_reads_are_not_unpacked(tmp_path: Path) -> None:
    edges = np.array([[0, 1], [1, 0]])
    np.savez_compressed(tmp_path / "g.npz", edge_index=edges, unused=np.zeros(1 << 20))
    found = unpack_npz(tmp_path / "g.npz", tmp_path / "out", ("edge_index", "x"), Limits(ratio=1))
    assert found.keys() == {"edge_index"}
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) < 1000
    assert import_graph(tmp_path / "store", edges=tmp_path / "g.npz").graph().num_edges == 2


@pytest.mark.usefixtures("little_room")
def test_an_array_that_unpacks_to_absurdly_many_bytes_is_refused_with_the_option(tmp_path: Path) -> None:
    edges, x = np.array([[0, 1], [1, 0]]), np.zeros((2, 1 << 20))
    np.savez_compressed(tmp_path / "g.npz", edge_index=edges, x=x)
    with pytest.raises(
        ValueError, match=r"g.npz \(edge_index, x\) unpacks to .*at most 500 times.*--max-ratio"
    ):
        import_graph(tmp_path / "store", edges=tmp_path / "g.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]
    import_graph(tmp_path / "store", edges=tmp_path / "g.npz", limits=Limits(ratio=5000))


@pytest.mark.usefixtures("little_room")
def test_text_that_unpacks_to_absurdly_many_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b"0,1\n" * (1 << 16)))
    with pytest.raises(ValueError, match=r"unpacks to at least .*at most 100 times: .*--max-ratio"):
        import_graph(tmp_path / "store", edges=tmp_path / "e.csv.gz", limits=Limits(ratio=100))


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("how", [{"compression": "zstd", "use_dictionary": False}, {}])
def test_parquet_that_claims_absurdly_many_bytes_is_refused(tmp_path: Path, how: Any) -> None:
    """Either its pages are large by themselves, or a few bytes of them stand for very many rows."""
    zeros = np.zeros(1 << 20, np.int64)
    pq.write_table(pa.table({"src": zeros, "dst": zeros}), tmp_path / "e.parquet", **how)
    with pytest.raises(ValueError, match=r"e.parquet unpacks to .*at most 500 times: .*--max-ratio"):
        import_graph(tmp_path / "store", edges=tmp_path / "e.parquet")


def varint(number: int) -> bytes:
    """A positive number as Thrift's compact protocol writes it."""
    groups = [(2 * number >> shift) & 0x7F for shift in range(0, 35, 7)]
    while len(groups) > 1 and not groups[-1]:
        groups.pop()
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


@pytest.mark.usefixtures("little_room")
def test_a_footer_that_claims_less_than_the_pages_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, names = tmp_path / "e.parquet", [chr(65 + row) * (1 << 16) for row in range(40)]
    pq.write_table(pa.table({"src": names, "dst": names}), path, compression="zstd", use_dictionary=False)
    data, chunk = path.read_bytes(), pq.read_metadata(path).row_group(0).column(0)
    true, false = varint(chunk.total_uncompressed_size), varint((1 << 20) + 1)
    assert len(true) == len(false)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:footer] + data[footer:].replace(true, false))
    columns = [pq.read_metadata(path).row_group(0).column(place) for place in range(2)]
    assert [column.total_uncompressed_size for column in columns] == [(1 << 20) + 1] * 2
    assert unpacked_bytes(path, columns) > 5 << 20
    ratio = (4 << 20) // path.stat().st_size  # more than the footer claims, and less than the pages
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)  # it is refused before a page is unpacked
    with pytest.raises(ValueError, match=rf"e.parquet unpacks to .*at most {ratio} times: .*--max-ratio"):
        import_graph(tmp_path / "store", edges=path, limits=Limits(ratio=ratio))


@pytest.mark.parametrize("damage", [b"\0", b"\xff" * 40, b"\x1c" * 40])
def test_a_page_header_that_is_none_is_an_error(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"src": [0, 1], "dst": [1, 0]}), path)
    data = path.read_bytes()
    path.write_bytes(data[:4] + damage + data[4 + len(damage) :])
    with pytest.raises(ValueError, match=r"e.parquet is not readable: no page header at byte 4"):
        import_graph(tmp_path / "store", edges=path)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_pages_of_every_kind_are_measured(tmp_path: Path, version: Any, compression: str) -> None:
    names = [f"node {row % 7000}" * 3 for row in range(50_000)]
    table = pa.table({"a": names, "b": np.arange(50_000), "c": np.linspace(0, 1, 50_000)})
    how: dict[str, Any] = {"compression": compression, "data_page_version": version}
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=20_000, write_page_checksum=True, **how)
    found = pq.read_metadata(tmp_path / "t.parquet")
    chunks = [found.row_group(group).column(place) for group in range(3) for place in range(3)]
    told = sum(chunk.total_uncompressed_size for chunk in chunks)  # with the headers
    assert 0.95 * told < unpacked_bytes(tmp_path / "t.parquet", chunks) <= told


@pytest.mark.usefixtures("little_room")
def test_a_long_string_that_repeats_in_every_row_is_refused(tmp_path: Path) -> None:
    names = pa.array(["a" * 10_000, "b"]).take(pa.array([0, 1] * 5000))
    pq.write_table(pa.table({"src": names, "dst": names}), tmp_path / "e.parquet", store_schema=False)
    assert (tmp_path / "e.parquet").stat().st_size < 5000
    with pytest.raises(ValueError, match=r"e.parquet unpacks to .*at most 500 times: .*--max-ratio"):
        import_graph(tmp_path / "store", edges=tmp_path / "e.parquet")


@pytest.mark.parametrize("keep", [True, False], ids=["dictionary", "string"])
def test_long_strings_are_written_out_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setattr(tables, "_BATCH_BYTES", 1000)
    names = pa.array(["a" * 400, None, "b", "c" * 400, "d", "e"])
    written = pa.table({"id": names.dictionary_encode() if keep else names, "n": range(6)})
    pq.write_table(written, tmp_path / "t.parquet", row_group_size=3)
    table = tables.open_table(tmp_path / "t.parquet", wanted=("id",))
    batches = list(table.batches(("id", "n"), label="", progress=lambda *_: None))
    counts = [batch.columns.num_rows for batch in batches]
    assert max(counts) == 2, "as many as the longest of 400 bytes fills the batch with"
    starts = [sum(counts[:place]) for place in range(len(counts))]
    assert [batch.place for batch in batches] == [FileLocation(table.path, "row", row) for row in starts]
    assert [each for batch in batches for each in batch.columns.column("id").to_pylist()] == names.to_pylist()


@pytest.mark.usefixtures("little_room")
def test_sparse_features_of_absurd_width_are_refused(tmp_path: Path) -> None:
    arrays = {"indptr": np.array([0, 1, 1]), "indices": np.array([0]), "data": np.ones(1)}
    np.savez(tmp_path / "x.npz", **arrays, shape=np.array([2, 10**12]), format=np.array(b"csr"))
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 0]]))
    with pytest.raises(
        ValueError, match=r"a row of x, of 1,000,000,000,000 numbers, unpacks to .*--max-ratio"
    ):
        import_graph(tmp_path / "store", edges=tmp_path / "e.npy", features=tmp_path / "x.npz")


@pytest.mark.usefixtures("little_room")
def test_a_bare_number_of_nodes_is_held_to_the_edges(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=np.array([[0, 1], [1, 0]]), num_nodes=np.array(5_000_000))
    match = r"num_nodes counts 5,000,000 nodes beside at most 2 edges .*at most 1,024: .*--max-nodes"
    with pytest.raises(ValueError, match=match):
        import_graph(tmp_path / "store", edges=tmp_path / "g.npz")
    events = {"src": np.array([0]), "dst": np.array([1]), "t": np.array([0])}
    np.savez(tmp_path / "t.npz", **events, num_nodes=np.array(5000))
    with pytest.raises(ValueError, match="counts 5,000 nodes beside at most 1 edges"):
        import_events(tmp_path / "store", events=tmp_path / "t.npz")
    store = import_events(tmp_path / "store", events=tmp_path / "t.npz", limits=Limits(nodes=5000))
    assert store.manifest.num_nodes == 5000


@pytest.mark.usefixtures("little_room")
def test_nodes_with_rows_of_their_own_are_not_a_bare_number(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "g.npz", edge_index=np.array([[0], [1]]), y=np.zeros(5000, int), num_nodes=np.array(5000)
    )
    assert import_graph(tmp_path / "store", edges=tmp_path / "g.npz").manifest.num_nodes == 5000


@pytest.mark.parametrize("largest", [10**12, 5 * 10**8, 40])
def test_an_edge_that_names_a_huge_id_makes_two_nodes(tmp_path: Path, largest: int) -> None:
    (tmp_path / "e.csv").write_text(f"0,{largest}\n")
    store = import_graph(tmp_path / "store", edges=tmp_path / "e.csv")
    assert store.graph().node_names.to_pylist() == [0, largest]  # type: ignore[union-attr]


def test_an_id_beyond_what_the_edges_can_use_takes_no_memory() -> None:
    ids = InferredRowNumbers(most_edges=3)
    assert ids.rows(pa.array([0, 23]), FileLocation(Path("e.csv")), "src").tolist() == [0, 23]
    with pytest.raises(SparseIdsError):
        ids.rows(pa.array([24]), FileLocation(Path("e.csv")), "src")


def test_a_long_text_in_an_archive_is_not_read(tmp_path: Path) -> None:
    arrays = {
        "indptr": np.array([0, 1]),
        "indices": np.array([0]),
        "data": np.ones(1),
        "shape": np.array([1, 1]),
    }
    np.savez_compressed(tmp_path / "x.npz", **arrays, format=np.array(b"csr" + b" " * 10_000))
    np.save(tmp_path / "e.npy", np.array([[0], [0]]))
    with pytest.raises(ValueError, match="expected a CSR matrix"):
        import_graph(tmp_path / "store", edges=tmp_path / "e.npy", features=tmp_path / "x.npz")
    with zipfile.ZipFile(tmp_path / "x.npz") as archive:
        assert archive.getinfo("format.npy").file_size > 10_000


@pytest.mark.parametrize("how", [{"line_bytes": 0}, {"ratio": 0}, {"nodes": -1}])
def test_limits_are_numbers_from_one(how: Any) -> None:
    with pytest.raises(ValueError, match="expected numbers from 1"):
        Limits(**how)
