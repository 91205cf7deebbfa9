"""Graphs of more than 2^31 edges: every reader handles positions beyond int32."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash

import siafu
from siafu import native
from siafu.array_checks import ValidatedCsr, check_offsets
from siafu.graph import Graph
from siafu.native import Csr
from siafu.store import open_store
from siafu.store.manifest import ArraySpec, Manifest, Provenance, write_manifest

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    import torch_geometric.data  # noqa: F401

HOLE = 2**31 + 5  # edges into node 0, all from itself: zeros that are nowhere on disk
ROWS, DEGREE = 40, 3  # the other nodes, whose edges stand behind them


def write(path: Path, values: np.ndarray, *, hole: int = 0) -> ArraySpec:
    with path.open("wb") as file:
        file.truncate(hole * values.itemsize + values.nbytes)
        file.seek(hole * values.itemsize)
        file.write(values.tobytes())
    checksum = "0" * 32  # nobody reads all of it
    return ArraySpec(file=path.name, dtype=str(values.dtype), shape=(hole + values.size,), xxh3_128=checksum)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def sources() -> np.ndarray:
    return np.random.default_rng(0).integers(0, ROWS + 1, (ROWS, DEGREE)).astype(np.int32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, sources: np.ndarray) -> Path:
    path = tmp_path_factory.mktemp("many") / "store"
    path.mkdir()
    indptr = np.concatenate([[0], HOLE + np.arange(ROWS + 1) * DEGREE]).astype(np.int64)
    try:
        arrays = {
            "indptr": write(path / "indptr.bin", indptr),
            "indices": write(path / "indices.bin", sources.reshape(-1), hole=HOLE),
        }
    except OSError as error:
        pytest.skip(f"no sparse file of {4 * HOLE} bytes here: {error}")
    if (path / "indices.bin").stat().st_blocks * 512 > 1e9:
        pytest.skip("files with holes take the room of whole ones here")
    spec = arrays["indptr"].model_copy(update={"xxh3_128": _checksum(path / "indptr.bin")})
    provenance = Provenance(siafu_version=siafu.__version__, created="", sources={})
    arrays |= {"indptr": spec}
    write_manifest(
        Manifest(name="many", undirected=False, class_names=None, arrays=arrays, provenance=provenance), path
    )
    return path


def _checksum(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes())


@pytest.fixture(scope="module")
def graph(store: Path) -> Graph:
    return open_store(store).graph(verify=False)


def test_offsets_beyond_an_int32_are_right(graph: Graph) -> None:
    assert graph.num_edges == HOLE + ROWS * DEGREE > 2**31
    check_offsets(graph.indptr, graph.num_edges, "many")
    block = graph.block
    assert (block.num_edges, int(block.in_degree[0]), int(block.in_degree[-1])) == (
        graph.num_edges,
        HOLE,
        DEGREE,
    )
    assert isinstance(graph.checked, ValidatedCsr)


def test_kernels_read_rows_whose_edges_stand_behind_so_many(graph: Graph, sources: np.ndarray) -> None:
    csr, x = Csr(graph.indptr, graph.indices), torch.randn(ROWS + 1, 8)
    rows, near = slice(1, ROWS + 1), torch.from_numpy(sources).long()
    summed = native.spmm(csr, x, out=torch.zeros(ROWS + 1, 8), rows=rows)
    torch.testing.assert_close(summed[1:], x[near].sum(1))
    into = torch.zeros(ROWS + 1, 8), torch.zeros(ROWS + 1, 8, dtype=torch.int32)
    most, _ = native.segment_max(csr, x, into=into, rows=rows)
    torch.testing.assert_close(most[1:], x[near].amax(1))
    taken = native.take_rows(
        csr, torch.arange(1, ROWS + 1), name=torch.arange(ROWS + 1, dtype=torch.int32), origin=True
    )
    assert taken.indices.view(ROWS, DEGREE).tolist() == np.sort(sources, 1).tolist()
    assert taken.origin is not None
    assert int(taken.origin.min()) == HOLE > 2**31
    assert torch.equal(graph.indices[taken.origin], taken.indices)


def test_attention_reads_rows_whose_edges_stand_behind_so_many(graph: Graph, sources: np.ndarray) -> None:
    csr, z = Csr(graph.indptr, graph.indices), torch.randn(ROWS + 1, 4 + 2)
    how, last = native.Attention(heads=1), slice(ROWS, ROWS + 1)
    into = torch.zeros(ROWS + 1, 4), torch.zeros(ROWS + 1, 2, 1)
    found, _ = native.attend(csr, z, how, into=into, rows=last)
    near = sources[-1][sources[-1] != ROWS]  # with exactly one loop
    score = torch.nn.functional.leaky_relu(z[[*near, ROWS], 4] + z[ROWS, 5], 0.2)
    torch.testing.assert_close(found[-1], score.softmax(0) @ z[[*near, ROWS], :4])


def test_a_loader_draws_edges_behind_so_many(store: Path, sources: np.ndarray) -> None:
    seeds = torch.arange(1, ROWS + 1)
    (batch,) = siafu.NeighborLoader(str(store), [-1], input_nodes=seeds, batch_size=ROWS)
    met = batch.n_id[batch.edge_index[0]].view(ROWS, DEGREE)
    assert met.tolist() == sources.tolist()
    assert batch.e_id.tolist() == list(range(HOLE, HOLE + ROWS * DEGREE))
