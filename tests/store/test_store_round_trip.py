"""Stores of static graphs: round trips."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import siafu
from siafu.graph import Graph
from siafu.store import open_store, write_store

Same = Callable[[Graph, Graph], None]


def test_a_graph_with_everything_comes_back_as_it_was(graph: Graph, store_path: Path, same: Same) -> None:
    same(graph, open_store(store_path).graph())
    same(graph, open_store(store_path).graph(verify=False))


def test_a_bare_graph_comes_back_without_what_it_never_had(tmp_path: Path, same: Same) -> None:
    bare = Graph.from_edges([[0, 1], [1, 0]], num_nodes=3)
    back = write_store(bare, tmp_path / "bare").graph()
    same(bare, back)
    assert back.x is None
    assert back.train_mask is None


def test_a_graph_without_edges_comes_back(tmp_path: Path, same: Same) -> None:
    lone = Graph.from_edges(torch.empty(2, 0, dtype=torch.int64), x=torch.ones(3, 1))
    same(lone, write_store(lone, tmp_path / "lone").graph())


@pytest.mark.parametrize(
    "y",
    [
        torch.tensor([0, 1, -1, 2, 0]),
        torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1]], dtype=torch.uint8),
        torch.tensor([0.5, float("nan"), 1, 2, 3]),
        torch.arange(10, dtype=torch.float32).reshape(5, 2),
    ],
    ids=["classes", "many labels", "targets", "several targets"],
)
def test_every_kind_of_label_is_kept(graph: Graph, tmp_path: Path, same: Same, y: torch.Tensor) -> None:
    labelled = replace(graph, y=y)
    same(labelled, write_store(labelled, tmp_path / "labelled").graph())


def test_features_in_bfloat16_take_half_the_bytes_and_come_back(
    graph: Graph, tmp_path: Path, same: Same
) -> None:
    assert graph.x is not None
    narrow = replace(graph, x=graph.x.bfloat16())
    store = write_store(narrow, tmp_path / "narrow")
    same(narrow, store.graph())
    assert store.manifest.arrays["x"].dtype == "bfloat16"
    assert (store.path / "x.bin").stat().st_size == 30


def test_features_in_int8_take_a_quarter_of_the_bytes_and_come_back(
    graph: Graph, tmp_path: Path, same: Same
) -> None:
    levels = torch.arange(-7, 8, dtype=torch.int8).reshape(5, 3)
    narrow = replace(graph, x=levels, x_scale=torch.tensor([0.5, 0.0, 1.0, 2.0, 1e-30]))
    store = write_store(narrow, tmp_path / "narrow")
    same(narrow, store.graph())
    assert store.describe()["feature_dtype"] == "int8"
    assert (store.path / "x.bin").stat().st_size == 15
    store.verify()
    for of, scale in ((narrow, None), (graph, narrow.x_scale)):
        with pytest.raises(ValueError, match="expected int8 with a scale a row, or another type without"):
            replace(of, x_scale=scale)


def test_integer_ids_and_slices_of_strings_are_kept(graph: Graph, tmp_path: Path) -> None:
    numbers = replace(graph, node_names=pa.array([10, 2**40, 3, -1, 7]))
    assert write_store(numbers, tmp_path / "numbers").graph().node_names.to_pylist() == [10, 2**40, 3, -1, 7]
    words = replace(graph, node_names=pa.array(["x", "a", "bb", "", "d", "e", "y"])[1:6])
    assert write_store(words, tmp_path / "words").graph().node_names.to_pylist() == ["a", "bb", "", "d", "e"]


def test_each_fold_of_several_splits_can_be_picked(graph: Graph, tmp_path: Path) -> None:
    splits = torch.tensor([[0, 2], [1, 0], [2, 1], [3, 3], [0, 0]])
    store = write_store(graph, tmp_path / "folds", splits=splits)
    assert store.manifest.num_folds == 2
    for fold in (0, 1):
        back = store.graph(fold=fold)
        assert back.train_mask is not None
        assert back.val_mask is not None
        assert back.test_mask is not None
        assert back.train_mask.tolist() == (splits[:, fold] == 0).tolist()
        assert back.val_mask.tolist() == (splits[:, fold] == 1).tolist()
        assert back.test_mask.tolist() == (splits[:, fold] == 2).tolist()


@pytest.mark.parametrize("fold", [2, -1])
def test_a_fold_that_is_not_there_is_refused(graph: Graph, tmp_path: Path, fold: int) -> None:
    store = write_store(graph, tmp_path / "folds", splits=torch.zeros(5, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=f"fold {fold} was asked for, but the store has 2 splits, 0 to 1"):
        store.graph(fold=fold)


def test_a_code_that_is_no_split_is_refused(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="splits: row 1 is 4; expected 0 train"):
        write_store(graph, tmp_path / "bad", splits=torch.tensor([0, 4, 1, 2, 3]))
    assert list(tmp_path.iterdir()) == []


def test_writing_to_a_graph_never_changes_its_store(store_path: Path) -> None:
    graph = open_store(store_path).graph()
    assert graph.x is not None
    graph.x.zero_()
    again = open_store(store_path).graph()
    assert again.x is not None
    assert bool(again.x.any())


def test_the_manifest_says_what_the_store_holds(store_path: Path) -> None:
    manifest = open_store(store_path).manifest
    assert (manifest.num_nodes, manifest.num_edges, manifest.num_features) == (5, 7, 3)
    assert manifest.provenance.sources == {"edges": "five.csv"}
    assert manifest.provenance.siafu_version == siafu.__version__
    assert not manifest.undirected


def test_a_graph_whose_edges_stand_in_both_directions_is_noted_as_undirected(tmp_path: Path) -> None:
    both = Graph.from_edges([[0, 1, 1], [1, 2, 1]], undirected=True)
    assert write_store(both, tmp_path / "both").manifest.undirected
    one = Graph.from_edges([[0, 1, 1], [1, 2, 1]])
    assert not write_store(one, tmp_path / "one").manifest.undirected


@settings(max_examples=30, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20),
    names=st.lists(st.text(), min_size=7, max_size=7),
)
def test_any_edges_and_any_names_come_back(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[int, int]], names: list[str]
) -> None:
    names = [name.encode("utf-8", "ignore").decode() for name in names]
    index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    graph = replace(Graph.from_edges(index, num_nodes=7), node_names=pa.array(names, pa.string()))
    back = write_store(graph, tmp_path_factory.mktemp("any") / "store").graph()
    assert back.indptr.equal(graph.indptr)
    assert back.indices.equal(graph.indices)
    assert back.node_names.to_pylist() == names
