"""Strong scaling on snapshots: one rank on one core beside two ranks on two hosts that share nothing. Needs root.

    python benchmarks/temporal_ranks.py                         20k nodes, 50 steps, CD-GCN and EvolveGCN-O, 10 Gbit/s
    python benchmarks/temporal_ranks.py --nodes 2000 --steps 20 --rounds 1

The hosts are network namespaces (see ``namespaces.py``) with a core each; the second sees neither the store nor the
run. Runs of one rank and of two are made in turn, so that what else the machine does hits both alike; the first epoch
of a run, which makes what is kept, is not counted. Efficiency is the time of one over twice the time of two.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core import require_core
from hosts import train_across
from namespaces import Host, refusal, two_hosts

from siafu.data.transactions import Transactions
from siafu.store import write_dynamic

SIAFU = [sys.executable, "-m", "siafu", "train"]


def alone(arguments: Sequence[str]) -> None:
    """One rank, on the first core."""
    command = ["taskset", "-c", "0", *SIAFU, *arguments, "--ranks", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"siafu train ended with exit code {done.returncode}:\n{done.stderr}")


def epochs_of(run: Path) -> list[float]:
    """The seconds of each epoch but the first."""
    events = map(json.loads, (run / "events.jsonl").read_text("utf-8").splitlines())
    return [event["seconds"] for event in events if event["phase"] == "epoch"][1:]


def compare(kind: str, folder: Path, hosts: tuple[Host, Host], args: argparse.Namespace) -> dict[str, Any]:
    """Runs of one rank and of two, in turn."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    common = [str(folder / "store"), "--model", kind, "--hidden", str(args.hidden)]
    common += ["--epochs", str(args.epochs + 1)]
    settings = ["threads=1", "snapshots.window=0", "train.evaluate_every=1000000"]
    settings += ["snapshots.room_mb=16000", *args.set]  # no block is passed twice, by whomever
    common += [word for setting in settings for word in ("--set", setting)]
    sent = 0
    for turn in range(args.rounds):
        for ranks, each in seconds.items():
            out = folder / f"{kind}-{ranks}-{turn}"
            if ranks == 1:
                alone([*common, "--out", str(out)])
            else:
                sent = train_across(hosts, [*common, "--out", str(out)], timeout_s=args.timeout).found[
                    "bytes_sent"
                ]
            each += epochs_of(out)
    one, two = (statistics.median(each) for each in seconds.values())
    found = {"model": kind, "one_s": one, "two_s": two, "efficiency": one / two / 2}
    return found | {"bytes_sent": sent, "epochs": len(seconds[2])}


def main() -> None:
    args = _parse()
    if why := refusal():
        sys.exit(f"no hosts can be made here: {why}")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        made = Transactions(
            nodes=args.nodes, steps=args.steps, events=args.events * args.steps, features=args.features
        )
        write_dynamic(made.graph(), folder / "store")
        with two_hosts(folder, rate=args.rate, whole_packets=False) as hosts:
            for kind in args.kinds:
                print(json.dumps(compare(kind, folder, hosts, args)), flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", default=["cd-gcn", "evolvegcn-o"])
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--events", type=int, default=20_000, help="a step; ten steps of them live")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3, help="that count, of each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--rate", default="10gbit", help="of the interfaces, as tc takes it")
    parser.add_argument("--set", action="append", default=[], help="further settings of siafu train")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds, of a run")
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
