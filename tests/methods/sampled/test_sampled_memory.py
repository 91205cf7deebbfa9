"""Sampled training on features four times as large as the memory that the system allows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from siafu.data import community
from siafu.store import StoreWriter

LIMIT_BYTES = 450_000_000
NODES, FEATURES, FILLED = 28_000, 16_384, 1024  # the rest of each row is zeros that take no room on the disk
RUN = """
import json, sys
from pathlib import Path

group, store, out, inputs = sys.argv[1:]
if group:
    Path(group, "cgroup.procs").write_text(str(__import__("os").getpid()))
import siafu

run = siafu.train(
    store, out=out, method="sampled", model="gat", inputs=inputs, epochs=1, hidden=8, heads=2, reorder="off",
    normalize="none", threads=1, lr=0.003, dropout=0.0,
    config={"sampled": {"batch_size": 32, "fanout": (1, 1), "macrobatch": 1}},
)
print(json.dumps(run.metrics))
"""


def write_wide(path: Path) -> None:
    """A store whose features are mostly holes in a file."""
    graph, node = community(NODES, degree=4, classes=3, features=16), torch.arange(NODES)
    assert graph.x is not None
    assert graph.y is not None
    masks = {
        "train_mask": node < 3200,
        "val_mask": node >= 16_000,
        "test_mask": (node >= 3200) & (node < 16_000),
    }
    with StoreWriter(path) as store:
        edges_and_labels = {"indptr": graph.indptr, "indices": graph.indices, "y": graph.y}
        for name, values in (edges_and_labels | masks).items():
            store.add(name, values)
        x, zeros = store.array("x", "float32", row=(FEATURES,)), bytes(4 * (FEATURES - FILLED))
        for row in graph.x:
            values = row.repeat(FILLED // 16).numpy().tobytes()
            x._hash.update(values)
            x._hash.update(zeros)
            x._file.write(values)
            x._file.seek(len(zeros), os.SEEK_CUR)
        x._file.truncate()
        x.num_rows = NODES
        store.finish(name="wide", undirected=True, class_names=None, sources={})
    with (path / "x.bin").open("rb") as file:  # what is in the cache of the system now is not this test's
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def ran(group: Path | None, store: Path, inputs: str) -> tuple[dict[str, Any], bytes]:
    out = store.parent / inputs
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(group or ""), str(store), str(out), inputs],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), (out / "model.safetensors").read_bytes()


def test_features_four_times_as_large_as_the_memory_train_the_same_model(
    control_group: Path, tmp_path: Path
) -> None:
    assert 4 * NODES * FEATURES > 4 * LIMIT_BYTES
    write_wide(tmp_path / "store")
    found, weights = ran(control_group, tmp_path / "store", "auto")
    wanted, same_weights = ran(None, tmp_path / "store", "memory")
    assert weights == same_weights
    assert found["test_accuracy"] == wanted["test_accuracy"] > 0.6
