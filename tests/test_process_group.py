"""A script's part of a graph."""

from pathlib import Path

import pytest
import torch

import siafu
from siafu.comm import Comm
from siafu.launch.local import run_threads
from siafu.partition.cut import Part
from siafu.store import write_store
from siafu.store_partitions import list_partitions


def test_each_rank_has_its_part_of_a_store_which_keeps_them(tmp_path: Path) -> None:
    graph = siafu.load("karate")
    write_store(graph, tmp_path / "store")

    def rank(comm: Comm) -> Part:
        return siafu.part_of(tmp_path / "store", comm)

    parts = run_threads(rank, ranks=2, threads=1)
    assert list_partitions(tmp_path / "store", verify=True) == ["2-stream"]
    again = run_threads(rank, ranks=2, threads=1)
    for part, other in zip(parts, again, strict=True):
        assert part.own.node_id is not None
        assert other.own.node_id is not None
        assert torch.equal(part.own.node_id, other.own.node_id)
    assert sum(part.own.num_nodes for part in parts) == part.num_nodes == 34


def test_a_graph_in_memory_is_cut_without_leaving_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    graph = siafu.load("karate")
    parts = run_threads(lambda comm: siafu.part_of(graph, comm, by="hash"), ranks=3, threads=1)
    assert sum(part.own.num_edges for part in parts) == graph.num_edges
    assert not list(tmp_path.iterdir())


def test_a_graph_that_rank_0_cannot_load_ends_all_ranks() -> None:
    with pytest.raises(ValueError, match="no data set or path 'karat'"):
        run_threads(lambda comm: siafu.part_of("karat", comm), ranks=2, threads=1)
