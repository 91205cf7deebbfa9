"""Whole commands, from the prompt to the result: seconds by the clock, and the share of training steps and of scoring.

    python benchmarks/whole.py                        every case whose data are here, 3 rounds
    python benchmarks/whole.py --only gcn cora        some of them
    python benchmarks/whole.py --rounds 9

Every run is a process of its own: it starts Python, imports, reads, trains and scores as the defaults say, and writes
weights and metrics. The case ``gcn`` is run beside a plain PyG script that reads the same arrays, trains the same model
for as many epochs and scores its validation nodes after every epoch. Named data sets are looked for in SIAFU_DATA.
``pairs.py`` runs the same commands with two checkouts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from core import require_core
from run import write_arrays

from siafu.data import community
from siafu.store import write_store

MAIN = ("-m", "siafu")
HIDDEN, EPOCHS = 128, 20
_DATA = Path(os.environ.get("SIAFU_DATA", Path(__file__).parents[2] / "shared" / "data"))


@dataclass(frozen=True)
class Case:
    """A command: its data (``graph`` is the generated one, else a name) and its other arguments."""

    name: str
    data: str
    arguments: tuple[str, ...]

    @property
    def here(self) -> bool:
        """Whether its data are on this machine."""
        places = (_DATA / f"{self.data}.npz", _DATA / "temporal" / f"{self.data}.npz")
        return self.data == "graph" or any(place.is_file() for place in places)

    def command(self, python: Path | str, folder: Path, out: Path) -> list[str]:
        """The command of a checkout's Python."""
        data = str(folder / "store") if self.data == "graph" else self.data
        return [str(python), *MAIN, "train", data, *self.arguments, "--json", "--out", str(out)]


CASES = (
    Case("gcn", "graph", ("--hidden", str(HIDDEN), "--epochs", str(EPOCHS))),
    Case("ranks", "graph", ("--hidden", str(HIDDEN), "--epochs", str(EPOCHS), "--ranks", "2")),
    Case("sampled", "graph", ("--method", "sampled", "--model", "sage", "--epochs", "3")),
    Case("pipeline", "graph", ("--method", "pipeline", "--epochs", "10")),
    Case("cora", "cora", ()),
    Case("time", "ucsocial", ("--model", "evolvegcn-o", "--epochs", "2")),
)


def write_data(folder: Path) -> None:
    """The generated graph, as a store and as arrays: 60,000 nodes, 1.4M edges, 100 features, 47 classes."""
    graph = community(60_000, degree=23, features=100, classes=47, seed=0)
    write_store(graph, folder / "store")
    write_arrays(graph, folder)


def run_command(command: Sequence[str]) -> dict[str, Any]:
    """The metrics that a command prints, and the seconds until it ended."""
    environ = os.environ | {"SIAFU_DATA": str(_DATA)}
    began_s = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    seconds = time.perf_counter() - began_s
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1]) | {"whole_seconds": seconds}


def train_with_pyg(folder: Path) -> None:
    """The plain script: read, train, score the validation nodes after every epoch, score the test nodes at the end."""
    import torch
    from torch_geometric.nn import GCNConv

    def read(name: str) -> torch.Tensor:
        return torch.from_numpy(np.load(folder / f"{name}.npy"))

    edges, x, y = read("edges").long(), read("x"), read("y")
    train, val, test = (read(f"{split}_mask") for split in ("train", "val", "test"))
    layers = torch.nn.ModuleList([GCNConv(x.shape[1], HIDDEN), GCNConv(HIDDEN, int(y.max()) + 1)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.01, weight_decay=5e-4)

    def forward() -> torch.Tensor:
        hidden = layers[0](x, edges).relu()
        return layers[1](torch.nn.functional.dropout(hidden, 0.5, training=layers.training), edges)

    @torch.no_grad()
    def accuracy(mask: torch.Tensor) -> float:
        layers.eval()
        return float((forward().argmax(1) == y)[mask].float().mean())

    step_seconds, best, best_score = [], {}, -1.0
    for _ in range(EPOCHS):
        began_s = time.perf_counter()
        layers.train()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward()[train], y[train]).backward()
        optimizer.step()
        step_seconds.append(time.perf_counter() - began_s)
        if (score := accuracy(val)) > best_score:
            best, best_score = {name: value.clone() for name, value in layers.state_dict().items()}, score
    layers.load_state_dict(best)
    found = {"epochs": EPOCHS, "epoch_seconds": statistics.median(step_seconds)}
    print(json.dumps(found | {"test_score": accuracy(test)}))


def main() -> None:
    args = _parse()
    if args.pyg is not None:
        train_with_pyg(args.pyg)
        return
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_data(folder)
        for turn in range(args.rounds):
            for case in CASES:
                if case.name not in args.only or not case.here:
                    continue
                out = folder / f"{case.name}-{turn}"
                found[case.name].append(run_command(case.command(sys.executable, folder, out)))
                if case.name == "gcn":
                    found["gcn, PyG"].append(run_command([sys.executable, __file__, "--pyg", str(folder)]))
    print(f"{'':10} {'seconds':>8} {'from':>7} {'to':>7} {'steps':>7} {'epochs':>7} {'test score':>11}")
    for name, runs in found.items():
        whole = [run["whole_seconds"] for run in runs]
        steps = statistics.median(run["epoch_seconds"] * run["epochs"] for run in runs)
        spread = f"{min(whole):7.1f} {max(whole):7.1f}"
        last = f"{steps:7.1f} {runs[0]['epochs']:7} {runs[0]['test_score']:11.4f}"
        print(f"{name:10} {statistics.median(whole):8.1f} {spread} {last}")
    print(json.dumps({name: [run["whole_seconds"] for run in runs] for name, runs in found.items()}))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pyg", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
