"""Training beside another process that keeps one of the cores busy, against training alone.

    python benchmarks/busy.py                              every case, a quarter of an hour or so
    python benchmarks/busy.py --only gcn-60k --turns 6     one case
    python benchmarks/busy.py --only cora                  whole commands, beside 0, 1 and 2 busy processes

The busy process computes on the last of the cores alone. It is stopped and continued from turn to turn, so that steps
alone and steps beside it are measured in the same processes, side by side. With two cores, a ratio of 1.33 to 1.5 is
the least that is possible while every thread gets its share: two cores become 1.5, or 1.33 where the busy process is
one of three equal threads.

Sides: ``siafu`` as the command line sets it up, ``library`` is siafu imported after torch, where nothing sets how long
threads spin, ``scored`` also scores the model in every epoch, and ``pyg`` is a plain loop over PyG's layers.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import require_core
from run import write_arrays
from turns import Side

from siafu.cores import thread_environ

HERE = Path(__file__).parent
BUSY = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: sum(range(10_000))"


@dataclass(frozen=True)
class Case:
    """One graph and model; ``steps`` are made in each turn."""

    name: str
    kind: str
    nodes: int
    degree: float
    hidden: int
    steps: int
    sides: tuple[str, ...]


CASES = [
    Case("gcn-60k", "gcn", 60_000, 23.3, 128, 8, ("siafu", "library", "scored", "pyg")),
    Case("gcn-100k", "gcn", 100_000, 25, 256, 4, ("siafu", "library", "pyg")),
    Case("gat-60k", "gat", 60_000, 23.3, 128, 2, ("siafu", "library")),
    Case("sampled-60k", "sampled", 60_000, 23.3, 256, 1, ("siafu", "library")),
]


class Busy:
    """Processes that compute without end while they are not stopped, each on one core."""

    def __init__(self, cores: list[int]) -> None:
        command = [sys.executable, "-c", BUSY]
        self.processes = [subprocess.Popen([*command, str(core)]) for core in cores]
        self.stop()

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def busy_on(cores: list[int]) -> Iterator[Busy]:
    busy = Busy(cores)
    try:
        yield busy
    finally:
        busy.end()


def side_of(case: Case, name: str, folder: Path, threads: int) -> Side:
    how = ["--threads", str(threads)]
    if case.kind == "sampled":
        command = [HERE / "sampled_side.py", "epoch", "siafu", folder, *how]
    else:
        scored = ["--scored"] if name == "scored" else []
        system = "pyg" if name == "pyg" else "siafu"
        command = [HERE / "side.py", system, case.kind, folder, "--hidden", str(case.hidden), *how, *scored]
    environ = command_environ() if name in ("siafu", "scored") else dict(os.environ)
    return Side(name, [sys.executable, *map(str, command)], environ)


def command_environ() -> dict[str, str]:
    """The environment in which the command line trains."""
    return dict(os.environ) | thread_environ(os.environ)


def measure(case: Case, only: list[str] | None, turns: int, threads: int, cores: list[int]) -> dict[str, Any]:
    """Medians of steps alone and beside the busy processes, by side."""
    from siafu.data import community

    names = [name for name in case.sides if only is None or name in only]
    seconds: dict[str, dict[str, list[float]]] = {name: {"alone": [], "beside": []} for name in names}
    with tempfile.TemporaryDirectory() as temporary, busy_on(cores) as busy:
        folder = Path(temporary)
        write_arrays(community(case.nodes, degree=case.degree, features=100, classes=47, seed=0), folder)
        sides = [side_of(case, name, folder, threads) for name in names]
        for side in sides:
            side.step()
            side.step()
        for turn in range(turns):
            for side in sides:
                for how in ("alone", "beside")[:: -1 if turn % 2 else 1]:
                    busy.go_on() if how == "beside" else busy.stop()
                    seconds[side.name][how] += [side.ask("step")["seconds"] for _ in range(case.steps)]
                busy.stop()
        for side in sides:
            side.end()
    return {name: {how: statistics.median(of) for how, of in each.items()} for name, each in seconds.items()}


def show(case: Case, found: dict[str, Any]) -> None:
    print(f"\n{case.name}: {case.nodes:,} nodes, about {int(case.nodes * case.degree):,} edges")
    print(f"  {'':10} {'alone':>9} {'beside':>9} {'ratio':>7}")
    for name, each in found.items():
        alone, beside = each["alone"], each["beside"]
        print(f"  {name:10} {alone:8.4f}s {beside:8.4f}s {beside / alone:6.2f}x")


def train_cora(rounds: int, cores: list[int]) -> dict[str, Any]:
    """Seconds of a whole command on a small graph, beside none, one and as many busy processes as cores."""
    seconds: dict[str, list[float]] = {str(number): [] for number in range(len(cores) + 1)}
    command = [sys.executable, "-m", "siafu", "train", "cora", "--epochs", "200", "--set", "train.patience=0"]
    for _ in range(rounds):
        for number, of in seconds.items():
            with busy_on(cores[::-1][: int(number)]) as busy, tempfile.TemporaryDirectory() as out:
                busy.go_on()
                start = time.perf_counter()
                whole = [*command, "--out", str(Path(out) / "run"), "--json"]
                subprocess.run(whole, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                of.append(time.perf_counter() - start)
    return {number: statistics.median(of) for number, of in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=[*(case.name for case in CASES), "cora"])
    parser.add_argument("--sides", nargs="*", help="some of the sides")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    found: dict[str, Any] = {}
    for case in CASES:
        if not args.only or case.name in args.only:
            found[case.name] = measure(case, args.sides, args.turns, args.threads, cores[-1:])
            show(case, found[case.name])
    if not args.only or "cora" in args.only:
        found["cora"] = train_cora(args.turns, cores)
        print("\nsiafu train cora --epochs 200, seconds of the command")
        for number, of in found["cora"].items():
            print(f"  beside {number} busy: {of:7.2f}s")
    print(json.dumps(found))


if __name__ == "__main__":
    require_core()
    main()
