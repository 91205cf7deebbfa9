"""siafu's streaming partitioner beside hash, METIS and KaMinPar on the same generated graph, in turn.

    python benchmarks/partition.py                      2M nodes, 20M edges, communities, 8 parts
    python benchmarks/partition.py --rmat               1M nodes, 16M edges, R-MAT
    python benchmarks/partition.py --graph FOLDER       indptr.npy, indices.npy and perhaps train_mask.npy
    python benchmarks/partition.py --rmat --nodes 16000000 --edges 1000000000 --parts 4 --by stream --keep FOLDER

Every partition is made in a process of its own, which maps the graph; the anonymous memory that it gains is sampled.
The sides take turns, and the median of their seconds counts. METIS and KaMinPar are left out where they are not
installed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from core import require_core

NEEDS = {"metis": "pymetis", "kaminpar": "kaminpar"}
_SAMPLE_S = 0.01


def main() -> None:
    options = parse()
    if options.child:
        print(json.dumps(partition_here(options)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.graph or options.keep or Path(temporary)
        if options.graph is None:
            generate(folder, options)
        sides = [by for by in options.by if find_spec(NEEDS.get(by, "siafu"))]
        rounds = [[run(by, folder, options) for by in sides] for _ in range(options.rounds)]
    found = [summary([made[place] for made in rounds]) for place in range(len(sides))]
    show(found, options)
    print(json.dumps(found))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graph", type=Path, help="a folder with indptr.npy and indices.npy")
    parser.add_argument("--rmat", action="store_true", help="R-MAT instead of communities")
    parser.add_argument("--nodes", type=int, default=None)
    parser.add_argument("--edges", type=int, default=None)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--by", nargs="*", default=["stream", "hash", "kaminpar", "metis"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="how often each side has its turn")
    parser.add_argument("--keep", type=Path, help="generate the graph there and leave it")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def generate(folder: Path, options: argparse.Namespace) -> None:
    from siafu.data import community, rmat

    nodes = options.nodes or (1_000_000 if options.rmat else 2_000_000)
    edges = options.edges or (16 if options.rmat else 10) * nodes
    graph = (
        rmat(nodes, edges) if options.rmat else community(nodes, degree=edges / nodes, features=0, classes=47)
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("indptr", "indices", "train_mask"):
        if (array := getattr(graph, name)) is not None:
            np.save(folder / f"{name}.npy", array.numpy())


def run(by: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", by, "--graph", str(folder)]
    command += ["--parts", str(options.parts), "--threads", str(options.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the graph is mapped, the partition begins
        with Anonymous(process.pid) as memory:
            process.stdout.readline()  # the partition is made
        answer = process.stdout.readline()
    if process.returncode:
        raise RuntimeError(f"{by} ended with exit code {process.returncode}")
    return {**json.loads(answer), "anonymous_bytes": memory.gained}


def partition_here(options: argparse.Namespace) -> dict[str, Any]:
    from siafu.graph import Graph
    from siafu.partition import assign, quality

    torch.set_num_threads(options.threads)
    graph = Graph(**{path.stem: mapped(path) for path in options.graph.glob("*.npy")})
    said: list[str] = []
    print("begin", flush=True)
    started = time.perf_counter()
    part_of_node = assign(graph, parts=options.parts, by=options.child, say=said.append)
    seconds = time.perf_counter() - started
    print("made", flush=True)
    found = quality(graph, part_of_node, options.parts)
    return {
        "by": options.child,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "cut": found.cut,
        "seconds": seconds,
        "edge_balance": found.edge_balance,
        "train_balance": found.train_balance,
        "halo_share": sum(found.halo) / graph.num_nodes,
        "said": said,
    }


def mapped(path: Path) -> torch.Tensor:
    """Map an array copy on write: nobody writes, so that none of it becomes this process's own."""
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))


class Anonymous:
    """Samples the anonymous memory of a process; ``gained`` is the most that there was above the beginning.

    From outside: libraries that keep Python's lock would stop a sampler inside.
    """

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._begin = self._most = self._now()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Anonymous":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def gained(self) -> int:
        return self._most - self._begin

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._most = max(self._most, self._now())

    def _now(self) -> int:
        lines = self._status.read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {**rows[0], "seconds": statistics.median(row["seconds"] for row in rows)}


def show(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    print(f"\n{found[0]['nodes']:,} nodes, {found[0]['edges']:,} edges, {options.parts} parts")
    print(
        f"  {'':9} {'cut':>7} {'seconds':>9} {'memory':>10} {'a node':>8} {'edges':>7} {'training':>9} {'halo':>6}"
    )
    for row in found:
        memory = f"{row['anonymous_bytes'] / 1e6:,.0f} MB"
        a_node = f"{row['anonymous_bytes'] / row['nodes']:,.0f} B"
        print(
            f"  {row['by']:9} {row['cut']:7.2%} {row['seconds']:9.2f} {memory:>10} {a_node:>8} "
            f"{row['edge_balance']:7.3f} {row['train_balance']:9.3f} {row['halo_share']:6.2f}"
        )
    for line in [line for row in found for line in row["said"]]:
        print(f"  {line}")


if __name__ == "__main__":
    require_core()
    main()
