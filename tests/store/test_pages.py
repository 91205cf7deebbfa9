"""Opening a store reads no more than it must, and what was read is given back."""

from pathlib import Path

import pytest
import torch

import siafu
from siafu.graph import Graph
from siafu.store import open_store, write_store
from siafu.store import reader as reading
from siafu.store.pages import Pages
from siafu.store.reader import check_csr


@pytest.fixture
def store(tmp_path: Path) -> Path:
    x = torch.arange(40_000.0).reshape(200, 200)
    edges = torch.stack([torch.arange(199), torch.arange(1, 200)])
    write_store(Graph.from_edges(edges, x=x), tmp_path / "store")
    return tmp_path / "store"


def test_rows_are_the_same_after_their_pages_were_given_back(store: Path) -> None:
    graph = open_store(store).graph(verify=False)
    assert graph.x is not None
    before = graph.x.clone()
    pages = Pages(graph, most_bytes=-(1 << 50))  # always too much
    pages.tidy()
    assert torch.equal(graph.x, before)
    assert torch.equal(graph.indices, torch.arange(199, dtype=torch.int32))


def test_without_verify_features_are_not_read(store: Path) -> None:
    changed = store / "x.bin"
    changed.write_bytes(bytes(changed.stat().st_size))
    with pytest.raises(ValueError, match=r"x\.bin: checksum"):
        siafu.load(store)
    graph = siafu.load(store, verify=False)
    assert graph.x is not None
    assert not graph.x.any()


@pytest.mark.parametrize("place", range(1, 8))
def test_offsets_are_checked_across_the_ranges_in_which_they_are_read(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(reading, "_CHUNK", 3)
    indptr, indices = torch.arange(8), torch.zeros(7, dtype=torch.int32)
    check_csr(indptr, indices, "it", ids=False)
    indptr[place] = 0 if place > 1 else 7
    with pytest.raises(ValueError, match=r"indptr (does not ascend|ends at)"):
        check_csr(indptr, indices, "it", ids=False)


def test_offsets_that_name_more_edges_than_there_are_are_refused_without_reading_them() -> None:
    with pytest.raises(ValueError, match="indptr ends at 2, but there are 1 indices"):
        check_csr(torch.tensor([0, 2]), torch.zeros(1, dtype=torch.int32), "it", ids=False)
