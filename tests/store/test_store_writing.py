"""A store is written completely or not at all."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from siafu.graph import Graph
from siafu.store import ArrayWriter, StoreWriter, write_store


def big() -> Graph:
    return Graph.from_edges([[0, 1], [1, 0]], x=torch.ones(4096, 256))  # 4 MB


def test_an_existing_folder_is_never_overwritten(graph: Graph, store_path: Path) -> None:
    with pytest.raises(FileExistsError, match="five exists already; remove it first, or choose another name"):
        write_store(graph, store_path)
    with pytest.raises(FileExistsError):
        write_store(graph, store_path / "x.bin")
    assert [path.name for path in store_path.parent.iterdir()] == ["five"]


def test_a_dangling_link_counts_as_existing(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        write_store(graph, tmp_path / "link")


def test_the_folder_that_shall_hold_it_must_exist(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no does not exist; make it first"):
        write_store(graph, tmp_path / "no" / "store")


def test_of_two_writers_of_one_place_the_later_is_refused(graph: Graph, tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "store") as store:
        store.add("indptr", graph.indptr)
        store.add("indices", graph.indices)
        write_store(graph, tmp_path / "store")
        with pytest.raises(FileExistsError):
            store.finish(name="late", undirected=False, class_names=None, sources={})
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_graph_that_cannot_be_trained_on_is_refused(graph: Graph, tmp_path: Path) -> None:
    assert graph.x is not None
    spoilt = graph.x.clone()
    spoilt[2, 1] = float("nan")
    with pytest.raises(ValueError, match="row 2, column 1 is nan"):
        write_store(replace(graph, x=spoilt), tmp_path / "store")
    with pytest.raises(ValueError, match="names node 9 of 5"):
        write_store(replace(graph, indices=torch.full_like(graph.indices, 9)), tmp_path / "store")
    with pytest.raises(ValueError, match="node_names are double"):
        write_store(replace(graph, node_names=[0.5] * 5), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with StoreWriter(tmp_path / "store") as store:
            store.add("indptr", np.zeros(1, dtype=np.int64))
            (store.scratch / "more").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_and_says_what_to_do(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ArrayWriter, rows: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ArrayWriter, "append", fail)
    with pytest.raises(
        OSError, match=r"No space left on device while writing the store .* free some space"
    ) as caught:
        write_store(graph, tmp_path / "store")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(not shutil.which("mount") or os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_disk_that_really_fills_up_leaves_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path):
        with pytest.raises(OSError, match="No space left on device while writing the store"):
            write_store(big(), tmp_path / "store")
        assert list(tmp_path.iterdir()) == []


def test_a_file_larger_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    graph = big()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="File too large while writing the store"):
            write_store(graph, tmp_path / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def abandoned(path: Path) -> Path:
    """A folder as a writer that was killed leaves it behind."""
    left = path.parent / f".{path.name}.partial-0123456789ab"
    (left / "scratch").mkdir(parents=True)
    (left / "scratch" / "spool.src").write_bytes(b"1234")
    return left


def test_the_next_writer_removes_the_leftovers_of_a_killed_one(graph: Graph, tmp_path: Path) -> None:
    abandoned(tmp_path / "store")
    write_store(graph, tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_writer_that_was_killed_has_given_up_its_folder(graph: Graph, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from siafu.store import StoreWriter\n"
        "with StoreWriter(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "store")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    write_store(graph, tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_folders_in_use_of_others_and_links_are_left_alone(graph: Graph, tmp_path: Path) -> None:
    other = abandoned(tmp_path / "other")
    (tmp_path / ".store.partial-0123456789ab").symlink_to(other)
    (tmp_path / ".store.partial-mine").mkdir()
    with StoreWriter(tmp_path / "store") as busy:
        busy.scratch.joinpath("spool").write_bytes(b"1234")
        write_store(graph, tmp_path / "store")
        assert busy.scratch.joinpath("spool").exists()
    assert other.joinpath("scratch", "spool.src").exists()
    left = [".other.partial-0123456789ab", ".store.partial-0123456789ab", ".store.partial-mine", "store"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
