"""CPU seconds of an epoch, all processes together: the pipeline on two graph servers beside `full` on two ranks.

    python benchmarks/cpu_seconds.py                                      40k nodes, 1.4M edges, GCN 300-64-25
    python benchmarks/cpu_seconds.py --nodes 4000 --epochs 30 --rounds 1  in a minute or so

Every run is the real command, with ranks as processes of one thread. The CPU time of the command and of all processes
below it is read in the middle of the run and at its last epoch, both of which are scored: start and end are not in it,
one evaluation in all those epochs is. The original's CPU backend took 0.65 CPU seconds an epoch of a graph and a model
of these sizes on two servers; that figure was recorded earlier, not in this run.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from core import require_core
from ranks import SIAFU

from siafu.data import community
from siafu.store import write_store

FEATURES, HIDDEN, CLASSES, RANKS = 300, 64, 25, 2
RECORDED_S = 0.65  # the original's CPU backend, recorded earlier
SIDES = {
    "full": ["method=full"],
    "pipeline, inline": ["method=pipeline", "pipeline.workers=inline"],
    "pipeline, threads": ["method=pipeline", "pipeline.workers=threads"],
    "pipeline, processes": ["method=pipeline", "pipeline.workers=processes"],
}
_LOOK_S = 0.02


def cpu_seconds_of(pid: int) -> float:
    """The CPU seconds of a process and of all below it that run."""
    seconds = 0.0
    for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        used = each.cpu_times()
        seconds += used.user + used.system
    return seconds


def main() -> None:
    args = _parse()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        graph = community(args.nodes, degree=args.degree, features=FEATURES, classes=CLASSES, seed=0)
        print(
            f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges; GCN {FEATURES}-{HIDDEN}-{CLASSES}; "
            f"{RANKS} ranks of one thread",
            flush=True,
        )
        write_store(graph, folder / "store")
        seconds: dict[str, list[float]] = {name: [] for name in SIDES}
        for turn in range(args.rounds):
            for name, settings in SIDES.items():
                took_s = _an_epoch(folder, f"{turn}-{name}", args.epochs, [*settings, *args.set])
                seconds[name].append(took_s)
                print(f"  {name:20} {seconds[name][-1]:7.3f} CPU seconds an epoch", flush=True)
    _show(seconds)
    print(json.dumps({**vars(args), "seconds": seconds}))


def _an_epoch(folder: Path, name: str, epochs: int, settings: list[str]) -> float:
    """The CPU seconds of an epoch: between the middle of a run and its last epoch."""
    out = folder / name.replace(" ", "-")
    every = ["threads=1", f"train.evaluate_every={epochs}", "train.checkpoint_seconds=1000000", *settings]
    command = [*SIAFU, "train", str(folder / "store"), "--model", "gcn", "--hidden", str(HIDDEN)]
    command += ["--ranks", str(RANKS), "--epochs", str(2 * epochs + 1), "--out", str(out)]
    command += [word for setting in every for word in ("--set", setting)]
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        marks = [_at_epoch(process, out / "events.jsonl", epoch) for epoch in (epochs, 2 * epochs)]
        process.wait()
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{name} ended with exit code {process.returncode}:\n{log.read()}")
    return (marks[1] - marks[0]) / epochs


def _at_epoch(process: "subprocess.Popen[bytes]", events: Path, epoch: int) -> float:
    """The CPU seconds of a run when so many epochs were written."""
    while process.poll() is None:
        if events.is_file() and events.read_bytes().count(b'"phase":"epoch"') >= epoch:
            return cpu_seconds_of(process.pid)
        time.sleep(_LOOK_S)
    return 0.0


def _show(seconds: dict[str, list[float]]) -> None:
    base = statistics.median(seconds["full"])
    print(f"{'CPU seconds an epoch':22} {'median':>8} {'least':>8} {'of full':>8}")
    for name, each in seconds.items():
        median = statistics.median(each)
        print(f"{name:22} {median:8.3f} {min(each):8.3f} {median / base:7.2f}x")
    print(f"{'the original, recorded':22} {RECORDED_S:8.3f}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=40_000)
    parser.add_argument("--degree", type=float, default=35)
    parser.add_argument("--epochs", type=int, default=100, help="that are measured, of twice as many")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--set", action="append", default=[], help="further settings of siafu train")
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
