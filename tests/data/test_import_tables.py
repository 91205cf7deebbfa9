"""Import of tables of edges, features, labels and splits."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.data.importing import Limits, external_sort, import_graph, tables
from siafu.graph import Graph

EDGES = [(0, 1), (1, 2), (2, 0), (3, 1), (0, 1)]


def write_table(path: Path, columns: dict[str, list[object]]) -> Path:
    """Write columns as what the suffix says."""
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
        return path
    sink = pa.BufferOutputStream()
    delimiter = "\t" if ".tsv" in path.name else ","
    pa_csv.write_csv(table, sink, pa_csv.WriteOptions(delimiter=delimiter, quoting_style="none"))
    text = sink.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def edges_of(graph: Graph) -> list[tuple[object, object]]:
    """The edges (source, target), by the user's own ids, sorted."""
    names = range(graph.num_nodes) if graph.node_names is None else graph.node_names.to_pylist()
    pairs = zip(graph.indices.tolist(), graph.block.row_edge.tolist(), strict=True)
    return sorted((names[src], names[dst]) for src, dst in pairs)


FORMATS = ["e.csv", "e.csv.gz", "e.tsv", "e.tsv.gz", "e.parquet", "e.CSV"]


@pytest.mark.parametrize("file", FORMATS)
def test_edges_by_row_number_keep_their_numbers(tmp_path: Path, file: str) -> None:
    path = write_table(tmp_path / file, {"src": [s for s, _ in EDGES], "dst": [d for _, d in EDGES]})
    graph = import_graph(tmp_path / "store", edges=path).graph()
    expected = Graph.from_edges(np.array(EDGES).T)
    assert graph.indptr.equal(expected.indptr)
    assert graph.indices.equal(expected.indices)
    assert graph.node_names is None
    assert graph.name == "store"


@pytest.mark.parametrize("file", FORMATS)
def test_string_ids_are_numbered_by_first_appearance_and_kept(tmp_path: Path, file: str) -> None:
    path = write_table(tmp_path / file, {"src": ["b", "a", "c"], "dst": ["a", "c", "żuk"]})
    graph = import_graph(tmp_path / "store", edges=path).graph()
    assert graph.node_names.to_pylist() == ["b", "a", "c", "żuk"]
    assert edges_of(graph) == [("a", "c"), ("b", "a"), ("c", "żuk")]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "tsv.gz"])
def test_all_tables_together_make_one_graph(tmp_path: Path, suffix: str) -> None:
    store = import_graph(
        tmp_path / "store",
        edges=write_table(tmp_path / f"e.{suffix}", {"src": ["a", "b", "c"], "dst": ["b", "c", "a"]}),
        features=write_table(
            tmp_path / f"x.{suffix}",
            {"id": ["c", "a", "b", "d"], "f": [1, 2, 3, 4], "g": [0.5, 1.5, -1.0, 2.0]},
        ),
        labels=write_table(tmp_path / f"y.{suffix}", {"id": ["a", "b", "d"], "label": ["dog", "cat", "dog"]}),
        split=write_table(
            tmp_path / f"s.{suffix}", {"id": ["b", "a", "d"], "split": ["valid", "train", "TEST"]}
        ),
    )
    graph = store.graph()
    assert graph.node_names.to_pylist() == ["c", "a", "b", "d"]
    assert edges_of(graph) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert graph.x is not None
    assert graph.x.tolist() == [[1, 0.5], [2, 1.5], [3, -1], [4, 2]]
    assert graph.y is not None
    assert graph.y.tolist() == [-1, 1, 0, 1]
    assert graph.class_names == ("cat", "dog")
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    assert [m.nonzero().flatten().tolist() for m in masks if m is not None] == [[1], [2], [3]]
    assert store.manifest.provenance.sources["features"].endswith(f"x.{suffix}")


def test_integer_ids_beside_a_table_of_features_are_the_users_own(tmp_path: Path) -> None:
    graph = import_graph(
        tmp_path / "store",
        edges=write_table(tmp_path / "e.csv", {"src": [900, 7], "dst": [7, 31]}),
        features=write_table(tmp_path / "x.parquet", {"f": [1.0, 2.0, 3.0], "id": [31, 900, 7]}),
    ).graph()
    assert graph.node_names.to_pylist() == [31, 900, 7]
    assert edges_of(graph) == [(7, 31), (900, 7)]
    assert graph.x is not None
    assert graph.x.tolist() == [[1], [2], [3]]


def test_ids_of_digits_beside_ids_of_letters_are_strings_everywhere(tmp_path: Path) -> None:
    graph = import_graph(
        tmp_path / "store",
        edges=write_table(tmp_path / "e.csv", {"src": [1, 2], "dst": [2, 1]}),
        features=write_table(tmp_path / "x.csv", {"id": ["1", "2", "x3"], "f": [1.0, 2.0, 3.0]}),
    ).graph()
    assert graph.node_names.to_pylist() == ["1", "2", "x3"]
    assert edges_of(graph) == [("1", "2"), ("2", "1")]


def test_sparse_integers_in_edges_alone_are_the_users_own(tmp_path: Path) -> None:
    path = write_table(tmp_path / "e.csv", {"src": [5_000_000_000, 40], "dst": [40, 7]})
    graph = import_graph(tmp_path / "store", edges=path).graph()
    assert graph.node_names.to_pylist() == [5_000_000_000, 40, 7]
    assert edges_of(graph) == [(40, 7), (5_000_000_000, 40)]


@pytest.mark.parametrize(("largest", "rows"), [(7, 8), (8, None)])
def test_integers_in_edges_alone_are_row_numbers_if_a_quarter_is_in_use(
    tmp_path: Path, largest: int, rows: int | None
) -> None:
    path = write_table(tmp_path / "e.csv", {"src": [0], "dst": [largest]})
    graph = import_graph(tmp_path / "store", edges=path).graph()
    assert graph.num_nodes == (rows or 2)
    assert (graph.node_names is None) == (rows is not None)


def test_columns_are_found_by_name_else_by_place(tmp_path: Path) -> None:
    named = write_table(tmp_path / "named.csv", {"time": [9, 9], "dst": [1, 2], "src": [0, 1]})
    assert edges_of(import_graph(tmp_path / "a", edges=named).graph()) == [(0, 1), (1, 2)]
    placed = write_table(tmp_path / "placed.parquet", {"from": [0, 1], "to": [1, 2], "time": [9, 9]})
    assert edges_of(import_graph(tmp_path / "b", edges=placed).graph()) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "\n\nsrc, dst\n0,1\n\n1,2\n",
        "\n0,1\n1,2\n",
        "0,1\n1,2\n",
        "from,to\n0,1\n1,2\n",
        '"src","dst"\n0,1\n1,2\n',
        "\ufeffsrc,dst\r\n0,1\r\n1,2\r\n",
        "0,1\n1,2",
    ],
)
def test_a_header_is_a_first_line_that_is_not_of_integers(tmp_path: Path, text: str) -> None:
    (tmp_path / "e.csv").write_bytes(text.encode())
    assert edges_of(import_graph(tmp_path / "store", edges=tmp_path / "e.csv").graph()) == [(0, 1), (1, 2)]


def test_tables_of_nodes_with_integer_ids_need_no_header(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("10,20\n20,30\n")
    (tmp_path / "x.csv").write_text("30,1.5,2\n10,3,4\n20,5,6\n")
    (tmp_path / "y.csv").write_text("10,1\n20,0\n")
    graph = import_graph(
        tmp_path / "store", edges=tmp_path / "e.csv", features=tmp_path / "x.csv", labels=tmp_path / "y.csv"
    ).graph()
    assert graph.node_names.to_pylist() == [30, 10, 20]
    assert graph.x is not None
    assert graph.x[0].tolist() == [1.5, 2]
    assert graph.y is not None
    assert graph.y.tolist() == [-1, 1, 0]


def test_a_folder_of_parquet_files_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    write_table(tmp_path / "edges" / "2.parquet", {"src": ["c"], "dst": ["d"]})
    write_table(tmp_path / "edges" / "1.parquet", {"src": ["a", "b", "b"], "dst": ["b", "c", "a"]})
    graph = import_graph(tmp_path / "store", edges=tmp_path / "edges").graph()
    assert graph.node_names.to_pylist() == ["a", "b", "c", "d"]
    assert graph.num_edges == 4


def test_weights_go_with_their_edges_and_the_first_of_repeated_ones_is_kept(tmp_path: Path) -> None:
    columns = {"src": [0, 1, 0, 2], "dst": [1, 0, 1, 0], "weight": [5.0, 6.0, 7.0, 8.0]}
    path = write_table(tmp_path / "e.csv", columns)
    index, weight = [columns["src"], columns["dst"]], columns["weight"]
    for undirected in (False, True):
        graph = import_graph(tmp_path / str(undirected), edges=path, undirected=undirected).graph()
        expected = Graph.from_edges(index, edge_weight=weight, undirected=undirected)
        assert graph.indices.equal(expected.indices)
        assert graph.edge_weight is not None
        assert expected.edge_weight is not None
        assert graph.edge_weight.tolist() == expected.edge_weight.tolist()


def test_labels_of_several_columns_are_many_labels_or_several_targets(tmp_path: Path) -> None:
    edges = write_table(tmp_path / "e.csv", {"src": ["a", "b"], "dst": ["b", "c"]})
    many = write_table(tmp_path / "many.csv", {"id": ["b", "a"], "red": [1, 0], "big": [1, 1]})
    graph = import_graph(tmp_path / "many", edges=edges, labels=many).graph()
    assert graph.y is not None
    assert graph.y.dtype == torch.uint8
    assert graph.y.tolist() == [[1, 1], [0, 1], [0, 0]]
    assert graph.class_names == ("red", "big")
    targets = write_table(tmp_path / "targets.csv", {"id": ["b", "a"], "u": [1.5, 0.5], "v": [1.0, 2.5]})
    y = import_graph(tmp_path / "targets", edges=edges, labels=targets).graph().y
    assert y is not None
    assert y[:2].tolist() == [[1.5, 1.0], [0.5, 2.5]]
    assert bool(y[2].isnan().all())


def test_an_empty_label_is_none(tmp_path: Path) -> None:
    edges = write_table(tmp_path / "e.csv", {"src": ["a", "b"], "dst": ["b", "c"]})
    for name, text, expected in (
        ("numbers", "id,label\na,1\nb,\nc,0\n", [1, -1, 0]),
        ("words", "id,label\na,x\nb,\nc,w\n", [1, -1, 0]),
    ):
        (tmp_path / f"{name}.csv").write_text(text)
        y = import_graph(tmp_path / name, edges=edges, labels=tmp_path / f"{name}.csv").graph().y
        assert y is not None
        assert y.tolist() == expected


def test_real_numbers_are_targets_to_regress_on(tmp_path: Path) -> None:
    edges = write_table(tmp_path / "e.csv", {"src": ["a", "b"], "dst": ["b", "c"]})
    labels = write_table(tmp_path / "y.parquet", {"id": ["a", "c"], "y": [0.5, 1.0]})
    y = import_graph(tmp_path / "store", edges=edges, labels=labels).graph().y
    assert y is not None
    assert y.dtype == torch.float32
    assert y[[0, 1]].tolist() == [0.5, 1.0]
    assert bool(y[2].isnan())


def test_columns_of_parquet_may_be_dictionaries(tmp_path: Path) -> None:
    def coded(*words: str) -> pa.Array:
        return pa.array(words).dictionary_encode()

    pq.write_table(pa.table({"src": coded("a", "b"), "dst": coded("b", "c")}), tmp_path / "e.parquet")
    pq.write_table(pa.table({"id": coded("c", "a"), "label": coded("x", "w")}), tmp_path / "y.parquet")
    pq.write_table(pa.table({"id": coded("c", "a"), "split": coded("test", "val")}), tmp_path / "s.parquet")
    files = {"edges": "e.parquet", "labels": "y.parquet", "split": "s.parquet"}
    graph = import_graph(tmp_path / "store", **{k: tmp_path / v for k, v in files.items()}).graph()
    assert graph.node_names.to_pylist() == ["c", "a", "b"]
    assert edges_of(graph) == [("a", "b"), ("b", "c")]
    assert graph.y is not None
    assert graph.y.tolist() == [1, 0, -1]
    assert graph.val_mask is not None
    assert graph.val_mask.tolist() == [False, True, False]


def test_features_can_be_kept_as_bfloat16(tmp_path: Path) -> None:
    edges = write_table(tmp_path / "e.csv", {"src": [0], "dst": [1]})
    np.save(tmp_path / "x.npy", np.array([[1.0, 0.1], [2.0, 3.0]]))
    x = (
        import_graph(tmp_path / "store", edges=edges, features=tmp_path / "x.npy", feature_dtype="bfloat16")
        .graph()
        .x
    )
    assert x is not None
    assert x.equal(torch.tensor([[1.0, 0.1], [2.0, 3.0]]).bfloat16())


def test_features_can_be_kept_as_int8(tmp_path: Path) -> None:
    edges = write_table(tmp_path / "e.csv", {"src": [0], "dst": [1]})
    wanted = np.random.default_rng(0).normal(size=(50, 7)) * np.logspace(-9, 9, 50)[:, None]
    wanted[3] = 0
    np.save(tmp_path / "x.npy", wanted)
    store = import_graph(tmp_path / "store", edges=edges, features=tmp_path / "x.npy", feature_dtype="int8")
    graph = store.graph()
    assert graph.x is not None
    assert graph.x_scale is not None
    assert graph.features is not None
    assert graph.x.dtype == torch.int8
    assert graph.features.dtype == torch.float32
    half = graph.x_scale.double()[:, None] / 2
    assert bool(((graph.features.double() - torch.from_numpy(wanted)).abs() <= half * (1 + 1e-5)).all())
    assert graph.features[3].tolist() == [0.0] * 7
    assert graph.x.abs().amax(1).tolist() == [127, 127, 127, 0] + [127] * 46


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    path = write_table(tmp_path / "e.csv", {"src": [0, 1], "dst": [1, 2]})
    told: list[tuple[str, int, int | None]] = []
    import_graph(tmp_path / "store", edges=path, progress=lambda *step: told.append(step))
    assert ("edges", path.stat().st_size, path.stat().st_size) in told
    assert told[-1] == ("sort", 2, 2)


EDGE_LISTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=40)


@settings(max_examples=25, deadline=None)
@given(edges=EDGE_LISTS, undirected=st.booleans(), step=st.integers(1, 7), weighted=st.booleans())
def test_any_edges_through_text_equal_the_graph_made_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    edges: list[tuple[int, int]],
    undirected: bool,
    step: int,
    weighted: bool,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    src, dst = [s for s, _ in edges], [d for _, d in edges]
    weight = {"weight": [float(i) for i in range(len(edges))]} if weighted else {}
    path = write_table(folder / "e.csv", {"src": src, "dst": dst, **weight})
    np.save(folder / "x.npy", np.zeros((10, 1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "_RANGE_EDGES", step)  # so that many small ranges are sorted apart
        graph = import_graph(
            folder / "store",
            edges=path,
            features=folder / "x.npy",
            undirected=undirected,
            limits=Limits(line_bytes=64),
        ).graph()
    expected = Graph.from_edges(
        [src, dst], x=np.zeros((10, 1)), undirected=undirected, edge_weight=weight.get("weight")
    )
    assert graph.indptr.equal(expected.indptr)
    assert graph.indices.equal(expected.indices)
    if weighted:
        assert graph.edge_weight is not None
        assert expected.edge_weight is not None
        assert graph.edge_weight.equal(expected.edge_weight)


NAMES = st.text(st.characters(blacklist_characters='",\r\n', blacklist_categories=["Cs", "Cc"]), min_size=1)


@settings(max_examples=25, deadline=None)
@given(edges=st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=20))
def test_any_names_through_text_and_parquet_come_back(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    edges = [(f"n{s}", f"n{d}") for s, d in edges]
    appeared = list(dict.fromkeys(name for edge in edges for name in edge))
    columns: dict[str, list[object]] = {"src": [s for s, _ in edges], "dst": [d for _, d in edges]}
    for file in ("e.csv", "e.parquet"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "_BATCH_ROWS", 3)
            graph = import_graph(folder / f"{file}.store", edges=write_table(folder / file, columns)).graph()
        assert graph.node_names.to_pylist() == appeared
        assert edges_of(graph) == sorted(edges)
