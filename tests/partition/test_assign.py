"""Assignment of nodes to parts by every partitioner, and the reports on it."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from siafu import native
from siafu.data import community, rmat
from siafu.graph import Graph
from siafu.partition import PartitionConfig, Quality, assign, quality
from siafu.partition.external import undirected

ROWS = [0, 2, 1, 1, 0, 2]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return community(5000, degree=16, features=0, classes=5)


@pytest.fixture
def small() -> Graph:
    """Two triangles with a loop, a repeated edge, and one edge between them."""
    edges = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 1), (0, 1)]
    return Graph.from_edges(torch.tensor(edges).T, train_mask=[True, False, True, False, True, False])


def shuffled(graph: Graph) -> Graph:
    return graph.reordered(torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(4)))


def assign_saying(graph: Graph, *, parts: int, by: str) -> tuple[Tensor, list[str]]:
    said: list[str] = []
    return assign(graph, parts=parts, by=by, say=said.append), said


@pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")
def test_streaming_says_its_memory_and_balances_a_community_graph(graph: Graph) -> None:
    part, said = assign_saying(graph, parts=4, by="stream")
    megabytes = native.assign_bytes(5000, parts=4) / 1e6
    (line,) = said
    assert line.startswith(
        f"partitioning community, 5,000 nodes and {graph.num_edges:,} edges, into 4 parts "
    )
    assert line.endswith(f"needs {megabytes:,.1f} MB beyond the graph")
    found = quality(graph, part, 4)
    assert found.cut < 0.3
    assert found.edge_balance <= 1.05
    assert found.train_balance <= 1.10
    assert torch.equal(part, assign(graph, parts=4))


def test_a_directed_graph_of_hubs_is_assigned_and_the_hub_is_told() -> None:
    star = Graph.from_edges(torch.stack([torch.arange(1, 50), torch.zeros(49, dtype=torch.int64)]))
    part, said = assign_saying(star, parts=4, by="stream")
    assert part.unique().tolist() == [0, 1, 2, 3]
    assert said[-1] == f"graph: part {int(part[0])} has 49 edges, 4.00 times the mean"
    power = rmat(2000, 20_000)
    assert quality(power, assign(power, parts=8), 8).cut < 0.875


@pytest.mark.parametrize("by", ["stream", "hash", "metis", "kaminpar"])
def test_one_part_owns_all(small: Graph, by: str) -> None:
    assert assign(small, parts=1, by=by).tolist() == [0] * 6


@pytest.mark.parametrize("parts", [0, 7])
def test_parts_beyond_the_nodes_are_refused(small: Graph, parts: int) -> None:
    with pytest.raises(ValueError, match=f"graph: {parts} parts of 6 nodes; expected at least 1 part"):
        assign(small, parts=parts)


@pytest.mark.parametrize(("package", "by"), [("pymetis", "metis"), ("kaminpar", "kaminpar")])
def test_libraries_cut_few_edges_and_take_directed_graphs_with_loops(
    graph: Graph, small: Graph, package: str, by: str
) -> None:
    pytest.importorskip(package)
    found = quality(graph, assign(graph, parts=4, by=by), 4)
    assert found.cut < 0.3
    assert found.edge_balance < 1.1
    part = assign(small, parts=2, by=by).tolist()
    assert part[:3] == [part[0]] * 3
    assert part[3:] == [1 - part[0]] * 3


@pytest.mark.parametrize(("package", "by"), [("pymetis", "metis"), ("kaminpar", "kaminpar")])
def test_a_library_that_is_missing_is_named_with_what_installs_it(
    small: Graph, package: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError):
        importlib.import_module(package)
    with pytest.raises(
        ValueError, match=re.escape(f"{package}, which is not installed: pip install 'siafu[{by}]'")
    ):
        assign(small, parts=2, by=by)


def test_libraries_are_given_each_edge_both_ways_and_once_without_loops(small: Graph) -> None:
    csr = undirected(small)
    row = torch.arange(6).repeat_interleave(csr.indptr.diff())
    found = sorted(zip(row.tolist(), csr.indices.tolist(), strict=True))
    pairs = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (0, 3)]
    assert found == sorted(pairs + [(b, a) for a, b in pairs])


def test_the_hash_is_of_the_users_row_and_the_seed_alone(graph: Graph) -> None:
    part = assign(graph, parts=8, by="hash")
    other = shuffled(graph)
    assert other.node_id is not None
    assert torch.equal(assign(other, parts=8, by="hash"), part[other.node_id])
    bare = Graph(torch.zeros(5001, dtype=torch.int64), torch.empty(0, dtype=torch.int32))
    assert torch.equal(assign(bare, parts=8, by="hash"), part)
    assert not torch.equal(assign(graph, parts=8, by="hash", seed=1), part)
    assert torch.bincount(part, minlength=8).min() > 5000 / 8 * 0.85


def write(path: Path, rows: list[int]) -> Path:
    match path.suffix:
        case ".npy":
            np.save(path, np.array(rows, dtype=np.uint8))
        case ".parquet":
            pq.write_table(pa.table({"id": rows, "part": pa.array(rows, pa.int16())}), path)
        case ".csv":
            path.write_text("node,part\n" + "".join(f"{9 - i},{row}\n" for i, row in enumerate(rows)))
        case _:
            path.write_text("".join(f"{row}\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["parts.npy", "parts.parquet", "parts.csv", "graph.part.3"])
def test_a_file_is_taken_in_the_users_order(small: Graph, tmp_path: Path, name: str) -> None:
    by = str(write(tmp_path / name, ROWS))
    assert assign(small, parts=3, by=by).tolist() == ROWS
    other = shuffled(small)
    assert other.node_id is not None
    assert assign(other, parts=3, by=by).tolist() == torch.tensor(ROWS)[other.node_id].tolist()


def test_an_empty_part_of_a_file_is_told(small: Graph, tmp_path: Path) -> None:
    _, said = assign_saying(small, parts=5, by=str(write(tmp_path / "parts.npy", ROWS)))
    assert said[0] == "graph: of 5 parts, 2 are empty: 3, 4"


@pytest.mark.parametrize("name", ["parts.npy", "parts.parquet", "parts.csv", "parts.txt"])
def test_a_file_of_another_length_or_range_is_refused(small: Graph, tmp_path: Path, name: str) -> None:
    by = str(write(tmp_path / name, ROWS[:5]))
    with pytest.raises(ValueError, match="has 5 rows; expected 6, a part for each node of graph"):
        assign(small, parts=3, by=by)
    by = str(write(tmp_path / name, ROWS))
    with pytest.raises(ValueError, match="row 1 is part 2; expected 0 to 1, as 2 parts are asked for"):
        assign(small, parts=2, by=by)


def test_files_that_hold_no_parts_are_refused(small: Graph, tmp_path: Path) -> None:
    def refused(name: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            assign(small, parts=3, by=str(tmp_path / name))

    np.save(tmp_path / "float.npy", np.zeros(6))
    refused("float.npy", "is an array of float64; expected integers")
    np.save(tmp_path / "wide.npy", np.zeros((6, 2), dtype=np.int64))
    refused("wide.npy", r"has the shape \(6, 2\); expected 6")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "float.npy").read_bytes()[:40])
    refused("cut.npy", "is not a .npy file of numbers, or is cut off")
    np.savez(tmp_path / "many.npz", part=np.zeros(6))
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    refused("many.npy", "is an .npz file; expected integers")
    (tmp_path / "bad.parquet").write_text("no table")
    refused("bad.parquet", "is not readable as Parquet")
    (tmp_path / "words.txt").write_text("0\n1\nx\n0\n1\n2\n")
    refused("words.txt", "column 'f0' holds string; expected integers")
    (tmp_path / "gap.csv").write_text("id,part\n0,1\n1,\n")
    refused("gap.csv", "row 1 of column 'part' is empty")
    (tmp_path / "two.csv").write_text("a,b\n0,1\n")
    refused("two.csv", "has columns a, b; expected one that is called part")
    (tmp_path / "empty.txt").write_text("")
    refused("empty.txt", "is not readable as text")
    refused("metsi", "partition.by is '.*metsi', and there is no such file; expected stream, metis")


def test_quality_of_a_partition_written_out(small: Graph) -> None:
    found = quality(small, torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.int32), 2)
    assert found == Quality(cut=pytest.approx(1 / 9), nodes=(3, 3), edges=(5, 4), train=(2, 1), halo=(0, 1))
    assert found.edge_balance == pytest.approx(10 / 9)
    assert found.train_balance == pytest.approx(4 / 3)
    assert found.node_balance == 1
    bare = replace(small, indptr=torch.zeros(7, dtype=torch.int64), indices=small.indices[:0])
    assert quality(bare, torch.zeros(6, dtype=torch.int32), 1).cut == 0


def test_quality_of_what_is_no_partition_is_refused(small: Graph) -> None:
    with pytest.raises(ValueError, match=r"parts of \(3,\) nodes; expected \(6,\)"):
        quality(small, torch.zeros(3, dtype=torch.int32), 2)
    with pytest.raises(ValueError, match="parts from 0 to 5; expected 0 to 1"):
        quality(small, torch.arange(6, dtype=torch.int32), 2)


def test_the_settings_are_one_name() -> None:
    assert PartitionConfig().by == "stream"
    with pytest.raises(ValueError, match="frozen"):
        PartitionConfig().by = "hash"  # type: ignore[misc]
