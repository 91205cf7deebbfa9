"""Sparse features beside the same features as dense rows: seconds of an epoch, and memory of the whole run.

    python benchmarks/sparse_inputs.py                     a generated bag of words, and Coauthor CS if it is there
    python benchmarks/sparse_inputs.py --method sampled    minibatches in place of the whole graph

GCN with 256 hidden columns; the generated graph has 70,000 nodes, 700,000 edges and 1,000 features, 17 of them not zero
in a row. Each side trains from a store with its layout, in a process of its own; sides take turns. Memory is the peak
resident set, less that of an idle process that has imported siafu and torch.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from commands import DATA_HOME
from core import require_core
from side import peak_rss_bytes

NODES, DEGREE, FEATURES, WORDS, CLASSES = 70_000, 10, 1_000, 17, 50
HIDDEN, EPOCHS = 256, 10


def write_words(folder: Path) -> None:
    """A community graph with a bag of words for each node, as a store with sparse and one with dense features."""
    from siafu.data import community

    graph = community(NODES, degree=DEGREE, features=1, classes=CLASSES, seed=0)
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(FEATURES, (NODES, WORDS), generator=draw)
    of_class = (graph.y[:, None] * 20 + torch.randint(20, (NODES, WORDS), generator=draw)) % FEATURES
    words = torch.where(torch.rand(NODES, WORDS, generator=draw) < 0.3, of_class, words)
    write_stores(replace(graph, x=torch.zeros(NODES, FEATURES).scatter_(1, words, 1.0)), folder)


def write_stores(graph: Any, folder: Path) -> None:
    """The graph with sparse and with dense features."""
    from siafu.native import SparseRows
    from siafu.store import write_store

    dense = graph.x.to_dense() if isinstance(graph.x, SparseRows) else graph.x
    folder.mkdir()
    write_store(replace(graph, x=dense), folder / "dense")
    write_store(replace(graph, x=SparseRows.from_dense(dense)), folder / "sparse")


def train(store: Path, method: str) -> dict[str, Any]:
    """Train from a store; the process's memory is that of the run."""
    import siafu

    idle = peak_rss_bytes()
    epochs = EPOCHS if method == "full" else 2
    with tempfile.TemporaryDirectory() as out:
        run = siafu.train(
            store, method=method, hidden=HIDDEN, epochs=epochs, layout=store.name, out=Path(out) / "run"
        )
    found = {name: run.metrics[name] for name in ("epoch_seconds", "test_accuracy")}
    return found | {"rss_bytes": peak_rss_bytes() - idle}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=["full", "sampled"], default="full")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.store:
        print(json.dumps(train(args.store, args.method)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        write_words(Path(temporary) / "words")
        coauthor = DATA_HOME / "coauthor_cs.npz"
        if coauthor.is_file():
            import siafu

            write_stores(siafu.load(coauthor), Path(temporary) / "coauthor_cs")
        for folder in sorted(Path(temporary).iterdir(), reverse=True):
            compare(folder, args)


def compare(folder: Path, args: argparse.Namespace) -> None:
    """Run both sides in turn and print a row for each."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(args.rounds):
        for layout in ("dense", "sparse"):
            command = [sys.executable, __file__, "--method", args.method, "--store", str(folder / layout)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[layout].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{folder.name}, {args.method}: {'epoch':>10} {'memory':>10} {'test accuracy':>14}")
    median = {
        layout: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for layout, runs in found.items()
    }
    for layout, row in median.items():
        memory = f"{row['rss_bytes'] / 2**20:7.0f} MB"
        print(f"  {layout:20} {row['epoch_seconds']:8.4f} s {memory} {row['test_accuracy']:13.4f}")
    dense, sparse = median["dense"], median["sparse"]
    print(f"  sparse epochs are {dense['epoch_seconds'] / sparse['epoch_seconds']:.2f}x as fast", end="")
    print(f", with {sparse['rss_bytes'] / dense['rss_bytes']:.2f} of the memory", flush=True)


if __name__ == "__main__":
    require_core()
    main()
