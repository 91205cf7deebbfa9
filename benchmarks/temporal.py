"""Models over time beside PyG Temporal on the same generated snapshots: an epoch of each side in turn, CPU seconds.

    python benchmarks/temporal.py --make-peer FOLDER            makes a Python that has PyG Temporal, and compares
    python benchmarks/temporal.py --peer-python PATH            compares with one that is there
    python benchmarks/temporal.py                               the peer's recorded figures, marked as such
    python benchmarks/temporal.py --memory                      peak memory over base, in one block and cut into several

20,000 nodes, 200,000 edges and new inputs in each of 50 steps, hidden 64, one thread, cross-entropy in every step; the
first epoch, which makes what is kept, is not counted. CD-GCN, which PyG Temporal has not, is PyG's convolution and
torch's LSTM. The peer's venv borrows torch and PyG from the Python this runs in; torch_sparse is a stub.
"""

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from core import require_core
from turns import Side

SIDE = Path(__file__).with_name("temporal_side.py")
KINDS = ("evolvegcn-o", "evolvegcn-h", "cd-gcn")
RECORDED = {
    "evolvegcn-o": 24.2,
    "evolvegcn-h": 25.4,
    "cd-gcn": 16.4,
}  # seconds an epoch of 50 steps, idle machine
ROOM = 256  # MB for blocks and states


def make_peer(folder: Path) -> str:
    """A Python in a venv of its own that has PyG Temporal; torch and PyG are those of the Python this runs in."""
    import torch

    venv.create(folder, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    subprocess.run([*command, "torch_geometric_temporal"], check=True, timeout=600)
    (site / "borrowed.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return str(folder / "bin" / "python")


def take_turns(args: argparse.Namespace, sides: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    size = ["--nodes", str(args.nodes), "--edges", str(args.edges), "--steps", str(args.steps)]
    running = [Side(name, [*command, *size, "--layers", str(args.layers)]) for name, command in sides.items()]
    for _ in range(args.rounds + 1):
        for side in running:
            side.step()
    return {side.name: side.end() for side in running}


def compare(args: argparse.Namespace, kind: str, peer: str | None) -> dict[str, Any]:
    sides = {"siafu": [sys.executable, str(SIDE), "siafu", kind]}
    if peer is not None:
        sides["pyg-temporal"] = [peer, str(SIDE), "pyg-temporal", kind]
    found = take_turns(args, sides)
    ours = found["siafu"]["seconds"]
    theirs = found["pyg-temporal"]["seconds"] if peer is not None else RECORDED[kind] * args.steps / 50
    return {
        "model": kind,
        "layers": args.layers,
        "milliseconds_a_step": 1e3 * ours / args.steps,
        "peer_milliseconds_a_step": 1e3 * theirs / args.steps,
        "peer_is": "run beside" if peer is not None else "recorded",
        "times": theirs / ours,
    }


def measure_memory(args: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, str(SIDE), "siafu", "cd-gcn", "--forget"]
    found = take_turns(args, {"plain": command, "cut": [*command, "--cut", "--room", str(ROOM)]})
    times = found["cut"]["seconds"] / found["plain"]["seconds"]
    peaks = {name: each["peak_bytes_over_base"] for name, each in found.items()}
    return {"peak_bytes_over_base": peaks, "times": times}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--make-peer", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.memory:
        print(json.dumps(measure_memory(args), indent=2))
        return
    peer = make_peer(args.make_peer) if args.make_peer else args.peer_python
    for kind in args.kinds:
        print(json.dumps(compare(args, kind, peer), indent=2), flush=True)


if __name__ == "__main__":
    require_core()
    main()
