"""A large graph that changes over time, from disk: 1M accounts, 200 steps, 124M payments, one epoch of CD-GCN.

    python benchmarks/temporal_scale.py --folder /data          1M nodes, 124M events; 4 GB of disk
    python benchmarks/temporal_scale.py --part 0.1              a tenth of the nodes and of the events
    python benchmarks/temporal_scale.py --prepared /data/aml    keeps the store there, for the next time

2 layers, hidden 8, edge life 10, one pass over all steps, one rank. Both steps are the real commands; of each the
anonymous memory is sampled, as ``billion.py`` does. What the system keeps of mapped files it can take back, and is not
counted.
"""

import argparse
import json
from pathlib import Path

from billion import Phase, command, place
from core import require_core

NODES, STEPS, EVENTS = 1_000_000, 200, 124_000_000


def prepare(folder: Path, nodes: int, events: int) -> list[Phase]:
    """A store of the payments; one that is there is not made again."""
    store = folder / "store"
    if (store / "manifest.json").is_file():
        return []
    made = f"transactions:nodes={nodes},steps={STEPS},events={events},seed=0"
    return [command("import", folder, str(store), "--events", made)]


def train(folder: Path, args: argparse.Namespace) -> Phase:
    """One epoch, by the real command."""
    settings = [
        "snapshots.edge_life=10",
        "snapshots.window=0",
        f"snapshots.room_mb={int(args.room_mb * args.part)}",
        *args.set,
    ]
    words = [str(folder / "store"), "--model", "cd-gcn", "--layers", "2", "--hidden", "8", "--epochs", "1"]
    words += [word for setting in settings for word in ("--set", setting)]
    return command("train", folder, *words, "--out", str(folder / "run"), "--json")


def main() -> None:
    args = _parse()
    nodes, events = int(NODES * args.part), int(EVENTS * args.part)
    print(f"{nodes:,} accounts, {STEPS} steps, {events:,} payments")
    print(f"{'':12} {'time':>11} {'anonymous':>12} {'disk':>12}", flush=True)
    with place(args.prepared, args.folder) as folder:
        phases = [*prepare(folder, nodes, events), train(folder, args)]
        lines = (folder / "train.log").read_text("utf-8").splitlines()
        written = map(json.loads, (folder / "run" / "events.jsonl").read_text("utf-8").splitlines())
        blocks = next(event["steps"] for event in written if event["phase"] == "blocks")
    found = json.loads(lines[-1])
    most = max(phase.memory_bytes for phase in phases)
    print(f"blocks of time: {blocks}; an epoch {found['epoch_seconds']:.1f} s")
    print(f"peak of anonymous memory {most / 1e9:.2f} GB")
    print(json.dumps({"memory_bytes": most, **found}))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=float, default=1.0, help="of the nodes and of the events")
    parser.add_argument("--room-mb", type=float, default=6000, help="snapshots.room_mb of the whole size")
    parser.add_argument("--set", action="append", default=[], help="further settings of siafu train")
    parser.add_argument("--folder", help="where to make the temporary folder")
    parser.add_argument("--prepared", help="a folder that stays")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
