"""GCN on two ranks of one host: the bytes of an epoch against their closed form, and its time against one rank's.

    python benchmarks/ranks.py                      500k nodes, 15M edges; METIS parts if pymetis is installed
    python benchmarks/ranks.py --nodes 50000        a smaller graph

An epoch exchanges each halo row twice, at the width of the narrower side of the second layer: the classes, there and
back. What the first layer reads never changes, so its halo comes once a run: the features, and a scale for each row.
Runs of one rank on one core and of two ranks on two cores are made in turn, so that what else the machine does hits
both alike; the first epoch of a run, which makes what is kept, is not counted.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import require_core

from siafu.data import community
from siafu.partition.parts import open_partition
from siafu.store import write_store
from siafu.store_partitions import PARTS, list_partitions

SIAFU = [sys.executable, "-m", "siafu"]
FEATURES, CLASSES, HIDDEN = 100, 47, 256
FLOAT, SCALE = 4, 8  # bytes of an element of a row, and of the scale of a row


@dataclass(frozen=True)
class Trained:
    """A run that ended: what the command printed, and the seconds of each epoch."""

    found: dict[str, Any]
    epochs: list[float]


def main() -> None:
    args = _parse()
    by = args.by or ("metis" if importlib.util.find_spec("pymetis") else "stream")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        graph = community(args.nodes, degree=args.degree, features=FEATURES, classes=CLASSES, seed=0)
        print(
            f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges; GCN of 2 layers, {HIDDEN} hidden; {by} parts"
        )
        write_store(graph, folder / "store")
        del graph
        _run([*SIAFU, "partition", str(folder / "store"), "--parts", "2", "--by", by])
        halo = _halo_rows(folder / "store")
        found = {"bytes": _bytes(folder, halo, by), "time": _time(folder, by, args.rounds, args.epochs)}
    print(json.dumps({"nodes": args.nodes, "degree": args.degree, "by": by, "halo_rows": halo, **found}))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--degree", type=float, default=30)
    parser.add_argument("--by", help="how to cut; default metis, or stream where pymetis is missing")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each side")
    parser.add_argument("--epochs", type=int, default=5, help="of each run")
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


def _halo_rows(store: Path) -> int:
    """The rows that the parts read of each other, all together."""
    (name,) = list_partitions(store)
    return sum(sum(spec.recv) for spec in open_partition(store / PARTS / name).manifest.parts)


def _bytes(folder: Path, halo: int, by: str) -> dict[str, Any]:
    """What two runs sent of halo rows: their difference is that of the epochs, the rest is sent once a run."""
    short, long = (_train(folder, f"bytes-{epochs}", by, ranks=2, epochs=epochs) for epochs in (1, 3))
    sent = [run.found["bytes_by_label"]["halo"] for run in (short, long)]
    epoch = (sent[1] - sent[0]) / 2
    rows = {
        "an epoch": (epoch, halo * CLASSES * FLOAT * 2),
        "once a run": (sent[0] - epoch, halo * (FEATURES * FLOAT + SCALE)),
    }
    print(f"\n{halo:,} halo rows\n{'':12} {'sent':>12} {'closed form':>12} {'off':>7}")
    for name, (measured, closed) in rows.items():
        off = measured / closed - 1
        print(f"{name:12} {measured / 1e6:9.3f} MB {closed / 1e6:9.3f} MB {off:7.2%}", flush=True)
    return {name: {"sent": sent, "closed_form": closed} for name, (sent, closed) in rows.items()} | {
        "bytes_by_label": long.found["bytes_by_label"]
    }


def _time(folder: Path, by: str, rounds: int, epochs: int) -> dict[str, Any]:
    """The epochs of one rank on one core, and of two on two, run after run in turn."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(rounds):
        for ranks, each in seconds.items():
            run = _train(folder, f"time-{ranks}-{turn}", by, ranks=ranks, epochs=epochs)
            each += run.epochs[1:]
    found = {}
    print(f"\n{'':24} {'median epoch':>13} {'best epoch':>11}")
    for ranks, each in seconds.items():
        median, best = statistics.median(each), min(each)
        what = f"{ranks} rank{'s on 2 cores' if ranks > 1 else ' on 1 core'}"
        print(f"{what:24} {median:11.3f} s {best:9.3f} s   of {len(each)} epochs")
        found[str(ranks)] = {"median": median, "best": best}
    ratios = [found["1"][kind] / found["2"][kind] for kind in ("median", "best")]
    print(f"{'two are faster':24} {ratios[0]:12.2f}x {ratios[1]:10.2f}x", flush=True)
    return found


def _train(folder: Path, name: str, by: str, *, ranks: int, epochs: int) -> Trained:
    """Train with one thread a rank, a core for each."""
    out = folder / name
    settings = ["threads=1", f"partition.by={by}", "train.evaluate_every=1000000"]
    command = [*SIAFU, "train", str(folder / "store"), "--model", "gcn", "--hidden", str(HIDDEN), "--json"]
    command += ["--ranks", str(ranks), "--epochs", str(epochs), "--out", str(out)]
    command += [word for setting in settings for word in ("--set", setting)]
    printed = _run(["taskset", "-c", f"0-{ranks - 1}", *command])
    events = map(json.loads, (out / "events.jsonl").read_text("utf-8").splitlines())
    seconds = [event["seconds"] for event in events if event["phase"] == "epoch"]
    return Trained(json.loads(printed), seconds)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\nended with exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    require_core()
    main()
