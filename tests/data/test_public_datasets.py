"""Data sets by name: bundled, in the data home, downloaded from a small server of the same layouts."""

import gzip
import json
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_download import tar, zipped

from siafu.data import available, data_home, load
from siafu.data.linqs import read_content
from siafu.data.npz import read_arrays, write_npz
from siafu.data.public_datasets import PUBLIC_DATASETS, PublicDataset, download_dataset
from siafu.data.random_split import per_class_split, random_splits
from siafu.dynamic import DynamicGraph

CONTENT = b"31\t0\t1\t1\tTheory\n9\t1\t0\t0\tRules\nfoo\t0\t0\t1\tTheory\n7\t0\t0\t0\tRules\n"
CITES = b"31\t9\n9\t31\n31\tfoo\nunknown\t7\n7\t7\n"
CITESEER = tar(
    ("citeseer/citeseer.content", CONTENT), ("citeseer/citeseer.cites", CITES), ("citeseer/README", b"?")
)
PAPERS = (
    b"NODE\tpaper\ncat=1,2,3:label\tnumeric:w-rat:0.0\tnumeric:w-mouse:0.0\tstring:summary\n"
    b"12\tlabel=1\tw-rat=0.5\tsummary=w-rat=0.5\n"
    b"15\tlabel=3\tw-mouse=0.25\tw-rat=1\tsummary=w-mouse=0.25,w-rat=1\n"
    b"11\tlabel=1\tsummary=\n"
)
PUBMED = tar(
    ("Pubmed-Diabetes/data/Pubmed-Diabetes.NODE.paper.tab", PAPERS),
    (
        "Pubmed-Diabetes/data/Pubmed-Diabetes.DIRECTED.cites.tab",
        b"DIRECTED\tcites\nNO_FEATURES\n1\tpaper:12\t|\tpaper:15\n2\tpaper:11\t|\tpaper:12\n",
    ),
)
MUSAE = zipped(
    ("git_web_ml/musae_git_edges.csv", b"id_1,id_2\n0,2\n2,1\n"),
    ("git_web_ml/musae_git_features.json", json.dumps({"0": [3, 1], "1": [], "2": [1]}).encode()),
    ("git_web_ml/musae_git_target.csv", b'id,name,ml_target\n0,Eiryyy,0\n1,"sh,awf",1\n2,Jo,0\n'),
)
RATINGS = gzip.compress(
    b"6,2,4,1289241911.72836\n6,5,-2,1289241941.53378\n1,15,1,1289243140.39049\n", mtime=0
)


def gz(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


ARXIV = zipped(
    ("arxiv/raw/edge.csv.gz", gz("0,1\n1,2\n3,0\n")),
    ("arxiv/raw/num-node-list.csv.gz", gz("4\n")),
    ("arxiv/raw/num-edge-list.csv.gz", gz("3\n")),
    ("arxiv/raw/node-feat.csv.gz", gz("0.5,1\n0,2\n1,1\n3,4\n")),
    ("arxiv/raw/node-label.csv.gz", gz("0\n1\n1\n0\n")),
    ("arxiv/split/time/train.csv.gz", gz("0\n1\n")),
    ("arxiv/split/time/valid.csv.gz", gz("2\n")),
    ("arxiv/split/time/test.csv.gz", gz("3\n")),
)


def edges_of(graph) -> list[tuple[int, int]]:
    return sorted(zip(graph.indices.tolist(), graph.block.row_edge.tolist(), strict=True))


def unchecked(name: str) -> PublicDataset:
    """The source without its known checksum, for a small archive of the same layout."""
    return replace(PUBLIC_DATASETS[name], sha256=None)


def entries(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def test_a_text_archive_of_linqs_becomes_a_graph(server, tmp_path: Path) -> None:
    server.files["citeseer.tgz"] = CITESEER
    told: list[str] = []
    graph = load(
        "citeseer",
        home=tmp_path / "home",
        mirror=server.url,
        progress=lambda label, done, total: told.append(label),
    )
    assert edges_of(graph) == [(0, 1), (0, 2), (1, 0), (2, 0)]  # no loop, no unknown paper, each once
    assert graph.x.tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert graph.node_names.to_pylist() == ["31", "9", "foo", "7"]
    assert graph.class_names == ("Rules", "Theory")
    assert graph.y.tolist() == [1, 0, 1, 0]
    assert sorted(graph.y[graph.train_mask].tolist()) == [0, 1]
    assert any("download citeseer.tgz" in label for label in told)
    assert any("no public split" in label for label in told)
    assert "no public split" in str(read_arrays(tmp_path / "home/citeseer.npz", ("note",))["note"])


def test_a_downloaded_data_set_is_not_downloaded_again(server, tmp_path: Path) -> None:
    server.files["citeseer.tgz"] = CITESEER
    for _ in range(2):
        load("citeseer", home=tmp_path, mirror=server.url)
    assert server.asked == ["citeseer.tgz"]
    assert entries(tmp_path) == ["citeseer.npz", "citeseer.sha256"]


def test_the_pubmed_archive_becomes_a_graph(server, tmp_path: Path) -> None:
    server.files["Pubmed-Diabetes.tgz"] = PUBMED
    graph = load("pubmed", home=tmp_path, mirror=server.url)
    assert graph.x.tolist() == [[0.5, 0.0], [1.0, 0.25], [0.0, 0.0]]
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.class_names == ("1", "3")
    assert edges_of(graph) == [(0, 1), (0, 2), (1, 0), (2, 0)]


def test_the_musae_archive_becomes_a_graph_with_ten_splits(server, tmp_path: Path) -> None:
    server.files["git_web_ml.zip"] = MUSAE
    graph = load("musae_github", home=tmp_path, mirror=server.url, fold=9)
    assert edges_of(graph) == [(0, 2), (1, 2), (2, 0), (2, 1)]
    assert graph.x.tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.node_names.to_pylist() == ["Eiryyy", "sh,awf", "Jo"]


def test_ratings_over_time_are_stored_and_become_a_graph_of_events(server, tmp_path: Path) -> None:
    server.files["soc-sign-bitcoinotc.csv.gz"] = RATINGS
    graph = load("bitcoinotc", home=tmp_path, mirror=server.url)
    assert isinstance(graph, DynamicGraph)
    assert graph.undirected
    arrays = read_arrays(
        tmp_path / "temporal/bitcoinotc.npz", ("src", "dst", "t", "w", "num_nodes", "node_names")
    )
    assert arrays["node_names"].tolist() == [1, 2, 5, 6, 15]
    assert (arrays["src"].tolist(), arrays["dst"].tolist()) == ([3, 3, 0], [1, 2, 4])
    assert arrays["w"].tolist() == [4.0, -2.0, 1.0]
    assert arrays["t"][0] == 1289241911.72836
    assert arrays["num_nodes"] == 5


def test_an_ogb_archive_becomes_a_store(server, tmp_path: Path) -> None:
    server.files["arxiv.zip"] = ARXIV
    where = download_dataset(unchecked("ogbn-arxiv"), tmp_path, mirror=server.url)
    assert where == tmp_path / "ogbn-arxiv"
    graph = load("ogbn-arxiv", home=tmp_path)
    assert edges_of(graph) == [(0, 1), (1, 2), (3, 0)]
    assert graph.y.tolist() == [0, 1, 1, 0]
    assert graph.test_mask.tolist() == [False, False, False, True]
    (described,) = [found for found in available(tmp_path) if found.name == "ogbn-arxiv"]
    assert (described.nodes, described.edges, described.features, described.classes) == (4, 3, 2, 2)


def test_an_archive_of_another_checksum_is_refused_and_nothing_stays(server, tmp_path: Path) -> None:
    server.files["cora.tgz"] = CITESEER
    with pytest.raises(ValueError, match=r"cora.tgz: its sha256 is [0-9a-f]{64}; expected 0d4ed463"):
        load("cora", home=tmp_path, mirror=server.url)
    assert entries(tmp_path) == []


def test_an_archive_that_changed_since_the_last_download_is_refused(server, tmp_path: Path) -> None:
    server.files["citeseer.tgz"] = CITESEER
    load("citeseer", home=tmp_path, mirror=server.url)
    (tmp_path / "citeseer.npz").unlink()
    server.files["citeseer.tgz"] = tar(("c.content", CONTENT), ("c.cites", b""))
    with pytest.raises(ValueError, match=r"earlier download .*citeseer.sha256.*delete that file"):
        load("citeseer", home=tmp_path, mirror=server.url)
    assert entries(tmp_path) == ["citeseer.sha256"]
    (tmp_path / "citeseer.sha256").unlink()
    assert load("citeseer", home=tmp_path, mirror=server.url).num_edges == 0


def test_an_archive_put_into_the_data_home_is_used_without_a_network(tmp_path: Path) -> None:
    (tmp_path / "citeseer.tgz").write_bytes(CITESEER)
    assert load("citeseer", home=tmp_path, mirror="http://127.0.0.1:1").num_nodes == 4
    assert (tmp_path / "citeseer.tgz").exists()


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("pubmed", "pubmed.npz (layout: python -m pydoc siafu.data.npz)"),
        ("ogbn-arxiv", "ogbn-arxiv (layout: siafu"),
    ],
)
def test_offline_the_error_says_which_file_to_put_where(tmp_path: Path, name: str, target: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError) as caught:
            load(name, home=tmp_path, mirror=f"http://127.0.0.1:{closed.getsockname()[1]}")
    source = PUBLIC_DATASETS[name]
    assert f"{name} is not in {tmp_path} and cannot be downloaded" in str(caught.value)
    assert f"put {source.archive} (from {source.url}) or {target}" in str(caught.value)
    assert str(caught.value).endswith(f"into {tmp_path}")
    assert entries(tmp_path) == []


def test_a_missing_archive_is_said_with_what_the_server_answered(server, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"the server answered 404.*put citeseer.tgz"):
        load("citeseer", home=tmp_path, mirror=server.url)


@pytest.mark.parametrize(
    ("content", "cites", "message"),
    [
        (b"1\t0\tA\n2\t0\t1\tB\n", b"", "content: line 2 is not an id, 1 numbers and a class"),
        (b"1\t0\tA\n2\tzero\tB\n", b"", "content: line 2 is not an id, numbers and a class"),
        (b"1\t0\tA\n1\t0\tB\n", b"", "2 papers of 1 different ids"),
        (b"1\t0\tA\n", b"1 2\n", "cites: line 1 is not two ids"),
        (b"\xff\xfe\t0\tA\n", b"", "not UTF-8"),
        (b"", b"", "0 papers"),
    ],
)
def test_text_that_is_not_as_expected_is_said_with_file_and_line(
    tmp_path: Path, content: bytes, cites: bytes, message: str
) -> None:
    (tmp_path / "a.content").write_bytes(content)
    (tmp_path / "a.cites").write_bytes(cites)
    with pytest.raises(ValueError, match=message):
        read_content(tmp_path)


@pytest.mark.parametrize(
    ("name", "archive", "message"),
    [
        ("citeseer", tar(("a.content", CONTENT)), "0 files that end in .cites"),
        ("pubmed", tar(("a.NODE.paper.tab", PAPERS.replace(b"w-mouse=", b"w-cat="))), "0 files that end in"),
        ("musae_github", MUSAE[:-30], "cannot be unpacked"),
        ("musae_github", zipped(("a_target.csv", b"id,name\n0,x\n")), "columns id, name, ml_target"),
        ("musae_github", zipped(("a_target.csv", b"id,name,ml_target\n0,x,y\n")), "line 2 is not a line of"),
        ("bitcoinotc", RATINGS[:-9], "not a whole gzip file"),
        ("bitcoinotc", gzip.compress(b"1,2,x,4\n", mtime=0), "expected four numbers"),
        ("bitcoinotc", gzip.compress(b"1,2,3\n", mtime=0), "3 columns"),
        ("ogbn-arxiv", zipped(("arxiv/readme", b"hello")), "arxiv|edge"),
    ],
)
def test_an_archive_of_another_layout_is_refused_and_nothing_stays(
    server, tmp_path: Path, name: str, archive: bytes, message: str
) -> None:
    source = unchecked(name)
    server.files[source.archive] = archive
    with pytest.raises((ValueError, OSError), match=message):
        download_dataset(source, tmp_path, mirror=server.url)
    assert entries(tmp_path) == []


def test_a_home_without_permission_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="file"):
        load("citeseer", home=tmp_path / "file" / "home", mirror="http://127.0.0.1:1")


def test_an_unknown_name_is_answered_with_near_ones_and_how_to_list(tmp_path: Path) -> None:
    write_npz(tmp_path / "my_graph.npz", {"edge_index": np.array([[0], [1]])})
    with pytest.raises(ValueError, match=r'did you mean cora.*"siafu data" lists the names'):
        load("core", home=tmp_path)
    with pytest.raises(ValueError, match="did you mean my_graph"):
        load("my_grpah", home=tmp_path)
    with pytest.raises(ValueError, match="no data set or path 'qqqqqqqq': \"siafu data\""):
        load("qqqqqqqq", home=tmp_path / "not there")


def test_paths_are_read_as_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "mine.npz", {"edge_index": np.array([[0], [1]])})
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path / "mine.npz", str(tmp_path / "mine.npz"), "mine.npz", "./mine.npz"):
        assert load(given, home=tmp_path / "home").num_edges == 1
    (tmp_path / "edges.csv").write_text("0,1\n")
    with pytest.raises(ValueError, match=r'edges.csv: neither a store nor an .npz file.*"siafu import"'):
        load("edges.csv", home=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none.npz: no such file or store"):
        load("none.npz", home=tmp_path)


def test_a_store_is_found_by_path_and_by_name(tmp_path: Path) -> None:
    from siafu.store import write_store

    write_store(load("karate"), tmp_path / "club")
    for given in (tmp_path / "club", "club"):
        graph = load(given, home=tmp_path)
        assert (graph.num_nodes, graph.num_edges) == (34, 156)
    (described,) = [found for found in available(tmp_path) if found.name == "club"]
    assert (described.nodes, described.edges, described.features, described.classes) == (34, 156, 34, 4)


def test_bundled_graphs_take_settings_by_name() -> None:
    graph = load("community:nodes=2000,degree=8,classes=3,features=4,seed=7,inside=0.5")
    assert graph.x.shape == (2000, 4)
    assert torch.equal(
        graph.indices, load("community:nodes=2000, degree=8, classes=3, seed=7, inside=0.5").indices
    )
    assert load("rmat:nodes=100,edges=500,a=0.4,b=0.2,c=0.2").num_edges == 500
    assert load("karate:classes=2").y.max() == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("community:node=5", "no setting 'node'; did you mean 'nodes'"),
        ("community:nodes=many", "nodes is 'many'; expected a whole number"),
        ("community:nodes=1.5", "nodes is '1.5'; expected a whole number"),
        ("community:degree=x", "degree is 'x'; expected a number"),
        ("community:nodes", "found 'nodes'; expected each setting once"),
        ("community:seed=1,seed=2", "expected each setting once"),
        ("karate:classes=3", "expected 4"),
        ("rmat:nodes=5,,", "no setting ''"),
    ],
)
def test_a_wrong_setting_is_answered_with_the_right_ones(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(spec)


def test_a_fold_of_a_bundled_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="fold 1 was asked for"):
        load("karate", fold=1)


def test_the_data_home_is_what_the_environment_says() -> None:
    assert data_home({"SIAFU_DATA": "/somewhere"}) == Path("/somewhere")
    assert data_home({}).name == "siafu"
    assert data_home({"SIAFU_DATA": ""}) == data_home({})


def test_the_list_has_what_is_made_what_is_there_and_what_would_come(tmp_path: Path) -> None:
    write_npz(tmp_path / "cora.npz", {"edge_index": np.array([[0], [1]]), "y": np.array([0, 4])})
    events = {name: np.zeros(3) for name in ("src", "dst", "t")}
    write_npz(tmp_path / "temporal/chess.npz", events | {"num_nodes": np.array(5)})
    (tmp_path / "bad.npz").write_bytes(b"bad")
    found = {description.name: description for description in available(tmp_path)}
    assert (found["cora"].nodes, found["cora"].edges, found["cora"].classes) == (2, 1, 5)
    assert found["cora"].where == str(tmp_path / "cora.npz")
    assert found["chess"].edges == 3
    assert "over time" in found["chess"].where
    assert found["bad"].where.startswith("unreadable")
    assert found["pubmed"].where.startswith("download: https://")
    assert {"karate", "community", "rmat"} < found.keys()
    assert {description.name for description in available(tmp_path / "none")} == {
        *PUBLIC_DATASETS,
        "karate",
        "community",
        "rmat",
        "transactions",
    }


def test_a_split_by_class_takes_as_many_of_each_and_no_node_twice() -> None:
    y = np.repeat([0, 1, 2, -1], [40, 30, 4, 10])
    masks = per_class_split(y, seed=0, per_class=20, num_val=10, num_test=1000)
    train, val, test = masks.values()
    assert np.bincount(y[train]).tolist() == [20, 15, 2]
    assert int(val.sum()) == 10
    assert not (train & val | train & test | val & test).any()
    assert int((train | val | test).sum()) == 74


def test_random_splits_differ_and_cover_every_labelled_node() -> None:
    y = np.array([0, 1, -1, 0, 1, 1, 0, 0, 1, 0, 1])
    masks = random_splits(y, seed=0, folds=3)
    together = sum(mask.astype(int) for mask in masks.values())
    assert (together == (y >= 0)[:, None]).all()
    assert not (masks["train_mask"][:, 0] == masks["train_mask"][:, 1]).all()
    assert masks["train_mask"].sum(0).tolist() == [6, 6, 6]


def test_the_sources_are_what_they_say() -> None:
    for name, source in PUBLIC_DATASETS.items():
        assert source.name == name
        assert source.url.startswith("https://")
        assert source.path(Path("home")).is_relative_to("home")
