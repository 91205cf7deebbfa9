"""A store of a terabyte is opened and served in two gigabytes of memory."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash

import siafu
from siafu.store.manifest import ArraySpec, Manifest, Provenance, write_manifest

NODES, FEATURES = 100_000_000, 2_500
REAL, DEGREE = 4_000, 12  # the last nodes, which have edges and features; all others are holes in the files
ZEROS = bytes(1 << 22)

SERVE = """
import json, resource, sys
import torch
import siafu

nodes, real = int(sys.argv[2]), int(sys.argv[3])
seeds = torch.arange(nodes - real, nodes)
loader = siafu.NeighborLoader(sys.argv[1], [12, 12], input_nodes=seeds, batch_size=40, shuffle=True)
served = far = 0
for batch in loader:
    wanted = (batch.n_id - (nodes - real) + 1).clamp(min=0).float()
    assert torch.equal(batch.x[:, 0], wanted) and torch.equal(batch.x[:, -1], wanted)
    assert not batch.x[:, 1:-1].any()
    served, far = served + 1, far + int((wanted == 0).sum())
whole = siafu.NeighborLoader(sys.argv[1], [10], batch_size=100, shuffle=True)  # all nodes, in an order of no memory
seeds = next(iter(whole)).n_id[:100]
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"served": served, "far": far, "peak": peak, "spread": int(seeds.max() - seeds.min())}))
"""


def checksum_of_holes(count: int, end: bytes) -> str:
    """Of so many zeros, then what is really there."""
    state = xxhash.xxh3_128()
    for start in range(0, count, len(ZEROS)):
        state.update(ZEROS[: count - start])
    state.update(end)
    return state.hexdigest()


def write_sparse(path: Path, values: np.ndarray, *, rows: int) -> ArraySpec:
    """An array whose last rows are given; those before are a hole."""
    shape = (rows, *values.shape[1:])
    hole = (rows - values.shape[0]) * (values.nbytes // values.shape[0])
    with path.open("wb") as file:
        file.truncate(hole + values.nbytes)
        file.seek(hole)
        file.write(values.tobytes())
    # That of the features would take an hour, and nobody asks for it when a loader opens the store.
    known = "0" * 32 if hole > 1 << 34 else checksum_of_holes(hole, values.tobytes())
    return ArraySpec(file=path.name, dtype=str(values.dtype), shape=shape, xxh3_128=known)  # type: ignore[arg-type]


@pytest.fixture
def terabyte(tmp_path: Path) -> Path:
    """A store of 100 million nodes with 2,500 features each, of which 4,000 are really there."""
    draw = np.random.default_rng(0)
    indices = draw.integers(NODES - REAL, NODES, (REAL, DEGREE)).astype(np.int32)
    indices[:, ::2] = draw.integers(0, NODES, indices[:, ::2].shape)  # half of all edges come from far away
    indptr = np.arange(REAL + 1, dtype=np.int64) * DEGREE
    x = np.zeros((REAL, FEATURES), np.float32)
    x[:, 0] = x[:, -1] = np.arange(1, REAL + 1)
    store = tmp_path / "terabyte"
    store.mkdir()
    try:
        arrays = {
            "indptr": write_sparse(store / "indptr.bin", indptr, rows=NODES + 1),
            "indices": write_sparse(store / "indices.bin", indices.reshape(-1), rows=indices.size),
            "x": write_sparse(store / "x.bin", x, rows=NODES),
        }
    except OSError as error:
        pytest.skip(f"no sparse file of a terabyte here: {error}")
    if sum(file.stat().st_blocks * 512 for file in store.iterdir()) > 1e9:
        pytest.skip("files with holes take the room of whole ones here")
    provenance = Provenance(siafu_version=siafu.__version__, created="", sources={})
    write_manifest(
        Manifest(name="terabyte", undirected=False, class_names=None, arrays=arrays, provenance=provenance),
        store,
    )
    return store


def test_a_terabyte_serves_a_hundred_minibatches_in_two_gigabytes(
    terabyte: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (terabyte / "x.bin").stat().st_size == 10**12
    monkeypatch.setenv("PYTHONPATH", str(Path(siafu.__file__).parents[1]))
    ran = subprocess.run(
        [sys.executable, "-c", SERVE, str(terabyte), str(NODES), str(REAL)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["served"] == 100
    assert found["far"] > 150_000  # whose pages alone would be 1.8 GB
    assert found["peak"] <= 2_000_000_000
    assert found["spread"] > NODES // 2
