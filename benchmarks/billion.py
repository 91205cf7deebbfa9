"""A billion edges on one ordinary machine: import, partition into 4, one epoch of full-graph GCN on 4 ranks.

    python benchmarks/billion.py --folder /data                 R-MAT of 16.8M nodes and 1e9 edges; 30 GB of disk
    python benchmarks/billion.py --scale 20 --edges 62500000    a sixteenth of it
    python benchmarks/billion.py --prepared /data/billion       keeps the store and its parts there, for the next time

Every step is the real command. Of the command and all its children together the anonymous memory is sampled (RssAnon
and RssShmem: what the system cannot take back by writing or reading a file), and of the folder the disk. Features, the
halo's and their aggregate stay on disk (data.inputs=stream); R-MAT has no communities, so no order is sought for them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from core import require_core

from siafu.data.generate import rmat_edges
from siafu.store import open_store

SIAFU = [sys.executable, "-m", "siafu"]
FEATURES, CLASSES, HIDDEN, PARTS = 32, 4, 16, 4
_CHUNK, _SAMPLE_S = 1 << 18, 0.1


@dataclass(frozen=True)
class Phase:
    """What one step took."""

    name: str
    seconds: float
    memory_bytes: int
    disk_bytes: int


class Gauge(threading.Thread):
    """Samples memory and disk until it is told that the step is over."""

    def __init__(self, pid: int, folder: Path) -> None:
        super().__init__(daemon=True)
        self._pid, self._folder, self._over = pid, folder, threading.Event()
        self.memory_bytes = self.disk_bytes = 0

    def run(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            pids = tree_of(self._pid)
            self.memory_bytes = max(self.memory_bytes, sum(map(anonymous_bytes, pids)))
            self.disk_bytes = max(
                self.disk_bytes, folder_bytes(self._folder) + nameless_bytes(pids, self._folder)
            )

    def stop(self) -> None:
        self._over.set()
        self.join()


def tree_of(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return []


def anonymous_bytes(pid: int) -> int:
    """What a process holds that is in no file."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take of the disk."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(at, name).lstat().st_blocks * 512
            except OSError:
                continue  # gone just now
    return total


def nameless_bytes(pids: list[int], folder: Path) -> int:
    """What mapped files without a name take: they were below the folder and are gone when nobody maps them."""
    found: dict[str, int] = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.endswith("(deleted)") and str(folder) in line:
                begin, end = (int(word, 16) for word in line.split()[0].split("-"))
                inode = line.split()[4]
                found[inode] = max(found.get(inode, 0), end - begin)
    return sum(found.values())


def measured(name: str, folder: Path, pid: int, work: Callable[[], None]) -> Phase:
    """Do something while memory and disk are sampled."""
    gauge, started = Gauge(pid, folder), time.monotonic()
    gauge.start()
    try:
        work()
    finally:
        gauge.stop()
    phase = Phase(name, time.monotonic() - started, gauge.memory_bytes, gauge.disk_bytes)
    print(
        f"{name:12} {phase.seconds:9.1f} s {phase.memory_bytes / 1e9:9.2f} GB {phase.disk_bytes / 1e9:9.2f} GB",
        flush=True,
    )
    return phase


def command(name: str, folder: Path, *arguments: str) -> Phase:
    """Run a command of siafu, and say what it took."""
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen([*SIAFU, name, *arguments], stdout=log, stderr=subprocess.STDOUT)
        phase = measured(name, folder, process.pid, lambda: _end(process))
    if process.returncode:
        raise RuntimeError(f"siafu {name} ended with exit code {process.returncode}:\n{_tail(folder, name)}")
    return phase


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.wait()


def _tail(folder: Path, name: str) -> str:
    return "\n".join((folder / f"{name}.log").read_text("utf-8").splitlines()[-20:])


def generate(folder: Path, num_nodes: int, num_edges: int, trained: float) -> None:
    """Write edges, features, labels and a split, some rows at a time; ``trained`` is the share of training nodes."""
    edges = np.lib.format.open_memmap(folder / "edges.npy", "w+", np.int32, (2, num_edges))
    done = 0
    for src, dst in rmat_edges(num_nodes, num_edges, seed=0):
        edges[0, done : done + len(src)], edges[1, done : done + len(src)] = src, dst
        done += len(src)
    random = np.random.default_rng(0)
    y = random.integers(0, CLASSES, num_nodes)
    mean = random.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    x = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (num_nodes, FEATURES))
    for start in range(0, num_nodes, _CHUNK):
        some = y[start : start + _CHUNK]
        x[start : start + _CHUNK] = mean[some] + random.standard_normal(
            (len(some), FEATURES), dtype=np.float32
        )
    np.save(folder / "labels.npy", y)
    shares = [trained, (1 - trained) / 2, (1 - trained) / 2]
    np.save(folder / "split.npy", random.choice(np.arange(3, dtype=np.int8), num_nodes, p=shares))


@contextmanager
def place(prepared: str | None, folder: str | None) -> Iterator[Path]:
    """The folder that all is made in: one that stays, with what it holds already, or a temporary one."""
    if prepared is None:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            yield Path(temporary)
        return
    Path(prepared).mkdir(parents=True, exist_ok=True)
    yield Path(prepared)


def prepare(
    folder: Path, num_nodes: int, num_edges: int, *, trained: float, ranks: int = PARTS
) -> list[Phase]:
    """A store of the graph and its parts, each step on what the one before left; what is there is not made again."""
    phases, store = [], folder / "store"
    if not (store / "manifest.json").is_file():
        phases += _write_store(folder, num_nodes, num_edges, trained)
    kept = open_store(store).manifest
    if (kept.num_nodes, kept.num_edges) != (num_nodes, num_edges):
        raise SystemExit(
            f"{store} has {kept.num_nodes:,} nodes and {kept.num_edges:,} edges, expected {num_nodes:,} and "
            f"{num_edges:,}; name another folder"
        )
    if ranks > 1 and not any((store / "parts").glob(f"{ranks}-*/partition.json")):
        phases.append(command("partition", folder, str(store), "--parts", str(ranks), "--reorder", "off"))
    return phases


def _write_store(folder: Path, num_nodes: int, num_edges: int, trained: float) -> list[Phase]:
    def write() -> None:
        generate(folder, num_nodes, num_edges, trained)

    phases = [measured("generate", folder, os.getpid(), write)]
    given = {name: folder / f"{name}.npy" for name in ("edges", "features", "labels", "split")}
    files = [word for name, path in given.items() for word in (f"--{name}", str(path))]
    phases.append(command("import", folder, str(folder / "store"), *files))
    for path in given.values():
        path.unlink()
    return phases


def train(
    folder: Path, model: list[str], settings: list[str], *, ranks: int = PARTS
) -> tuple[Phase, dict[str, Any]]:
    """Train, on ranks of a thread each where there are several; what it took, and what the command printed."""
    every = [
        f"threads={1 if ranks > 1 else 0}",
        "train.evaluate_every=1000000",
        "data.reorder=off",
        *settings,
    ]
    words = [word for setting in every for word in ("--set", setting)]
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        run = ["--ranks", str(ranks), "--json", "--out", str(Path(temporary, "run"))]
        phase = command("train", folder, str(folder / "store"), *model, *run, *words)
    return phase, json.loads(_tail(folder, "train").splitlines()[-1])


def show(phases: list[Phase], found: dict[str, Any]) -> None:
    """What all steps but the generation took."""
    counted = [phase for phase in phases if phase.name != "generate"]
    memory, disk = (max(getattr(phase, name) for phase in counted) for name in ("memory_bytes", "disk_bytes"))
    total = sum(phase.seconds for phase in counted)
    print(f"{'all':12} {total:9.1f} s {memory / 1e9:9.2f} GB {disk / 1e9:9.2f} GB   without the generation")
    print(
        f"an epoch took {found['epoch_seconds']:.1f} s; {found['bytes_sent'] / 1e9:.2f} GB went between ranks"
    )
    print(json.dumps({"phases": [vars(phase) for phase in phases], "metrics": found}))


def main() -> None:
    args = _parse()
    print(f"R-MAT, {1 << args.scale:,} nodes, {args.edges:,} edges, {FEATURES} features, GCN hidden {HIDDEN}")
    print(f"{'':12} {'time':>11} {'anonymous':>12} {'disk':>12}", flush=True)
    with place(args.prepared, args.folder) as folder:
        phases = prepare(folder, 1 << args.scale, args.edges, trained=0.5)
        model = ["--model", "gcn", "--method", "full", "--hidden", str(HIDDEN), "--epochs", str(args.epochs)]
        phase, found = train(folder, model, ["data.inputs=stream", *args.set])
    show([*phases, phase], found)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=int, default=24, help="2 to this power are the nodes")
    parser.add_argument("--edges", type=int, default=1_000_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="further settings of siafu train")
    add_places(parser)
    return parser.parse_args()


def add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", help="where to make the temporary folder")
    parser.add_argument(
        "--prepared", help="a folder that stays: what it holds of store and parts is used again"
    )


if __name__ == "__main__":
    require_core()
    main()
