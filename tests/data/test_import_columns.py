"""Import of tables of nodes and edges with columns of any kind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from siafu.data.columns import ColumnSchema, TableSchema, read_schema
from siafu.data.columns.schema import EdgeSchema, NodeSchema
from siafu.data.importing import external_sort, import_graph, tables
from siafu.graph import Graph
from siafu.store import Store, open_store, write_store
from siafu.store.manifest import MANIFEST

NODES = """\
name,country,age,opened,vip,notes,scores,label,split
ann,GB,31,2020-01-02,yes,paid late in the spring,"[1, 2]",0,train
bob,DE,,2021-06-30,no,never paid a bill on time,"[3, 4]",1,train
cid,GB,58,,no,a good and old customer,,0,valid
dan,,44,2019-12-31,,asks many questions by phone,"[5, 6]",,test
"""
EDGES = """\
payer,payee,amount,time,channel
ann,bob,10.5,2024-01-01 10:00,web
bob,ann,3,2024-01-02 11:30,app
cid,ann,,2024-01-03 12:00,web
ann,bob,7,2024-01-04 09:00,
dan,cid,100,2024-01-05 23:59,app
"""
NOTES = {"notes": ColumnSchema(kind="text")}  # four rows look like a category
ENDS = TableSchema(edges=EdgeSchema(source="payer", target="payee"), nodes=NodeSchema(columns=NOTES))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def small(folder: Path, **more: Any) -> Store:
    """The store of the small tables."""
    how = {"schema": ENDS} | more
    nodes, edges = write(folder, "nodes.csv", NODES), write(folder, "edges.csv", EDGES)
    return import_graph(folder / "store", nodes=nodes, edges=edges, **how)


def values(graph: Graph, name: str) -> Any:
    """The values of a column; those of a category as words."""
    (column,) = [column for column in graph.columns or () if column.type.name == name]
    if column.vocabulary is None:
        return column.values
    return [None if code < 0 else column.vocabulary[int(code)].as_py() for code in column.values]


def test_columns_of_nodes_are_stored_typed_and_labels_and_split_are_none_of_them(tmp_path: Path) -> None:
    graph = small(tmp_path).graph()
    assert [(column.type.name, column.type.kind) for column in graph.columns or ()] == [
        ("country", "category"),
        ("age", "number"),
        ("opened", "date"),
        ("vip", "boolean"),
        ("notes", "text"),
        ("scores", "list"),
    ]
    assert graph.x is None
    assert graph.node_names.to_pylist() == ["ann", "bob", "cid", "dan"]
    assert values(graph, "country") == ["GB", "DE", "GB", None]
    np.testing.assert_array_equal(values(graph, "age"), [31, np.nan, 58, 44])
    np.testing.assert_array_equal(values(graph, "vip"), [1, 0, 0, -1])
    np.testing.assert_array_equal(values(graph, "scores"), [[1, 2], [3, 4], [np.nan] * 2, [5, 6]])
    assert values(graph, "notes")[2].as_py() == "a good and old customer"
    assert graph.y is not None
    assert graph.y.tolist() == [0, 1, 0, -1]
    assert graph.train_mask is not None
    assert graph.train_mask.tolist() == [True, True, False, False]


def test_columns_of_edges_are_stored_in_the_order_of_the_edges(tmp_path: Path) -> None:
    store = small(tmp_path)
    graph = store.graph()
    src = [graph.node_names[int(row)].as_py() for row in graph.indices]
    assert src == ["bob", "cid", "ann", "ann", "dan"]  # into ann, bob and cid
    amount, time, channel = store.edge_columns()
    np.testing.assert_array_equal(amount.values, [3, np.nan, 10.5, 7, 100])
    np.testing.assert_array_equal(np.diff(time.values[[0, 2]]), [-(24 + 1.5) * 3600])
    assert channel.vocabulary.to_pylist() == ["web", "app"]
    np.testing.assert_array_equal(channel.values, [1, 0, 0, -1, 1])
    assert graph.edge_weight is None


def test_columns_of_edges_are_sorted_on_disk_alike_in_many_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = np.random.Generator(np.random.PCG64(3))
    src, dst = draws.integers(0, 50, (2, 400))
    table = pa.table({"src": src, "dst": dst, "code": src * 1000.0 + dst, "odd": src % 2 == 1})
    pq.write_table(table, tmp_path / "e.parquet")
    monkeypatch.setattr(external_sort, "_RANGE_EDGES", 64)
    store = import_graph(tmp_path / "store", edges=tmp_path / "e.parquet", undirected=True)
    graph, (code, odd) = store.graph(), store.edge_columns()
    row, column = graph.block.row_edge.numpy(), graph.indices.numpy()
    expected = {(int(s), int(d)): s * 1000.0 + d for s, d in zip(src, dst, strict=True)}
    for s, d, found, is_odd in zip(column, row, code.values, odd.values, strict=True):
        if (s, d) in expected:
            assert found == expected[s, d]
            assert is_odd == s % 2
        else:
            assert found == expected[d, s]  # the reverse of an edge has its values
    assert store.manifest.arrays["edge_column_1"].dtype == "int8"


def test_several_files_of_nodes_and_edges_are_read_as_one_whatever_the_order_of_columns(
    tmp_path: Path,
) -> None:
    first = write(tmp_path, "a.csv", "id,age,country\nx,1,GB\ny,2,DE\n")
    second = write(tmp_path, "b.csv", "country,id,age\nFR,z,3\nGB,w,4.5\n")
    edges = [
        write(tmp_path, "e.csv", "src,dst,w\nx,y,1\ny,z,2\n"),
        write(tmp_path, "f.csv", "w,dst,src\n3,x,w\n"),
    ]
    store = import_graph(tmp_path / "store", nodes=[first, second], edges=edges)
    graph = store.graph()
    assert graph.node_names.to_pylist() == ["x", "y", "z", "w"]
    assert values(graph, "country") == ["GB", "DE", "FR", "GB"]
    assert values(graph, "age").tolist() == [1, 2, 3, 4.5]
    assert graph.num_edges == 3
    assert store.edge_columns()[0].values.tolist() == [3, 1, 2]
    assert store.manifest.provenance.sources["nodes"] == f"{first}, {second}"


def test_an_id_of_text_in_a_later_file_makes_all_ids_text(tmp_path: Path) -> None:
    nodes = [write(tmp_path, "a.csv", "id,age\n1,5\n2,6\n"), write(tmp_path, "b.csv", "id,age\nA7,7\n")]
    edges = [write(tmp_path, "e.csv", "src,dst\n1,2\n"), write(tmp_path, "f.csv", "src,dst\nA7,1\n")]
    graph = import_graph(tmp_path / "store", nodes=nodes, edges=edges).graph()
    assert graph.node_names.to_pylist() == ["1", "2", "A7"]
    assert graph.num_edges == 2


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    edges = [write(tmp_path, "e.csv", "src,dst,w\n1,2,1\n"), write(tmp_path, "f.csv", "src,dst\n1,2\n")]
    with pytest.raises(
        ValueError, match=r"f.csv: no column 'w', which .*e.csv has; expected the same columns"
    ):
        import_graph(tmp_path / "store", edges=edges)
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 0]]))
    with pytest.raises(ValueError, match=r"e.npy is npy; expected tables .* where several are given"):
        import_graph(tmp_path / "store", edges=[edges[0], tmp_path / "e.npy"])


@pytest.mark.parametrize(
    ("combine", "undirected", "weights"),
    [
        (None, False, {(0, 1): [2, 4], (1, 0): [1], (2, 2): [5, 1]}),
        ("first", False, {(0, 1): [2], (1, 0): [1], (2, 2): [5]}),
        ("sum", False, {(0, 1): [6], (1, 0): [1], (2, 2): [6]}),
        ("mean", False, {(0, 1): [3], (1, 0): [1], (2, 2): [3]}),
        ("sum", True, {(0, 1): [7], (1, 0): [7], (2, 2): [6]}),
    ],
)
def test_repeated_edges_are_combined(
    tmp_path: Path, combine: Any, undirected: bool, weights: dict[tuple[int, int], list[float]]
) -> None:
    path = write(tmp_path, "e.csv", "src,dst,amount\n0,1,2\n0,1,4\n1,0,1\n2,2,5\n2,2,1\n")
    said, notes = TableSchema(edges=EdgeSchema(weight="amount")), list[str]()
    store = import_graph(
        tmp_path / "store", edges=path, combine=combine, undirected=undirected, schema=said, say=notes.append
    )
    graph = store.graph()
    assert graph.edge_weight is not None
    found: dict[tuple[int, int], list[float]] = {}
    for src, dst, weight in zip(graph.indices, graph.block.row_edge, graph.edge_weight, strict=True):
        found.setdefault((int(src), int(dst)), []).append(float(weight))
    assert found == weights
    assert bool(notes) == (combine is not None)
    assert not store.edge_columns()


def test_the_sum_of_edges_without_weights_counts_them(tmp_path: Path) -> None:
    path = write(tmp_path, "e.csv", "src,dst\n0,1\n0,1\n1,0\n")
    graph = import_graph(tmp_path / "store", edges=path, combine="sum").graph()
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [1, 2]


def test_labelled_nodes_without_a_split_are_split_by_class(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 10},{int(i % 20 == 0) if i < 300 else ''}\n" for i in range(400))
    nodes, notes = write(tmp_path, "n.csv", f"id,age,label\n{rows}"), list[str]()
    edges = write(tmp_path, "e.csv", "src,dst\n0,1\n2,3\n")
    graph = import_graph(tmp_path / "a", nodes=nodes, edges=edges, say=notes.append).graph()
    assert graph.y is not None
    masks = [graph.train_mask, graph.val_mask, graph.test_mask]
    assert [int(mask.sum()) for mask in masks if mask is not None] == [180, 60, 60]
    assert [int(graph.y[mask].sum()) for mask in masks if mask is not None] == [9, 3, 3]
    assert notes == [
        "split: 300 labelled nodes were split 60/20/20 by class at random (seed 0): 180 train, 60 validate, 60 test; "
        "--split gives another"
    ]
    again = import_graph(tmp_path / "b", nodes=nodes, edges=edges).graph()
    other = import_graph(tmp_path / "c", nodes=nodes, edges=edges, split_seed=1, split="80/10/10").graph()
    assert graph.train_mask is not None
    assert other.train_mask is not None
    assert torch.equal(graph.train_mask, again.train_mask)  # type: ignore[arg-type]
    assert int(other.train_mask.sum()) == 240


def test_the_smallest_classes_are_in_each_split(tmp_path: Path) -> None:
    labels = [0] * 50 + [1] * 3 + [2] * 2 + [3]
    rows = "".join(f"{i},{i},{label}\n" for i, label in enumerate(labels))
    nodes = write(tmp_path, "n.csv", f"id,age,label\n{rows}")
    graph = import_graph(
        tmp_path / "s", nodes=nodes, edges=write(tmp_path, "e.csv", "src,dst\n0,1\n")
    ).graph()
    assert graph.y is not None
    of_split = [
        graph.y[mask].unique().tolist()
        for mask in (graph.train_mask, graph.val_mask, graph.test_mask)
        if mask is not None
    ]
    assert of_split[0] == [0, 1, 2, 3]
    assert {0, 1} <= set(of_split[1])
    assert {0, 1} <= set(of_split[2])


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("80/10/20", "split: 80/10/20 sums to 110; expected shares of 100"),
        ("0/50/50", "split: 0/50/50 sums to 100; expected shares of 100|train"),
    ],
)
def test_shares_that_are_none_are_refused(tmp_path: Path, split: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(tmp_path, split=split)


def test_shares_without_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"shares 80/10/10 are of labelled nodes, and there are no labels"):
        import_graph(tmp_path / "s", edges=write(tmp_path, "e.csv", "src,dst\n0,1\n"), split="80/10/10")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"edges": "nodes"},
            r"nodes.csv was given as --edges, and 'id' and 'country' .* did you mean --nodes\?",
        ),
        (
            {"edges": "named"},
            r"'account' stands once and none occurs in 'country', .* did you mean --nodes\?",
        ),
        (
            {"nodes": "edges"},
            r"edges.csv was given as --nodes, but has columns src and dst, .* did you mean --edges\?",
        ),
        ({"labels": "edges"}, r"edges.csv was given as --labels, but has .* did you mean --edges\?"),
        ({"features": "edges"}, r"edges.csv was given as --features, but has .* did you mean --edges\?"),
        ({"split": "labels"}, r"labels.csv: split holds 0 and 1 with 2 % ones, .* did you mean --labels\?"),
        (
            {"edges": "rows.npy", "split": "labels.npy"},
            r"labels.npy: split holds 0 and 1 with 2 % ones, .* did you mean --labels\?",
        ),
    ],
)
def test_files_given_as_something_else_are_refused(
    tmp_path: Path, given: dict[str, str], message: str
) -> None:
    countries = [("GB", "DE", "FR")[i % 3] for i in range(100)]
    write(
        tmp_path,
        "nodes.csv",
        "id,country,age\n" + "".join(f"a{i},{c},{i}\n" for i, c in enumerate(countries)),
    )
    write(
        tmp_path, "named.csv", "account,country\n" + "".join(f"a{i},{c}\n" for i, c in enumerate(countries))
    )
    write(tmp_path, "edges.csv", "src,dst\n" + "".join(f"a{i},a{(i + 1) % 100}\n" for i in range(100)))
    write(tmp_path, "labels.csv", "id,fraud\n" + "".join(f"a{i},{int(i < 2)}\n" for i in range(100)))
    np.save(tmp_path / "labels.npy", (np.arange(100) < 2).astype(np.int64))
    np.save(tmp_path / "rows.npy", np.stack([np.arange(100), np.arange(100)[::-1]]))
    files = {role: tmp_path / (name if "." in name else f"{name}.csv") for role, name in given.items()}
    with pytest.raises(ValueError, match=message):
        import_graph(tmp_path / "s", **({"edges": tmp_path / "edges.csv"} | files))  # type: ignore[arg-type]


def test_a_split_of_train_and_validation_alone_is_no_table_of_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.array([0, 0, 1, 0, 1]))
    np.save(tmp_path / "y.npy", np.array([0, 1, 1, 0, 1]))
    edges = write(tmp_path, "e.csv", "src,dst\n0,1\n2,4\n")
    graph = import_graph(
        tmp_path / "s", edges=edges, labels=tmp_path / "y.npy", split=tmp_path / "s.npy"
    ).graph()
    assert graph.test_mask is not None
    assert not graph.test_mask.any()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (NodeSchema(label="is_frod"), r"nodes.csv: no column 'is_frod': found name, country"),
        (NodeSchema(label="lable"), r"nodes.csv: no column 'lable': did you mean 'label'\?"),
        (NodeSchema(id="nam"), r"nodes.csv: no column 'nam': did you mean 'name'\?"),
        (
            NodeSchema(columns={"agee": ColumnSchema(kind="number")}),
            r"no column 'agee': did you mean 'age'\?",
        ),
        (
            NodeSchema(columns={"country": ColumnSchema(kind="number")}),
            r"nodes.csv: line 2, column 'country': 'GB'; expected a number: .*--schema",
        ),
    ],
)
def test_names_and_kinds_that_do_not_fit_the_nodes_are_refused(
    tmp_path: Path, schema: NodeSchema, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small(tmp_path, schema=ENDS.model_copy(update={"nodes": schema}))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (EdgeSchema(source="payer"), r"the source is 'payer' and the target None; expected two columns"),
        (
            EdgeSchema(source="payer", target="payeee"),
            r"edges.csv: no column 'payeee': did you mean 'payee'\?",
        ),
        (
            EdgeSchema(source="payer", target="payee", weight="amont"),
            r"no column 'amont': did you mean 'amount'\?",
        ),
    ],
)
def test_names_that_do_not_fit_the_edges_are_refused(
    tmp_path: Path, schema: EdgeSchema, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small(tmp_path, schema=TableSchema(edges=schema))


def test_a_bad_date_names_file_line_and_column(tmp_path: Path) -> None:
    rows = [f"a{i},{i % 7},2024-01-{i % 28 + 1:02}\n" for i in range(200)]
    rows[150] = "a150,3,soon\n"
    nodes = write(tmp_path, "n.csv", "id,age,opened\n" + "".join(rows))
    edges = write(tmp_path, "e.csv", "src,dst\na0,a1\n")
    with pytest.raises(ValueError, match=r"n.csv: line 152, column 'opened': 'soon' is no date"):
        import_graph(tmp_path / "s", nodes=nodes, edges=edges)


def test_columns_of_edges_that_are_not_understood_are_ignored_and_named(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i + 1},t-{i},same,{i % 12 + 1}/{i % 12 + 1}/2024\n" for i in range(40))
    store = import_graph(tmp_path / "s", edges=write(tmp_path, "e.csv", f"src,dst,ref,kind,when\n{rows}"))
    found = store.manifest.provenance.columns["edge columns"]
    assert found["ref"] == "ignored: has 40 different values in 40 rows"
    assert found["kind"] == "ignored: has the same value in every row"
    assert "day-first and month-first" in found["when"]
    assert not store.edge_columns()


def test_a_schema_file_is_written_and_read_again(tmp_path: Path) -> None:
    out = tmp_path / "schema.toml"
    first = small(tmp_path, schema_out=out)
    schema = read_schema(out)
    assert schema.nodes.columns["country"] == ColumnSchema(kind="category")
    assert schema.edges.source == "payer"
    text = out.read_text().replace('"age" = { kind = "number" }', '"age" = { kind = "category", width = 8 }')
    out.write_text(text.replace('"vip" = { kind = "boolean" }', '"vip" = { kind = "ignore" }'))
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    again = import_graph(tmp_path / "again", nodes=nodes, edges=edges, schema=read_schema(out))
    assert first.manifest.edge_columns == again.manifest.edge_columns
    kinds = {column.name: (column.kind, column.width) for column in again.manifest.columns}
    assert kinds["age"] == ("category", 8)
    assert "vip" not in kinds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nodes", r"s.toml is not TOML"),
        ("[nodes]\nids = 'x'", r"s.toml: nodes.ids: Extra inputs"),
        ("[nodes.columns]\nage = { kind = 'numbr' }", r"s.toml: nodes.columns.age.kind"),
    ],
)
def test_a_bad_schema_file_is_refused_with_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_schema(write(tmp_path, "s.toml", text))


def test_names_in_a_schema_file_may_hold_anything(tmp_path: Path) -> None:
    nodes = write(tmp_path, "n.csv", 'id,"a ""b"" = é\\",c.d\n1,2,3\n2,3,4\n')
    out = tmp_path / "schema.toml"
    import_graph(
        tmp_path / "s", nodes=nodes, edges=write(tmp_path, "e.csv", "src,dst\n1,2\n"), schema_out=out
    )
    assert list(read_schema(out).nodes.columns) == ['a "b" = é\\', "c.d"]


def test_nodes_and_features_together_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 2), np.float32))
    with pytest.raises(ValueError, match=r"nodes and features were given"):
        small(tmp_path, features=tmp_path / "x.npy")


@pytest.mark.parametrize(("value", "found"), [("DE", "'DE' is not a number"), ("", "is nan")])
def test_words_and_blanks_as_features_point_to_nodes(tmp_path: Path, value: str, found: str) -> None:
    features = write(tmp_path, "x.csv", f"id,age,country\na,1,2\nb,{value},3\n")
    edges = write(tmp_path, "e.csv", "src,dst\na,b\n")
    with pytest.raises(
        ValueError, match=rf"x.csv: line 3, column 'age'.*{found}.*; --nodes, instead of --features"
    ):
        import_graph(tmp_path / "s", features=features, edges=edges)


def test_two_rows_of_a_node_are_refused_with_a_hint(tmp_path: Path) -> None:
    nodes = write(tmp_path, "n.csv", "country,id_of_account\nGB,a\nDE,b\nGB,c\n")
    edges = write(tmp_path, "e.csv", "src,dst\na,b\n")
    with pytest.raises(ValueError, match=r"n.csv: line 4, column 'country': 'GB' again; .* with --id"):
        import_graph(tmp_path / "s", nodes=nodes, edges=edges)


def test_a_node_that_is_in_no_table_is_refused(tmp_path: Path) -> None:
    nodes = write(tmp_path, "n.csv", "id,age\na,1\nb,2\n")
    edges = write(tmp_path, "e.csv", "src,dst\na,b\na,z\n")
    with pytest.raises(ValueError, match=r"e.csv: line 3, column 'dst': there is no node 'z' in .*n.csv"):
        import_graph(tmp_path / "s", nodes=nodes, edges=edges)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_are_read_in_small_batches_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    whole = small(tmp_path).graph()
    nodes = tmp_path / f"n.{kind}"
    if kind == "parquet":
        columns = {"name": ["ann", "bob", "cid", "dan"], "country": ["GB", "DE", "GB", None]}
        table = pa.table(columns | {"age": [31, None, 58, 44], "vip": [True, False, False, None]})
        pq.write_table(table, nodes, row_group_size=1)
    else:
        write(tmp_path, "n.csv", NODES)
    monkeypatch.setattr(tables, "_BATCH_ROWS", 1)
    only_ends = TableSchema(edges=ENDS.edges)
    graph = import_graph(
        tmp_path / "s", nodes=nodes, edges=tmp_path / "edges.csv", schema=ENDS if kind == "csv" else only_ends
    ).graph()
    assert values(graph, "country") == values(whole, "country")
    for name in ("age", "vip"):
        np.testing.assert_array_equal(values(graph, name), values(whole, name))


def test_a_graph_with_columns_is_written_and_reordered_with_them(tmp_path: Path) -> None:
    graph = small(tmp_path).graph()
    again = write_store(graph, tmp_path / "again").graph()
    assert [column.type for column in again.columns or ()] == [column.type for column in graph.columns or ()]
    turned = again.reordered(torch.tensor([3, 2, 1, 0]))
    assert values(turned, "country") == values(graph, "country")[::-1]
    assert values(turned, "notes").to_pylist() == values(graph, "notes").to_pylist()[::-1]


def test_a_damaged_column_is_refused(tmp_path: Path) -> None:
    store = small(tmp_path)
    path = store.path / "column_0.bin"
    path.write_bytes(b"\x07" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"column_0.bin: checksum"):
        store.graph()
    with pytest.raises(ValueError, match=r"column_0.bin: checksum"):
        store.verify()


def test_a_manifest_without_an_array_of_a_column_is_refused(tmp_path: Path) -> None:
    from siafu.store.manifest import _seal

    store = small(tmp_path)
    manifest = json.loads((store.path / MANIFEST).read_text())
    manifest.pop("checksum")
    del manifest["arrays"]["column_0_offsets"]
    (store.path / MANIFEST).write_text(json.dumps(manifest | {"checksum": _seal(manifest)}))
    with pytest.raises(ValueError, match="arrays lacks column_0_offsets"):
        open_store(store.path)


def test_frames_in_memory_make_the_graph_that_files_make(tmp_path: Path) -> None:
    nodes = {
        "id": ["a", "b", "c"],
        "country": ["GB", "DE", "GB"],
        "age": [1.5, None, 3.0],
        "fraud": [0, 1, 0],
    }
    edges = {"payer": ["a", "b", "c"], "payee": ["b", "c", "a"], "amount": [1.0, 2.0, 3.0]}
    graph = Graph.from_tables(
        nodes=pa.table(nodes),
        edges=[pa.table(edges), pa.table(edges)],
        label="fraud",
        source="payer",
        target="payee",
        weight="amount",
        combine="sum",
    )
    assert graph.node_names.to_pylist() == ["a", "b", "c"]
    assert values(graph, "country") == ["GB", "DE", "GB"]
    assert graph.y is not None
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [6, 2, 4]
    assert graph.encoded().columns is None


class Frame:
    """A table of a library that speaks Arrow's C interface, as pandas and Polars do."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_any_library_that_speaks_arrow_is_read(tmp_path: Path) -> None:
    index = {"__index_level_0__": [5, 6]}  # as pandas hands over an index without a name
    nodes, edges = {"id": [10, 20], "age": [1, 3], **index}, {"src": [10], "dst": [20]}
    graph = Graph.from_tables(nodes=Frame(pa.table(nodes)), edges=Frame(pa.table(edges)))
    assert graph.node_names.to_pylist() == [10, 20]
    assert [column.type.name for column in graph.columns or ()] == ["age"]


def test_errors_about_frames_name_the_argument_row_and_column() -> None:
    edges = pa.table({"src": ["a"], "dst": ["b"]})
    with pytest.raises(ValueError, match=r"nodes is a dict; expected a table of pandas"):
        Graph.from_tables(nodes={"id": ["a"]}, edges=edges)
    with pytest.raises(ValueError, match=r"edges: row 0, column 'dst': there is no node 'b' in nodes"):
        Graph.from_tables(nodes=pa.table({"id": ["a"], "age": [1]}), edges=edges)


def test_a_graph_has_features_or_columns_of_its_own_length(tmp_path: Path) -> None:
    from dataclasses import replace

    graph = small(tmp_path).graph()
    with pytest.raises(ValueError, match="has x and columns"):
        replace(graph, x=torch.ones(4, 2))
    with pytest.raises(ValueError, match="column 'country' has 2 values; expected 4"):
        replace(graph, columns=tuple(column.take(slice(0, 2)) for column in graph.columns or ()))
