"""Opening a store reads no more than it must, and pages that were read are released."""

from pathlib import Path

import pytest
import torch

import siafu
from siafu.graph import Graph
from siafu.store import open_store, write_store
from siafu.store.page_cache import ResidentPages


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
    pages = ResidentPages(graph, most_bytes=-(1 << 50))  # always too much
    pages.release_excess()
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
